"""Start and step time of a trial on a CPU against a plain configuration of the same training.

    python benchmarks/trial_speed/measure.py OTHER [PAIRS] [STEPS]

``OTHER`` is a folder with ``run.sh``, ``model/``, ``train.parquet`` and ``test.parquet``: a bash
script that trains verl on a CPU with 64 prompts a step, mini-batches of 32 and at most 12 tokens a
response, prints its steps, takes ``STEPS`` from the environment and more overrides as arguments.
The same model, data, batch, mini-batch and lengths are then trained with the preset ``cpu-tiny``,
in turn. Asked for: at most 0.7 of its time to step 1, at most 0.6 of its time per step.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kltune.settings import load
from kltune.verl.overrides import lay_over, render

OTHER = Path(sys.argv[1]).resolve()
PAIRS = int(sys.argv[2]) if len(sys.argv) > 2 else 2
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 else 10

STEP = re.compile(r"step:(\d+) - ")
SECONDS = re.compile(r"timing_s/step:(?:np\.float64\()?([\d.]+)")

#: The first steps still warm caches up.
SKIPPED = 2


def trained(argv: list[str], env: dict[str, str], folder: Path) -> dict[str, float]:
    """Train once; return seconds to step 1 and the median of verl's own step time."""
    log = folder / "console.log"
    began = time.perf_counter()
    start = None
    with log.open("w") as stream:
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                if start is None and "step:1 - " in log.read_text(errors="replace"):
                    start = time.perf_counter() - began
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
    steps = [line for line in log.read_text(errors="replace").splitlines() if STEP.search(line)]
    times = [float(found[1]) for line in steps if (found := SECONDS.search(line))]
    assert start is not None, log.read_text(errors="replace")[-2000:]
    return {"start_s": start, "step_s": statistics.median(times[SKIPPED:])}


def other() -> dict[str, float]:
    """Train with the other configuration."""
    folder = Path(tempfile.mkdtemp())
    for name in OTHER.iterdir():
        (folder / name.name).symlink_to(name)
    # kltune's plugin is installed here; a script with a plugin of its own must do without it.
    env = {**os.environ, "STEPS": str(STEPS), "VERL_USE_EXTERNAL_PLUGINS": "none"}
    return trained(["bash", "run.sh"], env, folder)


def ours() -> dict[str, float]:
    """Train the same with the preset."""
    settings = load("cpu-tiny").content.verl
    overrides = lay_over(
        settings.overrides,
        {
            "data.train_files": str(OTHER / "train.parquet"),
            "data.val_files": str(OTHER / "test.parquet"),
            "data.max_prompt_length": 16,
            "data.max_response_length": 12,
            "data.train_batch_size": 64,
            "actor_rollout_ref.model.path": str(OTHER / "model"),
            "critic.model.path": str(OTHER / "model"),
            "trainer.nnodes": 1,
            "trainer.n_gpus_per_node": 1,
            "trainer.total_training_steps": STEPS,
            "trainer.val_before_train": True,
            "trainer.logger": ["console"],
        },
    )
    argv = [sys.executable, "-m", "verl.trainer.main_ppo", *render(overrides)]
    env = {**os.environ, **settings.env, "RAY_DEDUP_LOGS": "0", "RAY_ADDRESS": "local"}
    return trained(argv, env, Path(tempfile.mkdtemp()))


runs = []
for _ in range(PAIRS):
    runs.append({"other": other(), "ours": ours()})
    print(json.dumps(runs[-1]), flush=True)
result: dict[str, object] = {"pairs": PAIRS, "steps": STEPS}
for what in ("start_s", "step_s"):
    result[what] = {
        "other": round(statistics.median(run["other"][what] for run in runs), 2),
        "ours": round(statistics.median(run["ours"][what] for run in runs), 2),
        "ratio": round(statistics.median(r["ours"][what] / r["other"][what] for r in runs), 3),
    }
print(json.dumps(result, indent=2))
Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
