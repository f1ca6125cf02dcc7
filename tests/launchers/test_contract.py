"""What every launcher does, on every backend: processes, a real Ray head, SLURM's commands.

Where this machine has a SLURM controller that answers, the real one is a backend as well.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from kltune.launchers import JobState
from kltune.launchers.local import LocalLauncher
from kltune.launchers.ray_job import RayJobLauncher
from kltune.launchers.slurm import SlurmLauncher

from ..stand_in.project import is_alive
from .conftest import Jobs

NO_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
RAY = pytest.param("ray", marks=[NO_RAY, pytest.mark.ray])


def _controller_answers():
    if shutil.which("sinfo") is None:
        return False
    asked = subprocess.run(["sinfo", "--noheader"], capture_output=True, timeout=30)
    return asked.returncode == 0 and b"idle" in asked.stdout


SLURMCTLD = pytest.param(
    "slurmctld",
    marks=pytest.mark.skipif(not _controller_answers(), reason="no SLURM controller answers"),
)


@pytest.fixture(params=["local", RAY, "slurm", SLURMCTLD])
def make(request):
    """A function that makes a launcher, as often as it is called."""
    if request.param == "ray":
        address = request.getfixturevalue("ray_address")

        def make():
            launcher = RayJobLauncher(address)
            launcher._patience.every_s = 0.1
            return launcher

        return make
    if request.param.startswith("slurm"):
        if request.param == "slurm":
            request.getfixturevalue("slurm")

        def make():
            launcher = SlurmLauncher()
            launcher._patience.every_s = 0.05
            return launcher

        return make
    return LocalLauncher


@pytest.fixture
def jobs(make, tmp_path):
    jobs = Jobs(make(), tmp_path)
    yield jobs
    for handle in jobs.handles:
        jobs.launcher.cancel(handle, grace_s=0)


def python(code):
    return sys.executable, "-S", "-c", f"import os, time; print('pid', os.getpid()); {code}"


SLEEPS = python("print('begun', flush=True); time.sleep(60)")


def pid_of(jobs, handle):
    return int(jobs.console(handle).split("pid ")[1].split()[0])


def test_a_job_that_ends_well_has_succeeded(jobs):
    status = jobs.ended(jobs.submit("sh", "-c", "echo said; exit 0"))
    assert (status.state, status.exit_code) == (JobState.SUCCEEDED, 0)


def test_the_exit_code_of_a_job_is_known(jobs):
    status = jobs.ended(jobs.submit("sh", "-c", "exit 7"))
    assert (status.state, status.exit_code) == (JobState.FAILED, 7)


def test_words_and_variables_reach_the_program_as_they_are(jobs):
    words = ["a b", "it's", '"quoted"', "$HOME", "`id`", "*", "", "ü", "a\nb", "\\", "x;y", "&"]
    code = "import os, sys; print(sys.argv[1:], os.environ['GREETING'], os.getcwd())"
    greeting = "a 'b' \"c\" $d"
    handle = jobs.submit(sys.executable, "-c", code, *words, GREETING=greeting)
    jobs.ended(handle)
    assert f"{words!r} {greeting} {jobs.path}" in jobs.console(handle)


def test_all_that_a_job_printed_is_in_the_console_when_it_has_ended(jobs):
    handle = jobs.submit(*python("print('\\n'.join(f'line {n} ü' for n in range(5000)))"))
    jobs.ended(handle)
    lines = jobs.console(handle).splitlines()
    assert [line for line in lines if line.startswith("line")] == [
        f"line {n} ü" for n in range(5000)
    ]


def test_the_console_grows_while_the_job_runs(jobs):
    handle = jobs.submit(*SLEEPS, wait_for="begun")
    assert jobs.launcher.status(handle).state is JobState.RUNNING


def test_planning_has_no_effect_and_keeps_a_handle(make, tmp_path):
    jobs = Jobs(make(), tmp_path)
    spec = jobs.spec("true", WANDB_API_KEY="k3y-of-mine")
    before = sorted(tmp_path.rglob("*"))
    plan = jobs.launcher.plan(spec)
    assert "true" in plan.text
    assert "k3y-of-mine" not in plan.text
    assert sorted(tmp_path.rglob("*")) == before
    assert make().plan(spec, plan.handle) == plan


def test_a_job_that_was_never_submitted_is_unknown(make, tmp_path):
    jobs = Jobs(make(), tmp_path)
    handle = jobs.launcher.plan(jobs.spec("true")).handle
    assert jobs.launcher.status(handle).state is JobState.UNKNOWN
    jobs.launcher.collect(handle, tmp_path / "console.log")
    jobs.launcher.cancel(handle)


def test_another_kltune_reads_and_ends_a_job_by_its_handle(make, jobs):
    handle = jobs.submit(*SLEEPS, wait_for="begun")
    text = jobs.console(handle)
    other = Jobs(make(), jobs.path)
    other.consoles = jobs.consoles
    assert other.launcher.status(handle).state is JobState.RUNNING
    assert other.console(handle) == text  # nothing is written a second time
    other.launcher.cancel(handle)
    assert not is_alive(pid_of(jobs, handle))
    assert other.launcher.status(handle).state is JobState.LOST
    assert jobs.ended(handle).state is JobState.LOST


def test_another_kltune_learns_the_exit_code(make, jobs):
    handle = jobs.submit("sh", "-c", "exit 3")
    jobs.ended(handle)
    assert make().status(handle).exit_code == 3


def test_a_job_that_ignores_sigterm_is_killed(jobs):
    code = "import signal; signal.signal(15, signal.SIG_IGN); print('begun', flush=True)"
    handle = jobs.submit(*python(f"{code}; time.sleep(60)"), wait_for="begun")
    jobs.launcher.cancel(handle, grace_s=0.2)
    assert not is_alive(pid_of(jobs, handle))


def test_cancelling_twice_and_after_the_end_is_fine(jobs):
    handle = jobs.submit("true")
    jobs.ended(handle)
    jobs.launcher.cancel(handle)
    jobs.launcher.cancel(handle)
    assert jobs.launcher.status(handle).exit_code == 0
