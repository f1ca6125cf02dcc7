"""A reward that is hacked: what is exported holds the KL at which held-out pass@1 peaked."""

import json
import shlex
import subprocess
import sys

import pytest
import yaml

from kltune.calibration import read_calibration
from kltune.cli.app import main
from kltune.trial.records import read_trial
from kltune.workspace import Workspace

from ..drift.data import row, write

#: What the linter asks of a configuration for a GPU.
WHOLE = {
    "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "critic.model.path": "example/model",
    "critic.ppo_micro_batch_size_per_gpu": 8,
}


@pytest.fixture
def hacked(project):
    """A workspace whose winner goes on to lose pass@1, validated on five seeds."""
    write(project.path / "train.parquet", [row(n) for n in range(200)])
    write(project.path / "test.parquet", [row(n, split="test") for n in range(400)])
    env = {"STAND_IN_PROBLEMS": "400", "STAND_IN_SPEED": "0.15", "STAND_IN_STEP_S": "0.001"}
    project.content["verl"]["overrides"] |= {
        "algorithm.kl_ctrl.type": "fixed",
        "algorithm.kl_ctrl.kl_coef": 1.0,
        **WHOLE,
    }
    project.write(
        scenario="hacked",
        verl={"env": env},
        search={"trials": 3, "steps": 18, "confirmations": 0},
        validate={"seeds": 5},
        band={"low": 0.03, "high": 0.08},
    )
    assert main(["baseline", "--quiet"]) in (0, 1)
    return project


def test_the_export_holds_the_kl_of_the_peak_and_says_why(hacked, capsys):
    measured = json.loads(hacked.workspace.calibration.read_text())
    capsys.readouterr()
    assert main(["validate"]) in (0, 1)
    assert "pass@1 has fallen from its peak beyond chance" in capsys.readouterr().err
    assert main(["export", "-o", "out", "--format", "json", "--as", "config,overrides,slurm"]) == 0
    said = capsys.readouterr()
    choice = json.loads(said.out)["choice"]
    settings, winner = choice["settings"], measured["settings"]
    assert (choice["moved"], choice["measured"]) == (True, False)
    assert settings["kl_coef"] > winner["kl_coef"]
    assert 0.01 < settings["target_kl"] < 0.025
    assert "test: pass@1 fell from 0." in said.err
    assert "no trial was run with them" in said.err
    confirm = (
        "kltune run --workspace AT-PEAK --trials 0 --set algorithm.kl_ctrl.type=adaptive "
        f"--set algorithm.kl_ctrl.kl_coef={settings['kl_coef']} "
        f"--set algorithm.kl_ctrl.target_kl={settings['target_kl']}"
    )
    assert confirm in said.err
    # What was measured stays as it was.
    assert json.loads(hacked.workspace.calibration.read_text()) == measured

    text = (hacked.path / "out" / "config.yaml").read_text()
    assert f"target_kl: {settings['target_kl']}  # the peak of pass@1" in text
    assert "# NOT confirmed by a trial" in text
    assert f"# The search's winner was kl_coef={winner['kl_coef']:.4g}" in text
    assert confirm in text
    for name in ("overrides.txt", "train.sbatch"):
        words = (hacked.path / "out" / name).read_text()
        assert f"algorithm.kl_ctrl.target_kl={settings['target_kl']}" in words

    assert main(["lint", "out/config.yaml"]) == 0
    command = [sys.executable, "-W", "ignore", "-m", "verl.trainer.main_ppo", "--cfg", "job"]
    command += ["--config-path", str(hacked.path / "out"), "--config-name", "config"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=hacked.path, timeout=120)
    control = yaml.safe_load(shown.stdout)["algorithm"]["kl_ctrl"]
    assert control["kl_coef"] == settings["kl_coef"]
    assert control["target_kl"] == settings["target_kl"]

    # `kltune run` writes the same configuration, and says so.
    capsys.readouterr()
    assert main(["run"]) in (0, 1)
    assert confirm in capsys.readouterr().err
    own = (hacked.workspace.calibrated / "config.yaml").read_text()
    assert f"target_kl: {settings['target_kl']}  # the peak of pass@1" in own

    # What is said to confirm it trains with it.
    words = shlex.split(confirm)[1:]
    assert main([*words, "--quiet", "--steps", "2"]) in (0, 1)
    again = read_calibration(Workspace(hacked.path / "AT-PEAK"))
    assert again.reference.target_kl == settings["target_kl"]
    assert again.reference.kl_coef == settings["kl_coef"]

    # kltune's own training is the exported one.
    assert main(["train", "--steps", "2", "--quiet"]) == 0
    (begun,) = (read_trial(t) for t in hacked.workspace.trials("train"))
    assert begun.settings.target_kl == settings["target_kl"]
    assert begun.settings.kl_coef == settings["kl_coef"]
