"""What a trial came to: the numbers that the search and the verdict are made from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

from kltune.domain.steps import Step, values

#: Rule id of a run that trains with other settings than it was given.
NOT_IN_EFFECT = "override-not-in-effect"


@dataclass(frozen=True, slots=True)
class Band:
    """Wanted range of the average reference KL, nats per token."""

    low: float
    high: float

    def holds(self, kl: float) -> bool:
        """Whether ``kl`` lies strictly inside."""
        return self.low < kl < self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


class Ending(Enum):
    """How a trial ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers of a series of steps.

    Attributes:
        steps: last step seen.
        kl: mean reference KL over the last half of the steps, nats per token. KL starts at 0 and
            climbs, so the mean of the whole run says more about its length than about its end.
        kl_whole_run, kl_max, kl_last: of all steps; nats per token.
        kl_metric: verl's name of the metric that the KL was read from.
        coefficient: mean coefficient used over the last half of the steps.
        coefficient_last: coefficient of the last step.
        score: mean training score over the last fifth of the steps.
        validation: last validation score; None if the run made none.
        validation_before: validation score before training (step 0).
        validation_metric: verl's name of that score.
        response_length: mean over the last half, tokens.
    """

    steps: int
    kl: float | None = None
    kl_whole_run: float | None = None
    kl_max: float | None = None
    kl_last: float | None = None
    kl_metric: str = ""
    coefficient: float | None = None
    coefficient_last: float | None = None
    score: float | None = None
    validation: float | None = None
    validation_before: float | None = None
    validation_metric: str = ""
    response_length: float | None = None

    @property
    def objective(self) -> float | None:
        """What the search maximises: the last validation score, else the training score."""
        return self.score if self.validation is None else self.validation


def summarize(steps: Sequence[Step], planned: int | None = None) -> Summary:
    """Return the numbers of a run.

    Args:
        steps: step records in order, each step once.
        planned: number of steps that the run was to make; halves and fifths are taken of it, and
            of what was seen where the run ended before it reached them. None takes the last step
            seen.
    """
    last = max((s.step for s in steps), default=0)
    total = planned or last
    half = [s for s in steps if s.step > total / 2] or list(steps[-max(1, len(steps) // 2) :])
    fifth = [s for s in steps if s.step > total * 0.8] or list(steps[-max(1, len(steps) // 5) :])
    kls = [v for s, v in values(steps, "reference_kl") if s > 0]
    coefficients = values(steps, "coefficient")
    validations = [(s.step, n, v) for s in steps for n, v in sorted(s.validation.items())]
    metric = validations[0][1] if validations else ""
    same = [(step, value) for step, name, value in validations if name == metric]
    sources = [s.kl_source.metric for s in steps if s.kl_source is not None]
    return Summary(
        steps=last,
        kl=_mean(v for _, v in values(half, "reference_kl")),
        kl_whole_run=_mean(kls),
        kl_max=max((v for v in kls if math.isfinite(v)), default=None),
        kl_last=kls[-1] if kls else None,
        kl_metric=sources[-1] if sources else "",
        coefficient=_mean(v for _, v in values(half, "coefficient")),
        coefficient_last=coefficients[-1][1] if coefficients else None,
        score=_mean(v for _, v in values(fifth, "score")),
        validation=same[-1][1] if same and same[-1][0] > 0 else None,
        validation_before=same[0][1] if same and same[0][0] == 0 else None,
        validation_metric=metric,
        response_length=_mean(v for _, v in values(half, "response_length")),
    )


def _mean(numbers: Iterable[float]) -> float | None:
    found = list(numbers)
    try:
        return fmean(found) if found else None
    except (OverflowError, ValueError):
        return math.nan  # +inf and -inf in one series, or a sum that no float can hold


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a trial.

    Attributes:
        ending: completed, stopped by a rule, or failed.
        reason: one sentence; empty when completed.
        summary: the numbers of its steps.
        critical: ids of the critical rules that fired.
        seconds: wall time of all its attempts.
        gpu_hours: GPUs held, times hours.
        attempts: number of verl processes it took.
    """

    ending: Ending
    reason: str
    summary: Summary
    critical: tuple[str, ...]
    seconds: float
    gpu_hours: float
    attempts: int

    @property
    def never_trained(self) -> bool:
        """Whether nothing is known but that the launch is at fault: no step, or a wrong one."""
        ended_at_once = self.ending is Ending.FAILED and self.summary.steps == 0
        return ended_at_once or NOT_IN_EFFECT in self.critical

    def feasible(self, band: Band) -> bool:
        """Whether it ran to its end without a critical finding and kept its KL in the band."""
        kl = self.summary.kl
        return (
            self.ending is Ending.COMPLETED
            and not self.critical
            and kl is not None
            and band.holds(kl)
        )
