"""Base model, a reference that is held back, and calibrated settings on the CPU task.

    python benchmarks/validation/cpu_tiny.py WORKSPACE [SEEDS]

The reference is a fixed coefficient of 30, which keeps the policy near where it began; what kltune
finds instead is validated against it on 256 held-out problems. Interrupted, the same command goes
on; with more seeds it adds them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

SETTINGS = {
    "preset": "cpu-tiny",
    "verl": {"overrides": {"algorithm.kl_ctrl.type": "fixed", "algorithm.kl_ctrl.kl_coef": 30.0}},
    "band": {"low": 0.003, "high": 0.03},
    "search": {"trials": 1, "steps": 10, "confirmations": 0},
}

workspace = Path(sys.argv[1])
seeds = sys.argv[2] if len(sys.argv) > 2 else "5"
workspace.mkdir(parents=True, exist_ok=True)
config = workspace.with_suffix(".yaml")
config.write_text(yaml.safe_dump(SETTINGS), encoding="utf-8")
common = ["--workspace", str(workspace), "--config", str(config)]
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
