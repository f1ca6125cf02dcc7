"""The contract of every launcher: a way to run one verl process and to end it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What is to be run.

    Attributes:
        name: for people and for the backend's listings.
        argv: the command, word by word; no shell reads it.
        env: variables set on top of the environment of the launcher.
        directory: the attempt's directory, where the launcher keeps its own files.
        cwd: where the job runs; the user's relative paths are meant from there.
        console: file that receives standard output and error.
        nodes, gpus_per_node: what the job needs.
        slot: which of the places for jobs side by side it has, from 0; no other job has it.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    directory: Path
    cwd: Path
    console: Path
    nodes: int = 1
    gpus_per_node: int = 0
    slot: int = 0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Exactly what ``submit`` will do, as a value that can be printed.

    Attributes:
        spec: what it was made from.
        handle: the job's handle. It is known before the job exists, so that it can be saved
            before anything else and another process can pick the job up.
        text: the script that does the same by hand.
    """

    spec: JobSpec
    handle: str
    text: str


class JobState(Enum):
    """Where a job is in its life."""

    UNKNOWN = "unknown"
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.LOST)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """State of a job, and its exit code where the backend knows one.

    ``UNKNOWN`` is a job that was never started; ``PENDING`` one that waits for its machines;
    ``LOST`` one that ended without an exit code, because something killed it.

    Attributes:
        detail: the backend's own words: why a job waits (with what the cluster has), or how it
            was lost; empty where there is nothing to say.
    """

    state: JobState
    exit_code: int | None = None
    detail: str = ""


class Launcher(Protocol):
    """Runs jobs.

    1. ``plan`` has no effect; ``submit`` does what the plan says and nothing else.
    2. Every other method takes a handle, also that of a job which another process submitted.
    3. ``cancel`` returns when nothing of the job is left; it may be called twice, and on a job
       that has ended by itself, where it clears away what the job left behind.
    4. Nothing but the job's own processes is ever ended.
    5. Each method may raise ``LaunchError`` when the backend does not answer; the job goes on.
    """

    def room(self, nodes: int, gpus_per_node: int) -> int | None:
        """Return how many jobs of this size can run side by side.

        Returns:
            None where the backend has them wait for one another itself, or where nothing limits
            them.
        """
        ...

    def plan(self, spec: JobSpec, handle: str | None = None) -> LaunchPlan:
        """Return what ``submit`` would do.

        Args:
            spec: what is to be run.
            handle: that of an earlier plan of the same job, which is kept; None makes a new one.

        Raises:
            LaunchError: this launcher cannot run such a job.
        """
        ...

    def submit(self, plan: LaunchPlan) -> None:
        """Start the job.

        Raises:
            LaunchError: it could not be started.
        """
        ...

    def status(self, handle: str) -> JobStatus:
        """Return where the job is; cheap enough to be asked several times a second."""
        ...

    def collect(self, handle: str, console: Path) -> None:
        """Bring the console file up to date with what the job has printed.

        A job that writes the file itself needs nothing done. After the job's end, and before
        ``cancel``, the file is complete when this returns.
        """
        ...

    def cancel(self, handle: str, grace_s: float = 15.0) -> None:
        """End the job: ask politely, wait at most ``grace_s`` seconds, then kill what is left.

        Raises:
            LaunchError: something of it is still there, with what that is.
        """
        ...
