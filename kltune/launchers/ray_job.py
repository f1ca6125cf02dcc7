"""Runs a job on a Ray cluster that is up, through Ray's Job Submission API.

The job's driver runs on the cluster's head; its variables travel in the job's runtime environment
and so reach every worker of it. What it prints is copied into the attempt's console file. The
job goes on when this machine goes away: the handle holds the cluster's address and the id of the
submission, which is chosen here, before the job exists.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kltune.errors import LaunchError
from kltune.launchers.base import JobSpec, JobState, JobStatus, LaunchPlan
from kltune.launchers.patience import Patience
from kltune.verl.secrets import redact, redact_values
from kltune.workspace import cannot_write, write_text

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

#: Ray's words for the state of a job. It stops jobs only when somebody asks for it.
STATES = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "STOPPED": JobState.LOST,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
}

DEFAULT_ADDRESS = "http://127.0.0.1:8265"

#: Where the user's directory is not on the head, only absolute paths mean the same there.
_ENTER = 'if [ -d "$0" ]; then cd "$0"; fi; exec "$@"'

#: Seconds for a cluster that has just come up to take a job.
_START_S = 60.0

#: Seconds between two looks at a log, and bytes of it per second where it has grown long.
_LOG_S = 1.0
_LOG_BYTES_PER_S = 1_000_000

#: Seconds that a stopped job may take to give everything back after it was asked and killed.
_STOP_S = 60.0


class RayJobLauncher:
    """Runs jobs on a Ray cluster; see the module's docstring.

    Args:
        address: of the cluster's dashboard, e.g. ``http://head:8265``.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS):
        self.address = address.rstrip("/")
        self._clients: dict[str, JobSubmissionClient] = {}
        self._patience = Patience(every_s=1.0)
        self._next_log: dict[str, float] = {}
        self._complete: set[str] = set()

    def room(self, nodes: int, gpus_per_node: int) -> int | None:
        """Return how many jobs the nodes that are up could hold, were the cluster empty."""
        where = f"ray://{self.address}/"
        with self._talking(where):
            gpus = _gpus_by_node(where)
        return sum(int(gpu // gpus_per_node) for gpu in gpus) // nodes

    def plan(self, spec: JobSpec, handle: str | None = None) -> LaunchPlan:
        """Return the submission as JSON."""
        chosen = handle or f"ray://{self.address}/kltune-{uuid.uuid4().hex[:16]}"
        request = {
            "address": self.address,
            "submission_id": _id(chosen),
            "entrypoint": redact(_entrypoint(spec)),
            "runtime_env": {"env_vars": redact_values(_variables(spec))},
            "metadata": {"name": spec.name},
        }
        return LaunchPlan(spec, chosen, json.dumps(request, indent=2, ensure_ascii=False) + "\n")

    def submit(self, plan: LaunchPlan) -> None:
        """Hand the job to the cluster."""
        spec = plan.spec
        write_text(spec.directory / "ray-job.json", plan.text)
        try:
            spec.console.touch()
        except OSError as error:
            raise cannot_write(spec.console, error) from error
        with self._talking(plan.handle):
            self._submit(plan)
        self._patience.forget(plan.handle)

    def _submit(self, plan: LaunchPlan) -> None:
        spec, deadline = plan.spec, time.monotonic() + _START_S
        asked = {"nodes": str(spec.nodes), "gpus_per_node": str(spec.gpus_per_node)}
        while True:
            try:
                self._client(plan.handle).submit_job(
                    entrypoint=_entrypoint(spec),
                    submission_id=_id(plan.handle),
                    runtime_env={"env_vars": _variables(spec)},
                    metadata={"name": spec.name, **asked},
                )
            except RuntimeError as error:
                # A head that has just come up has no agent yet that starts jobs.
                if "try again later" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(1)
            else:
                return

    def status(self, handle: str) -> JobStatus:
        """Return where the job is, as the cluster says."""
        return self._patience.status(handle, lambda: self._ask(handle))

    def collect(self, handle: str, console: Path) -> None:
        """Append what the job has printed since the last time to the console file."""
        state = self.status(handle).state
        if state is JobState.UNKNOWN or handle in self._complete:
            return
        if not state.is_terminal and time.monotonic() < self._next_log.get(handle, 0.0):
            return
        try:
            with self._talking(handle):
                log = self._client(handle).get_job_logs(_id(handle)).encode()
        except LaunchError:
            if state.is_terminal:
                raise
            # ``status`` says when a cluster has not answered for too long.
            self._next_log[handle] = time.monotonic() + _LOG_S
            return
        try:
            with console.open("ab") as stream:
                stream.write(log[stream.tell() :])
        except OSError as error:
            raise cannot_write(console, error) from error
        # Ray hands out the log as a whole: a long one is asked for less often.
        self._next_log[handle] = time.monotonic() + max(_LOG_S, len(log) / _LOG_BYTES_PER_S)
        if state.is_terminal:
            self._complete.add(handle)

    def cancel(self, handle: str, grace_s: float = 15.0) -> None:
        """Stop the job, and return when the cluster has no live actor of it any more."""
        deadline = time.monotonic() + grace_s + _STOP_S
        while not (status := self._ask(handle)).state.is_terminal:
            if status.state is JobState.UNKNOWN:
                return
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"{handle}: was asked to stop and is still {status.state.value}; stop it by "
                    f"hand: ray job stop --address {_address(handle)} {_id(handle)}"
                )
            # Again and again: Ray answers True for a job that is still pending, and does nothing
            # (ray#56102).
            with self._talking(handle), contextlib.suppress(RuntimeError):
                self._client(handle).stop_job(_id(handle))
            time.sleep(0.5)
        self._patience.forget(handle)
        while left := self._live_actors(handle):
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"{handle}: the job has ended, and {len(left)} of its actors have not "
                    f"({', '.join(left[:5])}); they hold GPUs until they are ended by hand"
                )
            time.sleep(0.5)

    def _ask(self, handle: str) -> JobStatus:
        with self._talking(handle):
            try:
                info = self._client(handle).get_job_info(_id(handle))
            except RuntimeError as error:
                if "does not exist" in str(error) or "404" in str(error):
                    return JobStatus(JobState.UNKNOWN)
                raise
        state = STATES.get(str(info.status), JobState.UNKNOWN)
        detail = str(info.message or "")
        if state is JobState.PENDING:
            detail = f"{detail} {self._room(handle, info.metadata or {})}".strip()
        code = info.driver_exit_code if state in (JobState.SUCCEEDED, JobState.FAILED) else None
        return JobStatus(state, code, detail)

    def _room(self, handle: str, asked: Mapping[str, str]) -> str:
        """Return what was asked for, and what the cluster has."""
        gpus: list[float] = []
        with contextlib.suppress(Exception):  # words for people; the status stands without them
            gpus = _gpus_by_node(handle)
        return (
            f"asked for {asked.get('nodes', '?')} nodes of {asked.get('gpus_per_node', '?')} "
            f"GPUs; the cluster has {len(gpus)} nodes with "
            f"{', '.join(f'{gpu:g}' for gpu in gpus) or 'no'} GPUs"
        )

    def _live_actors(self, handle: str) -> list[str]:
        from ray.util.state import list_actors

        with self._talking(handle):
            job = self._client(handle).get_job_info(_id(handle)).job_id
            if not job:  # its driver never called ray.init
                return []
            actors = list_actors(
                address=_address(handle),
                filters=[("job_id", "=", job), ("state", "!=", "DEAD")],
                timeout=20,
            )
        return [f"{actor.class_name} {actor.state}" for actor in actors]

    def _client(self, handle: str) -> JobSubmissionClient:
        address = _address(handle)
        if address not in self._clients:
            try:
                from ray.job_submission import JobSubmissionClient
            except ImportError as error:
                raise LaunchError(
                    f"the ray launcher needs pip install 'ray[default]' ({error})"
                ) from error
            self._clients[address] = JobSubmissionClient(address)
        return self._clients[address]

    @contextlib.contextmanager
    def _talking(self, handle: str) -> Iterator[None]:
        """Turn what Ray's client raises into our own error."""
        from ray.exceptions import AuthenticationError
        from ray.util.state.exception import RayStateApiException

        try:
            yield
        except LaunchError:
            raise
        except AuthenticationError as error:
            raise LaunchError(
                f"{_address(handle)}: the cluster wants a token; set RAY_AUTH_MODE=token, and the "
                "token as Ray's documentation says (RAY_AUTH_TOKEN or ~/.ray/auth_token)"
            ) from error
        except (OSError, RuntimeError, RayStateApiException) as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise LaunchError(
                f"{_address(handle)}: Ray's job server does not do what it was asked "
                f"({words[-1]}); check cluster.ray.address and that the dashboard is up"
            ) from error


def _gpus_by_node(handle: str) -> list[float]:
    from ray.util.state import list_nodes

    nodes = list_nodes(address=_address(handle), filters=[("state", "=", "ALIVE")], timeout=10)
    return [(node.resources_total or {}).get("GPU", 0.0) for node in nodes]


def _entrypoint(spec: JobSpec) -> str:
    # Ray gives this text to a shell.
    return shlex.join(["/bin/sh", "-c", _ENTER, str(spec.cwd), *spec.argv])


def _variables(spec: JobSpec) -> dict[str, str]:
    # Ray itself tells the driver which cluster it is on.
    return {name: value for name, value in spec.env.items() if name != "RAY_ADDRESS"}


def _address(handle: str) -> str:
    return handle.removeprefix("ray://").rpartition("/")[0]


def _id(handle: str) -> str:
    return handle.rpartition("/")[2]
