import json
import subprocess
import sys

import pytest

from kltune.cli.app import main
from kltune.errors import LaunchError
from kltune.launchers import JobState, launcher_of
from kltune.launchers.slurm import SlurmLauncher

from .conftest import Jobs, until


@pytest.fixture
def jobs(slurm, tmp_path):
    jobs = Jobs(_launcher(), tmp_path)
    yield jobs
    (slurm / "down").unlink(missing_ok=True)
    for handle in jobs.handles:
        jobs.launcher.cancel(handle, grace_s=0)


def _launcher(*options):
    launcher = SlurmLauncher(options)
    launcher._patience.every_s = 0.0
    return launcher


def change(slurm, **what):
    """Change what SLURM says about the only job."""
    (path,) = slurm.glob("job-*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **what}))


def test_a_job_that_gets_no_nodes_says_what_was_asked_for_and_what_there_is(slurm, jobs):
    (slurm / "full").touch()
    handle = jobs.submit("true", nodes=2, gpus=8)
    status = jobs.launcher.status(handle)
    assert status.state is JobState.PENDING
    for words in ("(Resources)", "--nodes=2 --gpus-per-node=8", "main* 2 nodes idle gpu:8"):
        assert words in status.detail
    jobs.launcher.cancel(handle)
    assert jobs.launcher.status(handle).state is JobState.LOST


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("CONFIGURING", JobState.PENDING),
        ("SUSPENDED", JobState.RUNNING),
        ("A_NEW_WORD", JobState.RUNNING),
        ("NODE_FAIL", JobState.LOST),
        ("TIMEOUT", JobState.LOST),
        ("PREEMPTED", JobState.LOST),
        ("OUT_OF_MEMORY", JobState.FAILED),
    ],
)
def test_slurms_words(slurm, jobs, word, state):
    (slurm / "full").touch()
    handle = jobs.submit("true")
    change(slurm, state=word)
    status = jobs.launcher.status(handle)
    assert status.state is state
    if state.is_terminal:
        assert word in status.detail


def test_the_accounting_knows_what_squeue_has_forgotten(slurm, jobs):
    (slurm / "forgets").touch()
    handle = jobs.submit(sys.executable, "-S", "-c", "import time; time.sleep(60)")
    until(lambda: jobs.launcher.status(handle).state is JobState.RUNNING)
    jobs.launcher.cancel(handle)
    status = jobs.launcher.status(handle)
    assert (status.state, status.detail) == (JobState.LOST, "SLURM: CANCELLED")


def test_without_an_accounting_the_job_itself_has_recorded_its_end(slurm, jobs):
    for name in ("forgets", "no-accounting"):
        (slurm / name).touch()
    handle = jobs.submit("sh", "-c", "exit 5")
    assert jobs.ended(handle).exit_code == 5
    lost = jobs.submit("sleep", "60")
    until(lambda: jobs.launcher.status(lost).state is JobState.RUNNING)
    jobs.launcher.cancel(lost)
    assert jobs.launcher.status(lost).state is JobState.LOST


def test_a_controller_that_is_away_for_a_moment_is_borne_with(slurm, jobs):
    handle = jobs.submit("sleep", "60")
    until(lambda: jobs.launcher.status(handle).state is JobState.RUNNING)
    (slurm / "down").touch()
    assert jobs.launcher.status(handle).state is JobState.RUNNING
    jobs.launcher._patience.patience_s = 0.0
    with pytest.raises(LaunchError, match="Unable to contact slurm controller"):
        jobs.launcher.status(handle)


def test_a_refusal_is_passed_on_in_slurms_words(slurm, tmp_path):
    jobs = Jobs(_launcher("--partition=nowhere"), tmp_path)
    with pytest.raises(LaunchError, match="invalid partition specified: nowhere"):
        jobs.submit("true")


def test_a_machine_without_slurm_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    jobs = Jobs(SlurmLauncher(), tmp_path)
    with pytest.raises(LaunchError, match="sbatch: not found"):
        jobs.submit("true")


def test_the_script_asks_for_what_the_job_needs(slurm, tmp_path):
    jobs = Jobs(_launcher("--partition=gpu", "--time=04:00:00"), tmp_path)
    text = jobs.launcher.plan(jobs.spec("true", nodes=4, gpus=8)).text
    for option in ("--nodes=4", "--gpus-per-node=8", "--partition=gpu", "--time=04:00:00"):
        assert f"#SBATCH {option}\n" in text
    assert "ray start --head" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    own = Jobs(_launcher("--gres=gpu:h200:8"), tmp_path)
    assert "--gpus-per-node" not in own.launcher.plan(own.spec("true", gpus=8)).text


def test_a_handle_says_which_launcher_can_end_it(slurm, jobs):
    handle = jobs.submit("sleep", "60")
    until(lambda: jobs.launcher.status(handle).state is JobState.RUNNING)
    launcher_of(handle).cancel(handle)
    assert jobs.launcher.status(handle).state is JobState.LOST
    with pytest.raises(LaunchError, match="no launcher"):
        launcher_of("k8s://pod")
    with pytest.raises(LaunchError, match="not the handle"):
        jobs.launcher.status("local://host/path")


def test_a_baseline_under_slurm(slurm, project, capsys, monkeypatch):
    monkeypatch.setattr("kltune.launchers.patience.Patience.status", lambda _, __, ask: ask())
    search = {"trials": 0, "confirmations": 0, "steps": 3}
    project.write(cluster={"launcher": "slurm"}, search=search)
    main(["baseline", "--format", "json"])
    ((trial, [result]),) = project.trials()
    assert (trial.outcome.summary.steps, result.exit_code) == (3, 0)
    assert project.record("reference").handle.startswith("slurm://kltune-")


def test_trials_wait_for_one_another_in_the_queue_of_slurm(slurm, project, monkeypatch):
    monkeypatch.setattr("kltune.launchers.patience.Patience.status", lambda _, __, ask: ask())
    project.write(cluster={"launcher": "slurm"}, search={"trials": 2, "steps": 3})
    main(["baseline", "--quiet", "--parallel", "3"])
    project.assert_consistent()
    handles = {project.record(trial.name).handle for trial, _ in project.trials()}
    assert len(handles) == len(project.trials()) >= 3


def test_a_job_that_never_gets_nodes_is_given_up_with_the_evidence(
    slurm, project, capsys, monkeypatch
):
    monkeypatch.setattr("kltune.launchers.patience.Patience.status", lambda _, __, ask: ask())
    (slurm / "full").touch()
    project.write(cluster={"launcher": "slurm", "pending_minutes": 0.001})
    assert main(["baseline"]) == 4
    said = capsys.readouterr().err
    assert "got no machines" in said
    assert "main* 2 nodes idle gpu:8" in said
    ((_, results),) = project.trials()
    assert len(results) == 3  # the same settings twice more
    settings = {result.attempt.change.settings.key() for result in results}
    assert len(settings) == 1
