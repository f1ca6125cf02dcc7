"""A crash: why the process of a run ended before its time, and what may be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kltune.domain.findings import Action, Finding, Kind, Severity

#: Rule id of the finding of a crash.
CRASH = "crash"


class CrashClass(Enum):
    """The cause of a crash, as far as the log tells; in the order of how much it tells.

    The first class that a log shows wins: where memory ran out, Ray reports a dead actor as well.
    """

    OUT_OF_MEMORY = "out-of-memory"
    DISK = "disk"
    REWARD = "reward"
    NCCL = "nccl"
    CONFIGURATION = "configuration"
    KILLED = "killed"
    RAY = "ray"
    EXCEPTION = "exception"

    @property
    def is_infrastructure(self) -> bool:
        """Whether the machines failed and not the training, so that its settings stay."""
        return self not in {CrashClass.CONFIGURATION, CrashClass.EXCEPTION}


_ACTIONS = {
    CrashClass.OUT_OF_MEMORY: Action.RETRY,
    CrashClass.DISK: Action.INSPECT,
    CrashClass.REWARD: Action.RETRY,
    CrashClass.NCCL: Action.RETRY,
    CrashClass.CONFIGURATION: Action.INSPECT,
    CrashClass.KILLED: Action.RETRY,
    CrashClass.RAY: Action.RETRY,
    CrashClass.EXCEPTION: Action.FALL_BACK,
}


@dataclass(frozen=True, slots=True)
class Crash:
    """One crash.

    Attributes:
        cause: its class.
        line: the line of the log that tells the class; ``""`` where only the exit code does.
        traceback: the first Python traceback after the last step, outermost frame first.
        exit_code: of the process; negative for a signal; None where it is not known.
    """

    cause: CrashClass
    line: str = ""
    traceback: tuple[str, ...] = ()
    exit_code: int | None = None


def crash_finding(crash: Crash, last_step: int | None) -> Finding:
    """Return the finding of a crash after ``last_step``; it says nothing about KL.

    The action is the protocol's: the same settings again where the machines failed, its fallback
    settings where the training itself raised.
    """
    where = "before the first step" if last_step is None else f"after step {last_step}"
    code = "" if crash.exit_code is None else f" (exit code {crash.exit_code})"
    words = f": {crash.line[:200]}" if crash.line else ""
    cause = crash.cause
    if cause is CrashClass.CONFIGURATION:
        kind = Kind.CONFIGURATION
    else:
        kind = Kind.INFRASTRUCTURE if cause.is_infrastructure else Kind.CRASH
    return Finding(
        rule=CRASH,
        severity=Severity.CRITICAL,
        kind=kind,
        action=_ACTIONS[cause],
        step=last_step,
        metric="log",
        value=None if crash.exit_code is None else float(crash.exit_code),
        threshold=None,
        message=f"the run stopped {where}, cause {cause.value}{code}{words}",
    )
