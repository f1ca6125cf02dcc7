"""The consistency gate on real verl, with faults that show on several nodes alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kltune.launchers import launcher_of
from kltune.trial.records import AttemptRecord, read
from kltune.trial.run import read_steps
from kltune.workspace import Workspace

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(sys.platform != "linux", reason="verl on a CPU needs Linux"),
]

#: What verl imports for ``model.external_lib``: it spoils the policy's shards on every rank but
#: the first, once they are loaded. The reference and the critic stay as they are.
LIBRARY = """
import os
import torch
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

build = FSDPEngineWithLMHead.initialize
spoil = {
    "other weights": lambda shard: shard * 1.02,
    "other precision": lambda shard: shard.bfloat16(),
}


def initialize(engine):
    build(engine)
    if torch.distributed.get_rank() > 0 and not engine.engine_config.forward_only:
        for weight in engine.module.parameters():
            shard = weight.data.to_local()
            shard.copy_(spoil[os.environ["SPOIL"]](shard))


FSDPEngineWithLMHead.initialize = initialize
"""


def settings(folder: Path) -> dict:
    overrides = {
        "actor_rollout_ref.model.external_lib": "spoiled_model",
        "data.val_max_samples": 8,
    }
    return {
        "preset": "cpu-tiny",
        # A short trial barely moves the policy, so this band begins close to 0.
        "band": {"low": 1e-7, "high": 0.5},
        "verl": {"overrides": overrides, "env": {"PYTHONPATH": str(folder)}},
        "search": {"trials": 0, "steps": 2, "confirmations": 0},
        "scale": {"nodes": [2, 4], "trials": 3},
    }


def kltune(stage: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kltune", stage, "--format", "json"],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A directory with a baseline of one trial; with one rank, nothing is wrong."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "spoiled_model.py").write_text(LIBRARY)
    (folder / "kltune.yaml").write_text(yaml.safe_dump(settings(folder)))
    done = kltune("baseline", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("fault", "rule", "says"),
    [
        ("other weights", "reference-kl", "other weights or another precision on some rank"),
        # Far below any limit of its own: only the comparison with one node shows it.
        ("other precision", "one-node", "compare weights, data, sampling settings and precision"),
    ],
)
def test_a_rank_that_differs_ends_the_stage_at_step_1(calibrated, fault, rule, says):
    workspace = Workspace(calibrated / "kltune-runs")
    workspace.set_stage_aside("scale-2")
    calibration = workspace.calibration.read_text()

    done = kltune("scale", calibrated, SPOIL=fault)

    assert done.returncode == 1, done.stderr
    (result,) = json.loads(done.stdout)  # 4 nodes were not begun
    assert (result["nodes"], result["gate"]) == (2, f"consistency-{rule}")
    assert says in result["reason"]
    assert "No KL setting was changed for it" in result["reason"]

    # Nothing was tuned for it: one trial, one attempt, ended at its first step, nothing exported.
    (trial,) = result["trials"]
    assert (trial["outcome"]["ending"], trial["outcome"]["attempts"]) == ("stopped", 1)
    assert (result["calibrated"], result["settings"]) == (False, None)
    assert trial["settings"] == result["proposals"][0]["settings"]
    assert workspace.calibration.read_text() == calibration
    assert not workspace.calibrated.exists()

    (directory,) = workspace.trials("scale-2")
    (step,) = read_steps(directory)
    one = read_steps(workspace.trials("baseline")[0])[1]
    assert step.step == one.step == 1
    assert one.reference_kl == 0  # in fp32 the policy is the reference, exactly
    assert (step.reference_kl > 1e-4) == (fault == "other weights")
    # The engine has the spoiled weights as well: it agrees with training.
    assert step.mismatch_prob < 1e-5

    (attempt,) = directory.attempts()
    handle = read(attempt.plan, AttemptRecord).handle
    assert launcher_of(handle).status(handle).state.is_terminal
