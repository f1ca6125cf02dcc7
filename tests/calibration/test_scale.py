"""The scale stage with the stand-in for verl, which needs no nodes."""

import json

import pytest
import yaml

from kltune.cli.app import main
from kltune.launchers.local import LocalLauncher


@pytest.fixture
def calibrate(project, monkeypatch, capsys):
    """A function that makes a baseline with settings inside the band."""
    monkeypatch.setattr("kltune.calibration.crews.open_launcher", lambda _: LocalLauncher())

    def run(scenario=None, confirmations=0):
        overrides = {**project.content["verl"]["overrides"], **SIZES}
        search = {"trials": 3, "confirmations": confirmations}
        project.write(scenario, verl={"overrides": overrides}, search=search)
        assert main(["baseline", "--format", "json"]) == 0
        capsys.readouterr()
        return project

    return run


@pytest.fixture
def calibrated(calibrate):
    return calibrate()


SIZES = {
    "trainer.device": "cpu",  # several nodes of one machine
    "data.train_batch_size": 64,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 32,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 64,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 64,
}


def scaled(capsys, *words, code=0):
    assert main(["scale", "--format", "json", *words]) == code
    return json.loads(capsys.readouterr().out)


def test_nodes_are_walked_up_and_the_settings_of_each_exported(calibrated, capsys):
    results = scaled(capsys, "--nodes", "2,3")
    assert [r["nodes"] for r in results] == [2, 3]
    assert all(r["calibrated"] for r in results)
    assert [t["name"] for t in results[0]["trials"]][:3] == ["per-8-nodes", "literal", "hold"]
    assert "prompts per step 64 -> 66" in results[1]["batch"]
    for result in results:
        path = calibrated.workspace.calibrated / f"nodes-{result['nodes']}" / "config.yaml"
        config = yaml.safe_load(path.read_text())
        assert config["trainer"]["nnodes"] == result["nodes"]
        assert config["algorithm"]["kl_ctrl"]["target_kl"] == result["settings"]["target_kl"]
    assert config["data"]["train_batch_size"] == 66
    # The gain of the controller stays: a step has more rows, and the horizon is longer.
    horizon = config["algorithm"]["kl_ctrl"]["horizon"]
    assert horizon / 66 == pytest.approx(10_000 / 64)


