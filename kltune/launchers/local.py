"""Runs a job as a process of this machine, in a session and process group of its own.

A job outlives the kltune that started it. Its directory tells the next one everything: ``pid``
while it runs, ``exit_code`` once it has ended. A process belongs to a job if it carries the job's
token in its environment, which every child inherits; Ray's workers, which leave the process
group, are found by it too. Ray's agents write their title over their environment, so whoever
shares a session with a process of the job belongs to it as well: that session is the job's own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from kltune.errors import LaunchError
from kltune.launchers.base import JobSpec, JobState, JobStatus, LaunchPlan
from kltune.launchers.script import environment, script
from kltune.workspace import cannot_write, write_text

#: Marks every process of a job; its value is the job's directory.
TOKEN = "KLTUNE_JOB"  # noqa: S105 - the name of a variable

_PID = "pid"
_EXIT_CODE = "exit_code"

# Records the pid before and the exit code after the command, which are the words that follow. Only
# one can create the file of the pid (-C), so a job that was submitted twice runs once. The code is
# moved into place, so that it is there whole or not at all.
_SUPERVISE = (
    'set -C; echo "$$" >"$0/pid" || exit; set +C; "$@"; code=$?; '
    'echo "$code" >"$0/exit_code.part" && mv "$0/exit_code.part" "$0/exit_code"; exit "$code"'
)


class LocalLauncher:
    """Runs jobs on this machine; see the module's docstring.

    Args:
        devices: GPUs that jobs share, as CUDA names them: each sees those of its slot. None of
            them leaves every job to what the machine shows.
    """

    def __init__(self, devices: Sequence[str] = ()) -> None:
        self.devices = tuple(devices)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def room(self, nodes: int, gpus_per_node: int) -> int | None:
        """Return how many jobs have devices of their own."""
        return len(self.devices) // (nodes * gpus_per_node) if self.devices else None

    def plan(self, spec: JobSpec, handle: str | None = None) -> LaunchPlan:
        """Return the script that ``submit`` runs."""
        if self.devices:
            spec = replace(spec, env={**spec.env, **self._devices_of(spec)})
        where = f"local://{socket.gethostname()}{spec.directory.resolve()}"
        return LaunchPlan(spec, handle or where, script(spec))

    def submit(self, plan: LaunchPlan) -> None:
        """Start the script as the leader of a new session."""
        spec = plan.spec
        directory = spec.directory.resolve()
        write_text(directory / "command.sh", plan.text, mode=0o755)
        variables = {**os.environ, **environment(spec), TOKEN: str(directory)}
        try:
            (directory / _PID).unlink(missing_ok=True)
            with spec.console.open("ab") as console:
                self._children[plan.handle] = subprocess.Popen(  # noqa: S603 - words, no shell text
                    ["/bin/sh", "-c", _SUPERVISE, str(directory), *spec.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    cwd=spec.cwd,
                    env=variables,
                    start_new_session=True,
                )
        except OSError as error:
            if error.filename is not None and Path(str(error.filename)) != Path("/bin/sh"):
                raise cannot_write(Path(str(error.filename)), error) from error
            raise LaunchError(f"{spec.name}: cannot be started ({error})") from error
        except ValueError as error:
            # A null byte in a word, or "=" in the name of a variable.
            raise LaunchError(f"{spec.name}: cannot be started ({error})") from error

    def status(self, handle: str) -> JobStatus:
        """Return where the job is, from its directory and the table of processes."""
        directory = _directory(handle)
        child = self._children.get(handle)
        if child is not None:
            child.poll()  # reaps it
        code = _read_number(directory / _EXIT_CODE)
        if code is not None:
            return JobStatus(JobState.SUCCEEDED if code == 0 else JobState.FAILED, code)
        if child is not None and child.returncode is None:
            return JobStatus(JobState.RUNNING)
        pid = _read_number(directory / _PID)
        if pid is not None and _is_of(pid, directory):
            return JobStatus(JobState.RUNNING)
        # It may have ended between the two looks.
        code = _read_number(directory / _EXIT_CODE)
        if code is not None:
            return JobStatus(JobState.SUCCEEDED if code == 0 else JobState.FAILED, code)
        started = pid is not None or child is not None
        return JobStatus(JobState.LOST if started else JobState.UNKNOWN)

    def collect(self, handle: str, console: Path) -> None:
        """Do nothing: the job writes its console itself."""

    def cancel(self, handle: str, grace_s: float = 15.0) -> None:
        """End every process of the job, by SIGTERM to its group first."""
        directory, sessions = _directory(handle), set[int]()
        _signal(_processes(directory, sessions), signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while (left := _processes(directory, sessions)) and time.monotonic() < deadline:
            self._reap(handle)
            time.sleep(0.1)
        while left:
            # Again and again: a process may have been started while we looked.
            _signal(left, signal.SIGKILL)
            time.sleep(0.05)
            self._reap(handle)
            left = _processes(directory, sessions)
        self._reap(handle)

    def _devices_of(self, spec: JobSpec) -> dict[str, str]:
        first = spec.slot * spec.gpus_per_node
        own = self.devices[first : first + spec.gpus_per_node]
        if len(own) < spec.gpus_per_node:
            raise LaunchError(
                f"{spec.name}: place {spec.slot + 1} for trials side by side needs GPUs "
                f"{first} to {first + spec.gpus_per_node - 1}, and this machine shows "
                f"{len(self.devices)}; lower cluster.parallel"
            )
        return {"CUDA_VISIBLE_DEVICES": ",".join(own)}

    def _reap(self, handle: str) -> None:
        child = self._children.get(handle)
        if child is not None:
            child.poll()


def _directory(handle: str) -> Path:
    rest = handle.removeprefix("local://")
    host, slash, path = rest.partition("/")
    if rest == handle or not slash:
        raise LaunchError(f"{handle}: not the handle of a local job")
    if host != socket.gethostname():
        raise LaunchError(
            f"{slash}{path}: was started on the machine {host}, and only there can it be seen "
            "whether it still runs; run kltune there or, if that machine is gone, remove this "
            "directory and run the same command again"
        )
    return Path(slash + path)


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _is_of(pid: int, directory: Path) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(TOKEN) == str(
            directory
        )
    except (psutil.Error, OSError):
        return False


def _processes(directory: Path, sessions: set[int]) -> list[psutil.Process]:
    """Return the job's processes; their sessions are added to those that are known already."""
    alive = [(p, s) for p in psutil.process_iter() if (s := _session(p)) is not None]
    marked = {p.pid for p, _ in alive if _is_of(p.pid, directory)}
    sessions.update(session for p, session in alive if p.pid in marked)
    return [p for p, session in alive if p.pid in marked or session in sessions]


def _session(process: psutil.Process) -> int | None:
    try:
        ended = process.status() == psutil.STATUS_ZOMBIE
        return None if ended else os.getsid(process.pid)
    except (psutil.Error, OSError):
        return None


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Signal the groups that these processes lead, and each of them that is in another's."""
    groups = set()
    for process in processes:
        try:
            group = os.getpgid(process.pid)
            if group == process.pid:
                groups.add(group)
                os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            continue
    for process in processes:
        try:
            if os.getpgid(process.pid) not in groups:
                process.send_signal(number)
        except (psutil.Error, ProcessLookupError, PermissionError):
            continue
