import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kltune.errors import LaunchError
from kltune.launchers import JobSpec, JobState, local, open_launcher
from kltune.launchers.local import LocalLauncher
from kltune.settings import Cluster

from ..stand_in.project import is_alive

IGNORE_SIGTERM = "import signal, time; signal.signal(15, signal.SIG_IGN); "


@pytest.fixture
def launcher():
    return open_launcher(Cluster())


@pytest.fixture
def job(tmp_path, launcher):
    """Submit a program; whatever is left of it when the test ends is ended."""
    handles = []

    def submit(*argv, wait_for=None, **env):
        directory = tmp_path / f"job {len(handles) + 1}"
        spec = JobSpec("a job", argv, env, directory, tmp_path, directory / "console.log")
        plan = launcher.plan(spec)
        launcher.submit(plan)
        handles.append(plan.handle)
        if wait_for is not None:
            until(lambda: wait_for in console(plan.handle))
        return plan.handle

    yield submit
    for handle in handles:
        launcher.cancel(handle, grace_s=0)


def directory_of(handle):
    return Path(handle.removeprefix(f"local://{socket.gethostname()}"))


def console(handle):
    return (directory_of(handle) / "console.log").read_text()


def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def python(code):
    return sys.executable, "-S", "-c", f"{code}; print('begun', flush=True); time.sleep(60)"


def ended(launcher, handle):
    until(lambda: launcher.status(handle).state.is_terminal)
    return launcher.status(handle)


def test_a_job_that_ends_well_has_succeeded(launcher, job):
    status = ended(launcher, job("sh", "-c", "echo said; exit 0"))
    assert (status.state, status.exit_code) == (JobState.SUCCEEDED, 0)


def test_the_exit_code_of_a_job_is_recorded(launcher, job):
    status = ended(launcher, job("sh", "-c", "exit 7"))
    assert (status.state, status.exit_code) == (JobState.FAILED, 7)


def test_a_program_that_does_not_exist_fails_and_says_so(launcher, job):
    handle = job("no-such-program")
    assert ended(launcher, handle).exit_code == 127
    assert "no-such-program" in console(handle)


