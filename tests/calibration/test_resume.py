"""Kills at any moment: the next run goes on, and nothing is lost, doubled or left behind."""

import multiprocessing
import os
import random
import signal
import sys
from contextlib import suppress

import pytest
from optuna import Study

from kltune.cli.app import main
from kltune.launchers.local import LocalLauncher
from kltune.workspace import Workspace

from ..stand_in.project import is_alive

KILLS = 16
SEED = 7


@pytest.fixture
def spawn(project, quick_compose):
    """Start kltune in a process forked from here: it begins to work at once."""
    context = multiprocessing.get_context("fork")
    started = []

    def start(*words, cwd=project.path):
        process = context.Process(target=_kltune, args=(words, cwd))
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()
        process.close()


def _kltune(words, cwd):
    os.chdir(cwd)
    with (cwd / "output.txt").open("a") as stream:
        sys.stdout = sys.stderr = stream
        sys.exit(main(list(words)))


def test_killed_at_any_moment_it_goes_on_to_the_same_kind_of_result(project, spawn):
    project.content["verl"]["env"]["STAND_IN_STEP_S"] = "0.04"
    project.write(search={"trials": 3, "steps": 8})
    moments = random.Random(SEED)
    hit = 0
    for kill in range(KILLS):
        process = spawn("run", "--quiet")
        # Every third kill comes before kltune has read what the one before it left.
        process.join(moments.uniform(0.0, 0.15 if kill % 3 == 2 else 0.8))
        hit += process.exitcode is None
        process.kill()
        process.join()
    assert hit >= 10, "it was done before it was killed"
    assert main(["run", "--quiet"]) == 0
    project.assert_consistent()
    assert project.left_behind() == []
    roles = [trial.role.value for trial, _ in project.trials()]
    assert roles.count("reference") == 1
    assert roles.count("search") == 3
    assert roles.count("confirm-winner") >= 1
    for trial, attempts in project.trials():
        assert trial.outcome.ending.value in ("completed", "stopped"), trial
        assert trial.outcome.attempts == len(attempts)
        if trial.outcome.ending.value == "completed":
            assert trial.outcome.summary.steps == 8


class Killed(BaseException):
    """Stands for a SIGKILL: nothing in kltune catches it, and what was started goes on."""


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
@pytest.mark.parametrize("first", [1, 2])
def test_killed_before_and_after_writes_it_tells_one_story(project, monkeypatch, first):
    project.write(search={"trials": 1, "confirmations": 0})
    countdown = 0

    def tick():
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise Killed

    def between_ticks(function):
        def ticking(*args, **kwargs):
            tick()
            result = function(*args, **kwargs)
            tick()
            return result

        return ticking

    monkeypatch.setattr(os, "replace", between_ticks(os.replace))
    monkeypatch.setattr(Workspace, "decide", between_ticks(Workspace.decide))
    monkeypatch.setattr(Study, "tell", between_ticks(Study.tell))

    kills, code = 0, None
    while code is None:
        # Ever later moments, so that no two writes that belong together stop it for ever.
        countdown = first + kills // 2
        with suppress(Killed):
            code = main(["run", "--quiet"])
        kills += 1
    assert code in (0, 1)
    assert kills > 6
    project.assert_consistent()
    assert len(project.trials()) == 2
    assert [len(attempts) for _, attempts in project.trials()] == [1, 1]
    assert project.left_behind() == []


def test_real_processes_killed_twice_in_a_row_go_on(project):
    project.write("waits-at=5", search={"trials": 0, "confirmations": 0})
    for _ in range(2):
        process = project.start("run")
        wait_for_line(process, "log:")
        process.kill()
        process.communicate()
    [job] = [p for p in project.left_behind() if "main_ppo.py" in p.cmdline()[2]]
    process = project.start("run")
    wait_for_line(process, "log:")
    (project.path / "gate").touch()
    process.communicate()
    assert process.returncode == 1
    assert not is_alive(job.pid)
    [(trial, [_])] = project.trials()
    assert trial.outcome.summary.steps == 10  # the one process was followed to its end
    project.assert_consistent()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_ends_everything_and_the_same_command_goes_on(project, number):
    scenario = "waits-at=5 leaves-grandchildren"
    project.write(scenario, search={"trials": 0, "confirmations": 0})
    process = project.start("run")
    wait_for_line(process, "step 4/")
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.endswith("kltune: interrupted; the same command again goes on from here\n")
    assert "Traceback" not in said
    assert project.left_behind() == []

    (project.path / "gate").touch()
    assert main(["run", "--quiet"]) == 1
    [(trial, attempts)] = project.trials()
    assert [a.attempt.ending.value for a in attempts] == ["interrupted", "completed"]
    assert trial.outcome.summary.steps == 10
    project.assert_consistent()


@pytest.mark.parametrize("moment", ["submit", "follow", "twice"])
def test_a_signal_between_start_and_first_look_leaves_nothing_running(
    project, monkeypatch, moment
):
    project.write("hangs-at=2 ignores-sigterm", search={"trials": 0, "confirmations": 0})
    submit, cancel = LocalLauncher.submit, LocalLauncher.cancel

    def submit_then_signal(self, plan):
        submit(self, plan)
        raise KeyboardInterrupt

    def look(self, handle):
        raise KeyboardInterrupt

    def impatient(self, handle, grace_s=15.0):
        if grace_s:
            raise KeyboardInterrupt
        cancel(self, handle, grace_s)

    if moment == "submit":
        monkeypatch.setattr(LocalLauncher, "submit", submit_then_signal)
    else:
        monkeypatch.setattr("kltune.trial.attempt.time.sleep", lambda _: look(None, None))
    if moment == "twice":
        monkeypatch.setattr(LocalLauncher, "cancel", impatient)
    else:
        monkeypatch.setattr(LocalLauncher.cancel, "__defaults__", (0.1,))
    assert main(["run", "--quiet"]) == 130
    assert project.left_behind() == []
    [(_, [attempt])] = project.trials()
    assert attempt.attempt.ending.value == "interrupted"


def test_two_kltune_never_work_in_one_workspace(project, capsys):
    project.write("waits-at=5", search={"trials": 0, "confirmations": 0})
    first = project.start("run")
    wait_for_line(first, "log:")
    assert main(["run"]) == 4
    said = capsys.readouterr().err
    assert f"another kltune (process {first.pid}) is working here" in said
    assert main(["run", "--fresh"]) == 4
    first.terminate()
    first.communicate()


def wait_for_line(process, text):
    assert any(text in line for line in process.stderr)
