"""Seconds of ``kltune lint`` of a launch script, a fresh process each time. Asked for: at most 1.

Also tells which of the heavy packages the process imported; there should be none.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tests" / "fixtures" / "verl" / "scripts" / "plain.sh"
HEAVY = ("verl", "torch", "ray", "transformers", "optuna", "numpy")
RUNS = 10


def main(script: Path) -> None:
    """Measure, print and keep the times in seconds."""
    command = [sys.executable, "-m", "kltune", "lint", str(script)]
    walls, processors = [], []
    for _ in range(RUNS):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, capture_output=True, check=False)
        walls.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processors.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    program = (
        "import sys, io, contextlib\nfrom kltune.cli.app import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()): main(['lint', {str(script)!r}])\n"
        f"import json; print(json.dumps([n for n in {HEAVY!r} if n in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    imported = json.loads(answer.stdout)
    result = {
        "runs": RUNS,
        "wall_median_s": round(statistics.median(walls), 3),
        "wall_min_s": round(min(walls), 3),
        "wall_max_s": round(max(walls), 3),
        "cpu_median_s": round(statistics.median(processors), 3),
        "heavy_imports": imported,
    }
    print(json.dumps(result, indent=2))
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SCRIPT)
