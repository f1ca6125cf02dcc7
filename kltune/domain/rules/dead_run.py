"""A run that trains nothing."""

from __future__ import annotations

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical, warning
from kltune.domain.rules.departures import score_rising


def _dead(run: History, limits: Limits) -> Alarm | None:
    if score_rising(run, limits):
        return None
    steps = int(limits["dead_steps"])
    gradients = run["grad_norm"].last(steps)
    if run.has("grad_norm") and gradients and not any(gradients):
        text = f"the gradient norm is exactly 0 for the last {steps} steps: nothing is learnt"
        return critical("grad_norm", 0.0, 0.0, text)
    return _flat_score(run, limits) if run.has("score") else None


def _flat_score(run: History, limits: Limits) -> Alarm | None:
    steps = int(limits["dead_steps"])
    scores, pinned = run["score"].last(steps), run["clip_ratio"].last(steps)
    if not scores or min(scores) != max(scores):
        return None
    score = scores[-1]
    if pinned and min(pinned) >= limits["dead_clip_ratio"]:
        text = (
            f"every score is {score:g} and {min(pinned):.0%} of the answers hit the length limit"
        )
        return critical("score", score, score, f"{text}, for {steps} steps")
    if not _same(run, "score", int(limits["flat_steps"])):
        return None
    long = int(limits["dead_flat_steps"])
    kl = run["reference_kl"].level(3)
    equal = run.step.score_min is not None and run.step.score_min == run.step.score_max
    if equal and _same(run, "score", long) and kl is not None and kl <= limits["dead_kl"]:
        text = (
            f"every answer of the last {long} steps scores {score:g} and the policy has not moved"
        )
        return critical("score", score, score, text)
    return warning(
        "score",
        score,
        score,
        f"the score is exactly {score:g}, for {int(limits['flat_steps'])} steps or more",
    )


def _same(run: History, number: str, steps: int) -> bool:
    values = run[number].last(steps)
    return bool(values) and min(values) == max(values)


DEAD_RUN = Rule(
    id="dead-run",
    watches="gradient norm, score, share of answers cut at the limit",
    why="Equal rewards give GRPO no gradient; verl trains on for days without saying so.",
    fires=(
        "for `dead_steps` steps the gradient norm is exactly 0, or all scores are equal and "
        "`dead_clip_ratio` of the answers are cut; or for `dead_flat_steps` steps every answer "
        "scores the same and the reference KL is under `dead_kl`; a warning when the score is "
        "exactly flat for `flat_steps` steps"
    ),
    kind=Kind.NO_LEARNING,
    action=Action.STOP,
    check=_dead,
)
