"""Runs a job under SLURM: an sbatch script that starts Ray on its nodes and verl on the first.

The job's name is its handle's, unique and chosen here, so that the job is found by it whether or
not sbatch came to print a number. The attempt's directory has to be on a file system that the
nodes share; console and exit code are written there by the job itself.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from kltune.errors import LaunchError
from kltune.launchers.base import JobSpec, JobState, JobStatus, LaunchPlan
from kltune.launchers.patience import Patience
from kltune.launchers.script import command, environment, exports
from kltune.verl.exports.scripts import ray_over_nodes
from kltune.workspace import cannot_write, write_text

#: SLURM's words for the state of a job (man squeue, "JOB STATE CODES"). A word that is not here
#: means a running job where squeue says it, and one that was lost where only sacct does.
STATES = {
    "CONFIGURING": JobState.PENDING,
    "PENDING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "COMPLETING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "RUNNING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "COMPLETED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "BOOT_FAIL": JobState.LOST,
    "CANCELLED": JobState.LOST,
    "DEADLINE": JobState.LOST,
    "LAUNCH_FAILED": JobState.LOST,
    "NODE_FAIL": JobState.LOST,
    "PREEMPTED": JobState.LOST,
    "RECONFIG_FAIL": JobState.LOST,
    "REVOKED": JobState.LOST,
    "TIMEOUT": JobState.LOST,
}

#: Seconds after scancel until SLURM itself has killed a job (``KillWait`` is 30) and put away.
_STOP_S = 90.0

_POLL_S = 1.0

# The exit code of a job that ends by itself; one that SLURM ends leaves none.
_RECORD = """\
exit_code={path}
trap 'code=$?; echo "$code" >"$exit_code.part" && mv "$exit_code.part" "$exit_code"' EXIT
trap 'trap - EXIT; exit 143' TERM INT"""


class SlurmLauncher:
    """Runs jobs under SLURM; see the module's docstring.

    Args:
        options: of sbatch, each as it stands after ``#SBATCH``, e.g. ``--partition=gpu``.
    """

    def __init__(self, options: Sequence[str] = ()):
        self.options = tuple(options)
        self._patience = Patience(every_s=5.0)

    def room(self, nodes: int, gpus_per_node: int) -> int | None:
        """Return None: jobs wait in the queue for one another."""
        del nodes, gpus_per_node
        return None

    def plan(self, spec: JobSpec, handle: str | None = None) -> LaunchPlan:
        """Return the sbatch script."""
        directory = spec.directory.resolve()
        chosen = handle or f"slurm://kltune-{uuid.uuid4().hex[:16]}{directory}"
        return LaunchPlan(spec, chosen, self._script(spec, chosen))

    def submit(self, plan: LaunchPlan) -> None:
        """Hand the script to sbatch."""
        spec, (name, directory) = plan.spec, _parts(plan.handle)
        path = directory / "job.sbatch"
        write_text(path, plan.text, mode=0o755)
        try:
            _exit_code(directory).unlink(missing_ok=True)
            spec.console.touch()
        except OSError as error:
            raise cannot_write(spec.console, error) from error
        number = _run("sbatch", "--parsable", "--export=ALL", str(path), env=environment(spec))
        write_text(directory / "slurm-job", f"{number.strip().partition(';')[0]} {name}\n")
        self._patience.forget(plan.handle)

    def status(self, handle: str) -> JobStatus:
        """Return where the job is: from its own exit code, else squeue, else sacct."""
        return self._patience.status(handle, lambda: self._ask(handle))

    def collect(self, handle: str, console: Path) -> None:
        """Do nothing: the job writes its console itself."""

    def cancel(self, handle: str, grace_s: float = 15.0) -> None:
        """Cancel the job, and return when squeue lists nothing of it any more."""
        name, _ = _parts(handle)
        deadline = time.monotonic() + grace_s + _STOP_S
        while queued := _squeue(name):
            if all(STATES.get(word) not in _ALIVE for word, _ in queued):
                break
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"{handle}: was cancelled and is still {queued[0][0]}; end it by hand: "
                    f"scancel --name={name}"
                )
            # Asked again and again, since a job that is being started can miss it.
            _run("scancel", f"--name={name}", "--me")
            time.sleep(_POLL_S)
        self._patience.forget(handle)

    def _ask(self, handle: str) -> JobStatus:
        name, directory = _parts(handle)
        for word, reason in _squeue(name):
            state = STATES.get(word, JobState.RUNNING)
            if state is JobState.PENDING:
                return JobStatus(state, None, f"{word} ({reason}); {_room(directory)}")
            if state is JobState.RUNNING:
                return JobStatus(state)
        code = _read_number(_exit_code(directory))
        if code is not None:
            return JobStatus(JobState.SUCCEEDED if code == 0 else JobState.FAILED, code)
        for word, _ in _squeue(name):
            return JobStatus(STATES.get(word, JobState.LOST), None, f"SLURM: {word}")
        accounted = _sacct(name)
        if accounted is not None:
            word, code = accounted
            state = STATES.get(word, JobState.LOST)
            ended = state in (JobState.SUCCEEDED, JobState.FAILED)
            return JobStatus(state, code if ended else None, f"SLURM: {word}")
        submitted = (directory / "slurm-job").exists()
        return JobStatus(JobState.LOST if submitted else JobState.UNKNOWN)

    def _script(self, spec: JobSpec, handle: str) -> str:
        name, directory = _parts(handle)
        asked = [
            f"--job-name={name}",
            f"--nodes={spec.nodes}",
            "--ntasks-per-node=1",
            f"--output={shlex.quote(str(spec.console))}",
            "--open-mode=append",
            "--no-requeue",  # a restart is kltune's to decide, with the checkpoint to go on from
        ]
        own = ("--gres", "--gpus")
        if spec.gpus_per_node and not any(o.startswith(own) for o in self.options):
            asked.append(f"--gpus-per-node={spec.gpus_per_node}")
        lines = [
            "#!/usr/bin/env bash",
            *(f"#SBATCH {option}" for option in (*asked, *self.options)),
            f"# {spec.name}",
            "set -euo pipefail",
            _RECORD.format(path=shlex.quote(str(_exit_code(directory)))),
            *exports(spec),
            f"cd {shlex.quote(str(spec.cwd))}",
        ]
        start = "srun --nodes=1 --ntasks=1"
        if spec.nodes > 1:
            lines += ["unset RAY_ADDRESS", ray_over_nodes(spec.nodes, spec.gpus_per_node)]
            start = 'RAY_ADDRESS="$address" "${on_head[@]}"'
        return "\n".join([*lines, f"{start} {command(spec)}", ""])


_ALIVE = (JobState.PENDING, JobState.RUNNING, None)


def _squeue(name: str) -> list[tuple[str, str]]:
    """Return (state, reason) of the jobs of this name that SLURM still has in memory."""
    text = _run("squeue", "--noheader", "--me", f"--name={name}", "--states=all", "--format=%T|%r")
    rows = [line.strip().partition("|") for line in text.splitlines() if line.strip()]
    return [(word, reason) for word, _, reason in rows]


def _sacct(name: str) -> tuple[str, int] | None:
    """Return (state, exit code) from the accounting; None where it has, or knows, nothing."""
    try:
        text = _run(
            "sacct",
            "--noheader",
            "--parsable2",
            "--allocations",
            f"--name={name}",
            "--starttime=now-90days",
            "--format=State,ExitCode",
        )
    except LaunchError:
        return None  # many clusters keep no accounting
    rows = [line.strip().split("|") for line in text.splitlines() if line.strip()]
    if not rows:
        return None
    state, code = rows[-1]
    # "CANCELLED by 1000", "CANCELLED+"; "1:0" is exit code and signal.
    return state.split()[0].rstrip("+"), int(code.partition(":")[0] or 0)


def _room(directory: Path) -> str:
    """Return what was asked for, and what the cluster has."""
    try:
        script = (directory / "job.sbatch").read_text(encoding="utf-8").splitlines()
    except OSError:
        script = []
    kept = ("--nodes", "--gpus", "--gres", "--partition", "--constraint", "--mem", "--time")
    asked = [
        option
        for line in script
        if line.startswith("#SBATCH ") and (option := line.split(" ", 1)[1]).startswith(kept)
    ]
    try:
        has = _run("sinfo", "--noheader", "--format=%P %D nodes %t %G").splitlines()
    except LaunchError:
        has = []
    return f"asked for {' '.join(asked)}; sinfo: {', '.join(' '.join(x.split()) for x in has)}"


def _run(program: str, *words: str, env: dict[str, str] | None = None) -> str:
    """Return what one of SLURM's programs prints.

    Raises:
        LaunchError: it is not here, does not answer, or refuses.
    """
    try:
        done = subprocess.run(  # noqa: S603 - words, no shell text
            [program, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **(env or {})},
        )
    except FileNotFoundError:
        raise LaunchError(
            f"{program}: not found; the slurm launcher is used on a machine that can submit"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{program}: {error}") from error
    if done.returncode != 0:
        raise LaunchError(f"{program}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _parts(handle: str) -> tuple[str, Path]:
    name, slash, path = handle.removeprefix("slurm://").partition("/")
    if not handle.startswith("slurm://") or not slash:
        raise LaunchError(f"{handle}: not the handle of a SLURM job")
    return name, Path(slash + path)


def _exit_code(directory: Path) -> Path:
    return directory / "exit_code"


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
