"""Answers that are cut at the length limit, in a run that may be good otherwise."""

from __future__ import annotations

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, warning


def _truncation(run: History, limits: Limits) -> Alarm | None:
    share, limit = run["clip_ratio"].level(5), limits["clip_ratio"]
    if not run.has("clip_ratio") or share is None or share < limit:
        return None
    text = (
        f"{share:.0%} of the answers are cut at the length limit (median of five steps): raise "
        "max_response_length, or the score measures the limit"
    )
    return warning("clip_ratio", share, limit, text)


TRUNCATION = Rule(
    id="truncation",
    watches="share of answers cut at the length limit",
    why="A cut answer scores nothing, however good it is; that is no problem of KL.",
    fires="median of five steps over `clip_ratio`",
    kind=Kind.CONFIGURATION,
    action=Action.INSPECT,
    check=_truncation,
)