def test_words_reach_the_program_as_they_are(launcher, job):
    words = ["a b", "it's", '"quoted"', "$HOME", "`id`", "*", "", "ü", "a\nb", "\\"]
    handle = job(sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    ended(launcher, handle)
    assert console(handle).strip() == repr(words)


def test_the_script_does_the_same_by_hand(launcher, job):
    handle = job("sh", "-c", 'printf "%s %s" "$GREETING" "$1"', "sh", "it's", GREETING="a 'b' $c")
    ended(launcher, handle)
    script = directory_of(handle) / "command.sh"
    done = subprocess.run([script], capture_output=True, text=True, check=True)
    assert done.stdout == console(handle) == "a 'b' $c it's"


def test_secrets_reach_the_program_and_not_the_script(launcher, job):
    handle = job("sh", "-c", "echo $WANDB_API_KEY", WANDB_API_KEY="k3y-of-mine")
    ended(launcher, handle)
    assert console(handle) == "k3y-of-mine\n"
    assert "k3y-of-mine" not in (directory_of(handle) / "command.sh").read_text()


def test_planning_has_no_effect(launcher, tmp_path):
    spec = JobSpec("a job", ("true",), {}, tmp_path / "job", tmp_path, tmp_path / "console.log")
    assert "true" in launcher.plan(spec).text
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_was_never_submitted_is_unknown(launcher, tmp_path):
    spec = JobSpec("a job", ("true",), {}, tmp_path / "job", tmp_path, tmp_path / "console.log")
    handle = launcher.plan(spec).handle
    assert launcher.status(handle).state is JobState.UNKNOWN
    launcher.cancel(handle)


def test_another_kltune_sees_and_ends_a_job_by_its_handle(launcher, job):
    handle = job(*python("import time"), wait_for="begun")
    other = LocalLauncher()
    assert other.status(handle).state is JobState.RUNNING
    other.cancel(handle)
    assert other.status(handle).state is JobState.LOST
    assert ended(launcher, handle).state is JobState.LOST


def test_another_kltune_learns_the_exit_code(launcher, job):
    handle = job("sh", "-c", "exit 3")
    ended(launcher, handle)
    assert LocalLauncher().status(handle).exit_code == 3


def test_a_job_whose_group_was_killed_is_lost(launcher, job):
    handle = job(*python("import time"), wait_for="begun")
    os.killpg(int((directory_of(handle) / "pid").read_text()), signal.SIGKILL)
    assert ended(launcher, handle).state is JobState.LOST


def test_a_pid_that_went_to_somebody_else_is_not_taken_for_the_job(launcher, job):
    handle = job(*python("import time"), wait_for="begun")
    launcher.cancel(handle)
    (directory_of(handle) / "pid").write_text(str(os.getpid()))
    assert LocalLauncher().status(handle).state is JobState.LOST
    LocalLauncher().cancel(handle, grace_s=0)


def test_a_job_that_obeys_is_not_killed(launcher, job):
    code = "import signal, sys, time; signal.signal(15, lambda *_: (print('bye'), sys.exit(0)))"
    handle = job(*python(code), wait_for="begun")
    launcher.cancel(handle)
    assert "bye" in console(handle)


def test_a_job_that_ignores_sigterm_is_killed(launcher, job):
    handle = job(*python(IGNORE_SIGTERM), wait_for="begun")
    pid = int((directory_of(handle) / "pid").read_text())
    children = psutil.Process(pid).children()
    launcher.cancel(handle, grace_s=0.2)
    assert not any(is_alive(p.pid) for p in children)


def test_cancelling_twice_and_after_the_end_is_fine(launcher, job):
    handle = job("true")
    ended(launcher, handle)
    launcher.cancel(handle)
    launcher.cancel(handle)
    assert launcher.status(handle).exit_code == 0


SPAWN = (
    "import subprocess, sys, time; "
    "p = subprocess.Popen(['sleep', '60'], start_new_session=True, env={env}); "
    "print('child', p.pid, flush=True)"
)


def test_grandchildren_in_sessions_of_their_own_are_ended(launcher, job):
    handle = job(*python(SPAWN.format(env=None)), wait_for="begun")
    grandchild = int(console(handle).split()[1])
    assert os.getsid(grandchild) != os.getsid(int((directory_of(handle) / "pid").read_text()))
    launcher.cancel(handle)
    assert not is_alive(grandchild)


def test_what_a_job_left_behind_at_its_own_end_is_ended(launcher, job):
    code = SPAWN.format(env=None)
    handle = job(sys.executable, "-c", code)
    assert ended(launcher, handle).state is JobState.SUCCEEDED
    left = int(console(handle).split()[1])
    assert is_alive(left)
    launcher.cancel(handle)
    assert not is_alive(left)


def test_a_process_that_hides_its_environment_is_found_by_its_session(launcher, job):
    code = SPAWN.format(env={}).replace("start_new_session=True", "process_group=0")
    if sys.version_info < (3, 11):
        pytest.skip("process_group is new in Python 3.11")
    handle = job(*python(code), wait_for="begun")
    hidden = int(console(handle).split()[1])
    launcher.cancel(handle)
    assert not is_alive(hidden)


def test_processes_of_others_are_left_alone(launcher, job):
    first = job(*python("import time"), wait_for="begun")
    second = job(*python("import time"), wait_for="begun")
    foreign = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        launcher.cancel(first)
        assert foreign.poll() is None
        assert launcher.status(second).state is JobState.RUNNING
    finally:
        foreign.kill()
        foreign.wait()


def test_a_job_that_is_submitted_twice_at_once_runs_once(launcher, tmp_path):
    directory = tmp_path / "job"
    argv = ("sh", "-c", f"echo ran >>'{tmp_path}/runs'")
    plan = launcher.plan(
        JobSpec("a job", argv, {}, directory, tmp_path, directory / "console.log")
    )
    with pytest.MonkeyPatch.context() as patch:
        # The first is slow to give a sign of life, as after a kill of kltune at this moment.
        patch.setattr(local, "_SUPERVISE", f"sleep 0.3; {local._SUPERVISE}")
        launcher.submit(plan)
    other = LocalLauncher()
    other.submit(plan)
    ended(other, plan.handle)
    time.sleep(0.5)
    assert (tmp_path / "runs").read_text() == "ran\n"
    launcher.cancel(plan.handle)


def test_a_directory_that_cannot_be_written_is_a_launch_error(launcher, tmp_path):
    (tmp_path / "file").write_text("")
    directory = tmp_path / "file" / "job"
    spec = JobSpec("a job", ("true",), {}, directory, tmp_path, directory / "console.log")
    with pytest.raises(LaunchError, match=r"cannot be written .*--workspace"):
        launcher.submit(launcher.plan(spec))


@pytest.mark.parametrize(
    ("argv", "env"), [(("echo", "a\0b"), {}), (("true",), {"A=B": "c"})], ids=["null", "name"]
)
def test_what_no_process_can_be_given_is_a_launch_error(launcher, tmp_path, argv, env):
    spec = JobSpec("a job", argv, env, tmp_path, tmp_path, tmp_path / "console.log")
    with pytest.raises(LaunchError, match="cannot be started"):
        launcher.submit(launcher.plan(spec))


def test_a_job_of_another_machine_is_refused_with_a_way_out(launcher):
    with pytest.raises(LaunchError, match=r"on the machine elsewhere.*remove this directory"):
        launcher.status("local://elsewhere/a/b")


def test_the_handle_of_another_launcher_is_refused(launcher):
    with pytest.raises(LaunchError, match="not the handle of a local job"):
        launcher.status("ray://head/job")
