"""Reward hacking: where the training score goes on rising and the held-out pass@1 does not.

Plotted over sqrt(KL), since a policy's distance from its reference grows like that; the score that
is trained on rises for good while what it stands for rises, and then falls (Gao et al. 2022, arXiv
2210.10760, sections 3.1 and 3.3). The reference KL at the peak is the one worth holding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import fmean

from kltune.domain.steps import Step, values
from kltune.validation.estimate import estimate
from kltune.validation.results import Results, rates

#: Steps whose numbers are averaged for a validation: those of one batch are noisy.
_SMOOTHED = 3

_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Point:
    """One validation, over all seeds.

    Attributes:
        step: training step.
        kl: reference KL, nats per token.
        score: training score.
        pass_at_1: held out.
    """

    step: int
    kl: float
    score: float
    pass_at_1: float

    @property
    def distance(self) -> float:
        """sqrt(KL); an estimate of KL below 0 counts as 0."""
        return sqrt(max(0.0, self.kl))


@dataclass(frozen=True, slots=True)
class Curve:
    """How score and pass@1 went along.

    Attributes:
        points: in order of steps.
        peak: the point with the highest pass@1.
        parted: first step at which pass@1 is below its peak beyond chance while the score is not;
            None where they did not part.
        declined: whether such settings lose pass@1 after its peak, and not these runs alone: at
            the end it is below the peak beyond the chance of problems and of seeds.
        reason: one sentence with the numbers.
    """

    points: tuple[Point, ...]
    peak: Point
    parted: int | None
    declined: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What one run shows: its step records, and its results by step of the validation."""

    steps: Sequence[Step]
    results: dict[int, Results]


def curve(runs: Sequence[Observed], level: float = _LEVEL) -> Curve | None:
    """Return the curve of an arm; None where fewer than two validations are common to its runs.

    Args:
        runs: one for each seed.
        level: probability of seeing a fall where there is none, over all validations together.
    """
    common = sorted(set.intersection(*(set(run.results) for run in runs))) if runs else []
    points = [p for step in common if (p := _point(runs, step)) is not None]
    if len(points) < 2:
        return None
    peak = max(points, key=lambda p: p.pass_at_1)
    later = [p for p in points if p.step > peak.step]
    best = rates([run.results[peak.step] for run in runs])
    declined = _declined(runs, points, peak, level)
    for point in later:
        change = rates([run.results[point.step] for run in runs]) - best
        # What happened in these runs is the question, so only problems count as drawn. The peak
        # was chosen as the best, so a fall from it may be any of those between two validations.
        over_runs = change.mean(axis=0, keepdims=True)
        _, high = estimate(over_runs).interval(2 * level / comb(len(points), 2))
        if high < 0 and point.score >= peak.score:
            reason = (
                f"from step {point.step} on the training score holds ({peak.score:.3f} to "
                f"{point.score:.3f}) while pass@1 has fallen from {peak.pass_at_1:.3f} at step "
                f"{peak.step} to {point.pass_at_1:.3f}: the reward is being hacked"
            )
            return Curve(tuple(points), peak, point.step, declined, reason)
    return Curve(tuple(points), peak, None, declined, "training score and pass@1 did not part")


def _declined(
    runs: Sequence[Observed], points: Sequence[Point], peak: Point, level: float
) -> bool:
    """Whether pass@1 has fallen from its peak to the end, in other trainings too.

    Other seeds would have trained other policies, so one of them shows nothing. The peak is the
    best of the validations before the end, each of which might have been it by chance.
    """
    if len(runs) < 2 or peak is points[-1]:
        return False
    end = points[-1].step
    change = rates([r.results[end] for r in runs]) - rates([r.results[peak.step] for r in runs])
    _, high = estimate(change).interval(2 * level / (len(points) - 1))
    return high < 0


def _point(runs: Sequence[Observed], step: int) -> Point | None:
    kls = [_level(run.steps, "reference_kl", step) for run in runs]
    scores = [_level(run.steps, "score", step) for run in runs]
    if None in scores or None in kls:
        return None
    return Point(
        step=step,
        # Before training the policy is the reference.
        kl=0.0 if step == 0 else fmean(kl for kl in kls if kl is not None),
        score=fmean(score for score in scores if score is not None),
        pass_at_1=float(rates([run.results[step] for run in runs]).mean()),
    )


def _level(steps: Sequence[Step], name: str, at: int) -> float | None:
    """Return the mean of a number over the steps that lead to a validation."""
    near = [s for s in steps if at - _SMOOTHED < s.step <= max(at, 1)]
    found = [value for _, value in values(near, name)]
    return fmean(found) if found else None
