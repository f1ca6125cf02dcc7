"""A job that its machines never come for. Needs a clock, which it is given."""

from __future__ import annotations

from kltune.domain.findings import Action, Finding, Kind, Severity

NEVER_STARTED = "never-started"


def never_started(waited_s: float, limit_s: float, detail: str) -> Finding | None:
    """Return the finding of a job that has waited too long for its machines, or None.

    Args:
        waited_s: seconds since it was planned.
        limit_s: seconds that it may wait.
        detail: why it waits, in the backend's words: what was asked for, what the cluster has.
    """
    if waited_s <= limit_s:
        return None
    why = f": {detail}" if detail else ""
    return Finding(
        rule=NEVER_STARTED,
        severity=Severity.CRITICAL,
        kind=Kind.INFRASTRUCTURE,
        action=Action.RETRY,
        step=None,
        metric="job",
        value=waited_s,
        threshold=limit_s,
        message=f"the job got no machines in {waited_s:.0f} s{why}",
    )
