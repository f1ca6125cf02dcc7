"""A run that trains nothing."""

from __future__ import annotations

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical, warning
from kltune.domain.rules.departures import score_rising


def _dead(run: History, limits: Limits) -> Alarm | None:
    steps = int(limits["dead_steps"])
    if score_rising(run, limits):
        return None
    gradients = run["grad_norm"].last(steps)
    if run.has("grad_norm") and gradients and not any(gradients):
        text = f"the gradient norm is exactly 0 for the last {steps} steps: nothing is learnt"
        return critical("grad_norm", 0.0, 0.0, text)
    scores = run["score"].last(steps)
    if not run.has("score") or not scores or min(scores) != max(scores):
        return None
    pinned = run["clip_ratio"].last(steps)
    if pinned and min(pinned) >= limits["dead_clip_ratio"]:
        text = (
            f"every score is {scores[-1]:g} and {min(pinned):.0%} of the answers run into the "
            f"length limit for the last {steps} steps"
        )
        return critical("score", scores[-1], scores[0], text)
    flat = run["score"].last(int(limits["flat_steps"]))
    if flat and min(flat) == max(flat):
        text = f"the score is exactly {flat[-1]:g} for the last {len(flat)} steps"
        return warning("score", flat[-1], flat[0], text)
    return None


DEAD_RUN = Rule(
    id="dead-run",
    watches="gradient norm, score, share of answers cut at the limit",
    why="Equal rewards give GRPO no gradient; verl trains on for days without saying so.",
    fires=(
        "for `dead_steps` steps the gradient norm is exactly 0, or all scores are equal and "
        "`dead_clip_ratio` of the answers are cut; a warning when the score is exactly flat for "
        "`flat_steps` steps"
    ),
    kind=Kind.NO_LEARNING,
    action=Action.STOP,
    check=_dead,
)