def test_the_export_holds_every_number_of_nodes_in_every_form(calibrated, capsys):
    results = scaled(capsys, "--nodes", "2,3", "--trials", "1")
    assert main(["export", "-o", "out", "--format", "json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["nodes-3"] == "out/nodes-3/config.yaml"
    text = (calibrated.path / "out" / "nodes-3" / "config.yaml").read_text()
    # The batch had to grow, and the settings hold for that one.
    assert "prompts per step: 66" in text
    assert yaml.safe_load(text)["trainer"]["nnodes"] == 3
    assert main(["export", "-o", "three", "--nodes", "3", "--as", "config,slurm,overrides"]) == 0
    assert (calibrated.path / "three" / "config.yaml").read_text() == text
    sbatch = (calibrated.path / "three" / "train.sbatch").read_text()
    assert "#SBATCH --nodes=3" in sbatch
    target = results[1]["settings"]["target_kl"]
    assert f"algorithm.kl_ctrl.target_kl={target}" in sbatch
    assert "data.train_batch_size=66" in sbatch
    capsys.readouterr()
    assert main(["export", "-o", "out", "--nodes", "8"]) == 1
    assert "there are settings for 2, 3; kltune scale --nodes 8 does it" in capsys.readouterr().err


def test_what_holds_on_one_node_is_predicted_and_measured(calibrated, capsys):
    (result,) = scaled(capsys, "--nodes", "2", "--rule", "hold", "--trials", "1")
    (transfer,) = result["transfers"]
    # The stand-in knows no nodes and the seed is the same: the prediction is exact.
    assert transfer["measured_kl"] == pytest.approx(transfer["predicted_kl"], rel=1e-6)
    assert result["throughput"] == result["throughput_one_node"] == 500


@pytest.mark.parametrize("words", [(), ("--parallel", "3")], ids=["in turn", "side by side"])
def test_the_best_is_confirmed_on_the_seed_of_the_baselines_confirmation(calibrate, capsys, words):
    project = calibrate(confirmations=1)
    (result,) = scaled(capsys, "--nodes", "2", "--trials", "3", *words)
    assert [t["role"] for t in result["trials"]] == ["search"] * 3 + ["confirm-winner"]
    confirmed = result["trials"][-1]
    assert confirmed["seed"] == 1001
    assert result["calibrated"]
    assert "on 1 fresh seed(s), inside" in result["reason"]
    # Foreseen from what the baseline did on that seed.
    transfer = {t["trial"]: t for t in result["transfers"]}[confirmed["name"]]
    assert transfer["measured_kl"] == pytest.approx(transfer["predicted_kl"], rel=0.2)
    assert project.left_behind() == []


def test_a_second_run_starts_nothing(calibrated, capsys):
    first = scaled(capsys, "--nodes", "2", "--trials", "2")
    before = len(calibrated.journal("attempt-ended"))
    assert scaled(capsys, "--nodes", "2", "--trials", "2") == first
    assert len(calibrated.journal("attempt-ended")) == before


def test_what_an_earlier_winner_was_scaled_to_is_not_that_of_the_next(calibrated, capsys):
    words = ("--nodes", "2", "--rule", "hold", "--trials", "1")
    (first,) = scaled(capsys, *words)
    assert main(["baseline", "--quiet", "--trials", "8", "--format", "json"]) == 0
    now = json.loads(capsys.readouterr().out)["settings"]
    assert now != first["settings"]
    assert main(["export", "-o", "out", "--nodes", "2"]) == 1
    assert main(["export", "-o", "out", "--quiet"]) == 0
    assert not (calibrated.path / "out" / "nodes-2").exists()
    capsys.readouterr()
    (second,) = scaled(capsys, *words)
    assert second["settings"] == now
    assert main(["export", "-o", "out", "--nodes", "2", "--quiet"]) == 0
    shelf = calibrated.workspace.path / "set-aside" / "scale-2-1"
    assert (shelf / "hold" / "outcome.json").is_file()


def test_a_failing_gate_stops_the_stage_at_step_1_and_changes_nothing(calibrate, project, capsys):
    calibrate("nodes-differ")
    before = project.workspace.calibration.read_text()
    (result,) = scaled(capsys, "--nodes", "2,4", code=1)
    assert result["gate"] == "consistency-reference-kl"
    assert (result["calibrated"], result["settings"]) == (False, None)
    assert "micro batches" in result["reason"]  # what to look at
    (trial,) = result["trials"]  # no other was started, and nothing on 4 nodes
    assert trial["outcome"]["ending"] == "stopped"
    found = [e["finding"] for e in project.journal("finding") if e["trial"] == trial["name"]]
    assert ("consistency-reference-kl", 1) in [(f["rule"], f["step"]) for f in found]
    assert project.workspace.calibration.read_text() == before
    assert not project.workspace.calibrated.exists()


def test_without_a_baseline_there_is_nothing_to_scale(project, capsys):
    assert main(["scale", "--nodes", "2"]) == 1
    assert "kltune run" in capsys.readouterr().err


def test_numbers_of_nodes_that_are_none(project, capsys):
    assert main(["scale", "--nodes", "2,many"]) == 3
    assert main(["scale", "--nodes", "0"]) == 3


def test_several_nodes_on_one_machine_need_a_cpu(project, capsys):
    project.write(cluster={"nodes": 2})
    assert main(["plan"]) == 3
    assert "cluster.launcher ray or slurm" in capsys.readouterr().err


def test_the_journal_tells_trials_of_one_name_on_two_numbers_of_nodes_apart(calibrated, capsys):
    scaled(capsys, "--nodes", "2,4", "--rule", "hold", "--trials", "1")
    begun = [e for e in calibrated.journal("trial-started") if e["trial"] == "hold"]
    assert [e["stage"] for e in begun] == ["scale-2", "scale-4"]
