"""Real raylets with virtual GPUs on this machine, and real verl over two of them."""

import json
import os
import signal
import sys
import time
from importlib.util import find_spec

import psutil
import pytest

from kltune.cli.app import main
from kltune.launchers import JobState, open_launcher
from kltune.launchers.local import TOKEN
from kltune.launchers.virtual_nodes import VirtualNodesLauncher
from kltune.settings import Cluster
from kltune.verl.command import ATTEMPT_ENV
from kltune.workspace import Workspace

from .conftest import Jobs, until

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

PROGRAM = """
import os, ray, time
ray.init(log_to_driver=False)
gpus = sorted(node["Resources"].get("GPU") for node in ray.nodes())
@ray.remote(num_gpus=1)
def greeting():
    return os.environ.get("GREETING")
print(gpus, ray.get([greeting.remote() for _ in range(2)]), "begun", flush=True)
time.sleep(300)
"""


def left_behind(path):
    """Return the processes of jobs below a directory."""

    def token(process):
        try:
            ended = process.status() == psutil.STATUS_ZOMBIE
            return "" if ended else process.environ().get(TOKEN, "")
        except (psutil.Error, OSError):
            return ""

    return [p for p in psutil.process_iter() if token(p).startswith(str(path))]


def test_several_nodes_of_one_machine_are_virtual():
    assert isinstance(open_launcher(Cluster(nodes=2)), VirtualNodesLauncher)
    assert not isinstance(open_launcher(Cluster(nodes=1)), VirtualNodesLauncher)


@pytest.mark.ray
@pytest.mark.parametrize("killed", [False, True], ids=["cancelled", "killed, then cancelled"])
def test_two_nodes_come_up_for_a_job_and_end_with_it(tmp_path, killed):
    jobs = Jobs(VirtualNodesLauncher(), tmp_path)
    try:
        variables = {**ATTEMPT_ENV, "GREETING": "hello"}
        handle = jobs.submit(sys.executable, "-c", PROGRAM, nodes=2, gpus=1, **variables)
        until(lambda: "begun" in jobs.console(handle), seconds=90)
        assert "[1.0, 1.0] ['hello', 'hello']" in jobs.console(handle)
        assert len([p for p in left_behind(tmp_path) if p.name() == "raylet"]) == 2
        if killed:
            # What had started the nodes is gone; they are still found by the job's token.
            pid = int((tmp_path / "job 1" / "pid").read_text())
            os.killpg(pid, signal.SIGKILL)
            assert jobs.ended(handle).state is JobState.LOST
    finally:
        began = time.monotonic()
        for handle in jobs.handles:
            jobs.launcher.cancel(handle, grace_s=60)
    # A node that Ray lets drain takes 30 s, and whoever cancels has 15 s of patience.
    assert time.monotonic() - began < 25
    assert left_behind(tmp_path) == []


@pytest.mark.verl
@pytest.mark.skipif(find_spec("transfer_queue") is None, reason="needs kltune[cpu]")
def test_verl_trains_over_two_nodes_and_starts_at_its_reference(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    halves = {
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 16,
        "critic.ppo_micro_batch_size_per_gpu": 16,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 32,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 32,
    }
    settings = {
        "preset": "cpu-tiny",
        "cluster": {"nodes": 2},
        "search": {"trials": 0, "confirmations": 0, "steps": 2},
        "verl": {"overrides": halves},
    }
    (tmp_path / "kltune.yaml").write_text(json.dumps(settings))
    main(["baseline", "--format", "json"])
    (trial,) = json.loads(capsys.readouterr().out)["trials"]
    assert trial["outcome"]["ending"] == "completed"
    attempt = Workspace(tmp_path / "kltune-runs").trial("baseline", "reference").attempt(1)
    steps = [json.loads(line) for line in attempt.metrics.read_text().splitlines()]
    first = next(step["data"] for step in steps if step["step"] == 1)
    assert first["actor/reward_kl_penalty"] == 0.0
    assert first["training/rollout_probs_diff_mean"] < 1e-5
    assert left_behind(tmp_path) == []
