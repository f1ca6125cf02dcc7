"""The consistency gate on real verl, with a fault that shows on several nodes alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kltune.launchers.local import LocalLauncher
from kltune.trial.run import read_steps
from kltune.workspace import Workspace

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(sys.platform != "linux", reason="verl on a CPU needs Linux"),
]

#: What verl imports for ``model.external_lib``: it spoils the policy's shards on every rank but
#: the first, once they are loaded. The reference and the critic stay as they are.
LIBRARY = """
import torch
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

build = FSDPEngineWithLMHead.initialize


def initialize(engine):
    build(engine)
    if torch.distributed.get_rank() > 0 and not engine.engine_config.forward_only:
        for weight in engine.module.parameters():
            weight.data.to_local().mul_(1.02)


FSDPEngineWithLMHead.initialize = initialize
"""


def settings(folder: Path) -> dict:
    (folder / "spoiled_model.py").write_text(LIBRARY)
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


def kltune(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kltune", *argv, "--format", "json"],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_one_rank_with_other_weights_ends_the_stage_at_step_1(tmp_path):
    (tmp_path / "kltune.yaml").write_text(yaml.safe_dump(settings(tmp_path)))
    workspace = Workspace(tmp_path / "kltune-runs")

    baseline = kltune("baseline", cwd=tmp_path)
    assert baseline.returncode == 0, baseline.stderr  # with one rank, nothing is wrong
    calibration = workspace.calibration.read_text()

    scale = kltune("scale", cwd=tmp_path)

    assert scale.returncode == 1, scale.stderr
    (result,) = json.loads(scale.stdout)  # 4 nodes were not begun
    assert (result["nodes"], result["gate"]) == (2, "consistency-reference-kl")
    assert "reference have other weights or another precision on some rank" in result["reason"]
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
    (one,) = [s for s in read_steps(workspace.trials("baseline")[0]) if s.step == 1]
    assert step.step == 1
    assert one.reference_kl == 0  # in fp32 the policy is the reference, exactly
    assert step.reference_kl > 1e-4
    # The engine has the spoiled weights as well: this is no mismatch of rollout and training.
    assert step.mismatch_prob < 1e-4

    (attempt,) = directory.attempts()
    assert LocalLauncher().status(json.loads(attempt.plan.read_text())["handle"]).state.is_terminal
