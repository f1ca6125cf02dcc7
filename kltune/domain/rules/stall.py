"""No step for far longer than usual. The one rule that needs a clock, which it is given."""

from __future__ import annotations

from kltune.domain.findings import Action, Finding, Kind, Severity
from kltune.domain.history import History
from kltune.domain.rules.base import Limits

STALL = "stall"


def stalled(run: History, idle_s: float, limits: Limits) -> Finding | None:
    """Return the finding of a run that has been silent for ``idle_s`` seconds, or None.

    Before the first step a run loads models and starts engines, so that has its own limit. A
    step may hold a validation or a checkpoint, so the longest recent step counts.

    Args:
        run: the run so far.
        idle_s: seconds since the last step, or since the start while there is none.
        limits: ``stall_first_s``, ``stall_floor_s``, ``stall_factor``.
    """
    durations = [seconds for _, seconds in run["seconds"].recent]
    if run.trained == 0:
        limit, usual = limits["stall_first_s"], "no step yet"
    else:
        longest = max(durations, default=0.0)
        limit = max(limits["stall_floor_s"], limits["stall_factor"] * longest)
        usual = f"the longest recent step took {longest:.0f} s"
    if idle_s <= limit:
        return None
    return Finding(
        rule=STALL,
        severity=Severity.CRITICAL,
        kind=Kind.INFRASTRUCTURE,
        action=Action.RETRY,
        step=run.step.step if run.trained else None,
        metric=run.name("seconds"),
        value=idle_s,
        threshold=limit,
        message=f"no step for {idle_s:.0f} s; {usual}",
    )
