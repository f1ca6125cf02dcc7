import sys
from importlib.util import find_spec

import pytest

from kltune.cli.app import main
from kltune.errors import LaunchError
from kltune.launchers import JobState, JobStatus
from kltune.launchers.ray_job import RayJobLauncher

from ..calibration.test_parallel import most_at_once
from .conftest import Jobs

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")


@pytest.fixture
def jobs(ray_address, tmp_path):
    launcher = RayJobLauncher(ray_address)
    launcher._patience.every_s = 0.1
    jobs = Jobs(launcher, tmp_path)
    yield jobs
    for handle in jobs.handles:
        launcher.cancel(handle, grace_s=0)


WORKERS = """
import os, ray, time
ray.init(log_to_driver=False)
@ray.remote(num_gpus=1)
class Worker:
    def greeting(self):
        return os.environ.get("GREETING")
workers = [Worker.remote() for _ in range(2)]
print(ray.get([w.greeting.remote() for w in workers]), flush=True)
time.sleep(60)
"""


@pytest.mark.ray
def test_variables_reach_the_workers_and_a_cancelled_job_gives_its_gpus_back(jobs):
    handle = jobs.submit(
        sys.executable, "-c", WORKERS, wait_for="['hello', 'hello']", GREETING="hello"
    )
    assert len(jobs.launcher._live_actors(handle)) == 2
    jobs.launcher.cancel(handle)
    assert jobs.launcher.status(handle).state is JobState.LOST
    assert jobs.launcher._live_actors(handle) == []
    # Both GPUs are free again, or this would wait for ever.
    jobs.submit(sys.executable, "-c", WORKERS, wait_for="['again', 'again']", GREETING="again")


@pytest.mark.ray
def test_trials_run_side_by_side_on_a_cluster_as_far_as_it_has_room(project, ray_address, capsys):
    project.content["verl"]["env"]["STAND_IN_STEP_S"] = "0.5"
    project.write(
        cluster={"launcher": "ray", "ray": {"address": ray_address}},
        search={"trials": 2, "steps": 6, "confirmations": 0},
    )
    main(["baseline", "--parallel", "4"])
    assert "room for 2 of 4 trials side by side" in capsys.readouterr().err
    project.assert_consistent()
    assert [len(attempts) for _, attempts in project.trials()] == [1, 1, 1]
    assert most_at_once(project) == 2


@pytest.mark.ray
def test_what_was_asked_for_and_what_the_cluster_has(jobs):
    handle = jobs.submit("true", nodes=4, gpus=8)
    room = jobs.launcher._room(handle, {"nodes": "4", "gpus_per_node": "8"})
    assert room == "asked for 4 nodes of 8 GPUs; the cluster has 1 nodes with 2 GPUs"
    asked = [(1, 1), (1, 2), (2, 1), (1, 3)]
    assert [jobs.launcher.room(*size) for size in asked] == [2, 1, 1, 0]


def test_a_cluster_that_does_not_answer_is_told(tmp_path):
    jobs = Jobs(RayJobLauncher("http://127.0.0.1:9"), tmp_path)
    with pytest.raises(LaunchError, match=r"127\.0\.0\.1:9: .*cluster\.ray\.address"):
        jobs.submit("true")


def test_a_cluster_that_is_away_for_a_moment_is_borne_with(tmp_path, monkeypatch):
    jobs = Jobs(RayJobLauncher("http://127.0.0.1:9"), tmp_path)
    handle = jobs.launcher.plan(jobs.spec("true")).handle
    seen = jobs.launcher._patience.status(handle, lambda: JobStatus(JobState.RUNNING))
    jobs.launcher._patience.every_s = 0.0
    assert jobs.launcher.status(handle) == seen
    jobs.launcher.collect(handle, tmp_path / "console.log")
    jobs.launcher._patience.patience_s = 0.0
    with pytest.raises(LaunchError, match="job server"):
        jobs.launcher.status(handle)
