import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from kltune.launchers import JobSpec

FAKE = Path(__file__).with_name("fake_slurm.py")


@pytest.fixture(scope="session")
def ray_address():
    """A real Ray head on the loopback interface, with its job server; yields its address."""
    # Each of its processes has a port that another Ray of this machine may hold.
    ports = [_free_port() for _ in range(5)]
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ray")),
                "start",
                "--head",
                "--node-ip-address=127.0.0.1",
                f"--port={ports[0]}",
                f"--dashboard-port={ports[1]}",
                "--dashboard-host=127.0.0.1",
                f"--dashboard-agent-listen-port={ports[2]}",
                f"--dashboard-agent-grpc-port={ports[3]}",
                f"--ray-client-server-port={ports[4]}",
                "--num-cpus=4",
                "--num-gpus=2",
                "--object-store-memory=100000000",
                f"--temp-dir={folder}",
                "--block",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # From 2.60 on a head wants a token unless told otherwise.
            env={**_without("RAY_ADDRESS"), "RAY_AUTH_MODE": "disabled"},
        )
        try:
            yield _until_up(f"http://127.0.0.1:{ports[1]}", process)
        finally:
            process.terminate()  # ends all of the head's processes
            process.wait(timeout=60)


def _without(name):
    return {key: value for key, value in os.environ.items() if key != name}


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _until_up(address, process):
    from ray.job_submission import JobSubmissionClient

    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        try:
            JobSubmissionClient(address).list_jobs()
        except (ConnectionError, RuntimeError):
            time.sleep(0.3)
        else:
            return address
    raise AssertionError("Ray's job server did not come up")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Programs that behave like SLURM's, first on PATH; returns their directory."""
    home = tmp_path / "slurm"
    (home / "bin").mkdir(parents=True)
    for name in ("sbatch", "squeue", "sacct", "scancel", "sinfo", "scontrol", "srun"):
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} {name} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("FAKE_SLURM", str(home))
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("kltune.launchers.slurm._POLL_S", 0.05)
    return home


class Jobs:
    """Submits programs and ends whatever is left of them."""

    def __init__(self, launcher, path):
        self.launcher = launcher
        self.path = path
        self.handles = []
        self.consoles = {}

    def spec(self, *argv, nodes=1, gpus=0, **env):
        directory = self.path / f"job {len(self.handles) + 1}"
        directory.mkdir(exist_ok=True)
        console = directory / "console.log"
        return JobSpec("a job", argv, env, directory, self.path, console, nodes, gpus)

    def submit(self, *argv, wait_for=None, **options):
        spec = self.spec(*argv, **options)
        plan = self.launcher.plan(spec)
        self.launcher.submit(plan)
        self.handles.append(plan.handle)
        self.consoles[plan.handle] = spec.console
        if wait_for is not None:
            until(lambda: wait_for in self.console(plan.handle))
        return plan.handle

    def console(self, handle):
        self.launcher.collect(handle, self.consoles[handle])
        return self.consoles[handle].read_text()

    def ended(self, handle):
        until(lambda: self.launcher.status(handle).state.is_terminal)
        return self.launcher.status(handle)


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
