"""``kltune scale --profile`` with the stand-in for verl."""

import json
import multiprocessing
import time

import pytest

from kltune.calibration.profiling import STEPS, _ranks
from kltune.cli.app import main
from kltune.launchers.local import LocalLauncher
from kltune.trial.records import AttemptResult, read

MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"


@pytest.fixture
def profile(project, monkeypatch, capsys):
    """A function that scales to nodes and profiles there, from a baseline made in time."""
    for part in ("crews", "profiling"):
        monkeypatch.setattr(f"kltune.calibration.{part}.open_launcher", lambda _: LocalLauncher())
    sizes = {
        "trainer.device": "cpu",  # several nodes of one machine
        "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
        MICRO: 32,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 64,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 64,
    }
    overrides = {**project.content["verl"]["overrides"], **sizes}
    scale = {"trials": 1, "nodes": [2, 4]}
    project.write(verl={"overrides": overrides}, search={"confirmations": 0}, scale=scale)
    assert main(["baseline", "--quiet"]) == 0

    def run(*words, scenario="", code=0):
        # Of this process: what kltune.yaml sets is the workspace's own.
        monkeypatch.setenv("STAND_IN", scenario)
        capsys.readouterr()
        assert main(["scale", "--profile", *words]) == code
        return capsys.readouterr()

    return run


def attempts_of(project, what="profile-4"):
    (trial,) = project.workspace.trials(what)
    return trial.attempts()


def test_the_most_nodes_are_profiled_with_the_settings_found_there(project, profile):
    two, four = json.loads(profile("--format", "json", scenario="communicates=0.4").out)
    assert two["profile"] is None
    found = four["profile"]
    assert (found["nodes"], found["trial"], found["tool"]) == (4, four["winner"], "torch")
    assert [rank["rank"] for rank in found["ranks"]] == ["0", "1", "2", "3"]
    assert found["ranks"][0]["share"] == pytest.approx(0.4)
    assert found["ranks"][0]["families"] == {"all-gather": pytest.approx(0.4)}
    # 32 prompts an update on four ranks: the micro batch was 8 there, not the configured 32.
    assert found["advice"]["overrides"] == {MICRO: 4}

    (attempt,) = attempts_of(project)
    assert found["traces"] == str(attempt.traces)
    assert read(attempt.result, AttemptResult).attempt.last_step == STEPS
    settings = project.workspace.trials("profile-4")[0].trial.read_text()
    assert json.loads(settings)["settings"] == four["settings"]
    assert "trainer.test_freq=-1" in attempt.command.read_text()
    (entry,) = project.journal("profile")
    assert (entry["nodes"], entry["overrides"]) == (4, {MICRO: 4})


def test_people_read_what_comm_prints(profile, capsys):
    said = profile("--nodes", "2").out
    assert "step 3 on 2 nodes with the settings of per-8-nodes, torch profiler" in said
    assert "all-gather" in said
    assert "nothing is to be done" in said
    assert main(["status"]) == 0
    assert "profile-2/per-8-nodes-torch: rank 0 spends 10.0%" in capsys.readouterr().out


def test_given_again_it_reads_the_traces_that_are_there(project, profile):
    first = profile("--format", "json", "--nodes", "2").out
    ended = len(project.journal("attempt-ended"))
    assert profile("--format", "json", "--nodes", "2").out == first
    assert len(project.journal("attempt-ended")) == ended
    assert len(project.journal("profile")) == 1


def test_killed_it_goes_on_with_the_run_that_is_under_way(project, profile, monkeypatch):
    assert main(["scale", "--nodes", "2", "--quiet"]) == 0
    monkeypatch.setenv("STAND_IN", "waits-at=3")
    words = ["scale", "--profile", "--nodes", "2", "--quiet"]
    # Forked, so that it has the fixtures' changes as well.
    first = multiprocessing.get_context("fork").Process(target=main, args=(words,))
    first.start()
    metrics = project.workspace.trial("profile-2", "per-8-nodes-torch").attempt(1).metrics
    while not (metrics.exists() and metrics.read_text().count("\n") == 2):
        assert first.is_alive()
        time.sleep(0.01)
    first.kill()
    first.join()
    (project.path / "gate").touch()

    found = json.loads(profile("--nodes", "2", "--format", "json").out)[0]["profile"]
    assert len(found["ranks"]) == 2
    assert len(attempts_of(project, "profile-2")) == 1
    assert project.left_behind() == []


def test_a_run_that_ends_early_is_told_and_made_again(project, profile):
    assert main(["scale", "--nodes", "2"]) == 0
    said = profile("--nodes", "2", scenario="crash-at=2", code=4).err
    assert "ended before its profile" in said
    assert "shape mismatch" in said
    found = json.loads(profile("--nodes", "2", "--format", "json").out)[0]["profile"]
    assert len(found["ranks"]) == 2


def test_a_profiler_that_writes_nothing_is_told(profile):
    assert "left nothing here" in profile("--nodes", "2", scenario="no-traces", code=5).err


def test_a_profiler_that_could_not_be_read_is_not_started(project, profile):
    tool = ("--set", "global_profiler.tool=torch_memory")
    assert "got torch_memory" in profile("--nodes", "2", *tool, code=3).err
    assert project.workspace.stages() == ["baseline"]  # nor are the trials before it


def test_a_profiler_that_the_user_has_chosen_stays(project, profile):
    # The stand-in knows only the one trace; here it is about what it was asked for.
    profile("--nodes", "2")
    tool = ("--set", "global_profiler.tool=nsys")
    found = json.loads(profile("--nodes", "2", *tool, "--format", "json").out)[0]["profile"]
    assert found["tool"] == "nsys"
    (attempt,) = project.workspace.trial("profile-2", "per-8-nodes-nsys").attempts()
    assert "global_profiler.tool=nsys" in attempt.command.read_text()
    assert "global_profiler.relocate_results=true" in attempt.command.read_text()


def test_few_ranks_are_all_profiled_and_of_many_one_a_node():
    assert list(_ranks(2, 8)) == list(range(16))
    assert list(_ranks(4, 8)) == [0, 8, 16, 24]
