"""Trials side by side, with the stand-in for verl."""

import random
import re
from itertools import pairwise

import pytest

from kltune.cli.app import main
from kltune.trial.records import AttemptRecord, AttemptResult, TrialRecord, read

from .test_resume import spawn, wait_for_line

__all__ = ["spawn"]


def spans(project):
    """Return when each attempt began and ended, in seconds, with the slot of its trial."""
    found = []
    for directory in project.workspace.trials("baseline"):
        slot = read(directory.trial, TrialRecord).slot
        for attempt in directory.attempts():
            began = read(attempt.plan, AttemptRecord).planned
            found.append((began, began + read(attempt.result, AttemptResult).seconds, slot))
    return sorted(found)


def most_at_once(project):
    began, ended = zip(*((b, e) for b, e, _ in spans(project)), strict=True)
    return max(sum(b <= moment < e for b, e in zip(began, ended, strict=True)) for moment in began)


def slow(project, step_s="0.05", **search):
    project.content["verl"]["env"]["STAND_IN_STEP_S"] = step_s
    project.write(search={"trials": 4, **search})


def test_as_many_trials_run_side_by_side_as_were_asked_for(project):
    slow(project)
    assert main(["run", "--quiet", "--parallel", "3"]) == 0
    project.assert_consistent()
    assert most_at_once(project) == 3
    roles = [trial.role.value for trial, _ in project.trials()]
    assert roles[0] == "reference"
    assert roles.count("search") == 4
    assert project.calibration()["calibrated"] is True


def test_one_after_the_other_nothing_overlaps(project):
    assert main(["run", "--quiet"]) == 0
    assert most_at_once(project) == 1


def test_each_sees_gpus_of_its_own(project, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,GPU-b,9")
    slow(project)
    project.write(cluster={"gpus_per_node": 2})
    assert main(["run", "--parallel", "3"]) == 0
    assert most_at_once(project) == 2  # the fifth is too few for a third
    shown = set()
    for directory in project.workspace.trials("baseline"):
        slot = read(directory.trial, TrialRecord).slot
        text = directory.attempt(1).command.read_text()
        (devices,) = re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", text)
        shown.add((slot, devices))
    assert shown == {(0, "4,5"), (1, "6,GPU-b")}
    for slot in (0, 1):
        mine = [(began, ended) for began, ended, of in spans(project) if of == slot]
        assert all(first[1] <= second[0] for first, second in pairwise(mine))


def test_too_little_room_is_told_and_used(project, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    project.write(search={"trials": 1, "confirmations": 0})
    main(["run", "--parallel", "4"])
    assert "room for 1 of 4 trials side by side, each with 1 x 1 GPUs" in capsys.readouterr().err
    assert most_at_once(project) == 1


def test_killed_at_any_moment_all_of_them_go_on(project, spawn):
    slow(project, "0.04", steps=8)
    moments = random.Random(3)
    hit = 0
    for _ in range(12):
        process = spawn("run", "--quiet", "--parallel", "3")
        process.join(moments.uniform(0.0, 0.8))
        hit += process.exitcode is None
        process.kill()
        process.join()
    assert hit >= 6, "it was done before it was killed"
    # Fewer side by side than before: what runs already is followed all the same.
    assert main(["run", "--quiet", "--parallel", "2"]) == 0
    project.assert_consistent()
    assert project.left_behind() == []
    roles = [trial.role.value for trial, _ in project.trials()]
    assert roles.count("reference") == 1
    assert roles.count("search") == 4


def test_a_polite_signal_ends_all_of_them_and_the_same_command_goes_on(project, capsys):
    project.write("waits-at=5", search={"trials": 2, "confirmations": 0})
    process = project.start("run", "--parallel", "3")
    for name in ("reference", "search-000", "search-001"):
        wait_for_line(process, f"{name}: step 4/")
    process.terminate()
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert project.left_behind() == []
    endings = [attempt.attempt.ending.value for _, (attempt,) in project.trials()]
    assert endings == ["interrupted"] * 3
    assert main(["status"]) == 0
    assert "not ended: reference, search-000, search-001" in capsys.readouterr().out
    (project.path / "gate").touch()
    main(["run", "--quiet", "--parallel", "3"])
    project.assert_consistent()


def interrupted(project, *words):
    """Have three trials run side by side, and interrupt them."""
    project.write("waits-at=5", search={"trials": 2, "confirmations": 0})
    process = project.start("run", *words)
    for name in ("reference", "search-000", "search-001"):
        wait_for_line(process, f"{name}: step 4/")
    process.terminate()
    process.communicate()
    (project.path / "gate").touch()


def again(project):
    """When each attempt of the second kltune began and ended."""
    began = max(e["time"] for e in project.journal("attempt-ended") if e["attempt"] == 1)
    return [span for span in spans(project) if span[0] >= began]


def test_interrupted_they_do_not_go_on_over_the_width_of_the_next_command(project):
    interrupted(project, "--parallel", "3")
    main(["run", "--quiet"])
    project.assert_consistent()
    second = again(project)
    assert len(second) == 3
    assert all(first[1] <= after[0] for first, after in pairwise(second))


def test_interrupted_they_go_on_with_the_gpus_that_are_left(project, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    interrupted(project, "--parallel", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    main(["run", "--quiet", "--parallel", "3"])
    project.assert_consistent()
    assert len(again(project)) == 3
    for name in ("reference", "search-000", "search-001"):
        assert "CUDA_VISIBLE_DEVICES=7\n" in project.attempt(name, 2).command.read_text()


@pytest.mark.parametrize("width", [0, -1])
def test_a_width_that_is_none(project, width):
    assert main(["run", "--parallel", str(width)]) == 3
