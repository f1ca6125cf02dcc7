"""Base model, reference and calibrated settings of the CPU preset, validated on fresh seeds.

    python benchmarks/validation/cpu_tiny.py WORKSPACE [SEEDS]

The preset is calibrated as it is shipped, then validated on its own 256 held-out problems.
Interrupted, the same command goes on; with more seeds it adds them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

workspace = Path(sys.argv[1])
seeds = sys.argv[2] if len(sys.argv) > 2 else "5"
common = ["--workspace", str(workspace), "--preset", "cpu-tiny"]
kltune = [sys.executable, "-m", "kltune"]
if not (workspace / "calibration.json").exists():
    subprocess.run([*kltune, "run", *common], check=False)
done = subprocess.run(
    [*kltune, "validate", *common, "--seeds", seeds, "--format", "json"],
    check=False,
    stdout=subprocess.PIPE,
    text=True,
)
print(done.stdout)
if done.returncode in (0, 1) and done.stdout:
    Path(__file__).with_name("cpu_tiny.json").write_text(done.stdout, encoding="utf-8")
