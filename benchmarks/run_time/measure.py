"""Wall time of ``kltune run`` with the CPU preset, from a prepared environment.

Asked for: at most 10 minutes on 2 cores for the reference, 4 search trials, confirmation, export.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    workspace = Path(folder) / "runs"
    argv = [str(Path(sys.executable).parent / "kltune"), "run", "--format", "json"]
    began = time.perf_counter()
    done = subprocess.run(
        [*argv, "--workspace", str(workspace)], stdout=subprocess.PIPE, cwd=folder, check=False
    )
    seconds = time.perf_counter() - began
    calibration = json.loads(done.stdout)
    exported = (workspace / "calibrated" / "config.yaml").exists()

result = {
    "minutes": round(seconds / 60, 2),
    "cores": len(os.sched_getaffinity(0)),
    "exit_code": done.returncode,
    "verdict": calibration["reason"],
    "exported": exported,
    "trials": [
        {
            "name": trial["name"],
            "kl_coef": trial["settings"]["kl_coef"],
            "target_kl": trial["settings"]["target_kl"],
            "seed": trial["seed"],
            "ending": trial["outcome"]["ending"],
            "reference_kl": trial["outcome"]["summary"]["kl"],
            "validation": trial["outcome"]["summary"]["validation"],
            "seconds": round(trial["outcome"]["seconds"], 1),
        }
        for trial in calibration["trials"]
    ],
}
print(json.dumps(result, indent=2))
Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
