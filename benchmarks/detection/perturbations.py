"""Turns a recorded run into others that could as well have been recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from kltune.domain.steps import Step

#: Numbers that are positive by nature, so that noise multiplies them.
_POSITIVE = ("reference_kl", "entropy", "grad_norm", "response_length")
_SCORES = ("score", "score_min", "score_max", "reward")

Perturbation = Callable[[Sequence[Step], random.Random], list[Step]]


def shifted(steps: Sequence[Step], rng: random.Random) -> list[Step]:
    """The run as seen by someone who begins to watch later: its start is another."""
    return list(steps[rng.randrange(0, max(1, len(steps) * 2 // 3)) :])


def thinned(steps: Sequence[Step], rng: random.Random) -> list[Step]:
    """Every n-th step, as if the batch and the progress of a step were n times as large."""
    n = rng.choice((2, 3, 4, 5))
    return [replace(s, step=i + 1) for i, s in enumerate(steps[rng.randrange(n) :: n])]


def noisy(steps: Sequence[Step], rng: random.Random) -> list[Step]:
    """With the noise of a smaller batch: 10 % on sizes, 5 % of their range on scores."""
    spread = _score_range(steps)
    found = []
    for s in steps:
        changes = {n: v * rng.lognormvariate(0, 0.1) for n in _POSITIVE if (v := _of(s, n))}
        if s.score is not None:
            moved = s.score + rng.gauss(0, 0.05 * spread)
            low = s.score if s.score_min is None else s.score_min
            high = s.score if s.score_max is None else s.score_max
            changes["score"] = min(max(moved, low), high)
        found.append(replace(s, **changes))
    return found


def spiked(steps: Sequence[Step], rng: random.Random) -> list[Step]:
    """With single outliers, as good runs have them: large gradients, a KL cut or doubled."""
    found = []
    for s in steps:
        changes = {}
        if rng.random() < 0.03 and s.grad_norm:
            changes["grad_norm"] = s.grad_norm * rng.uniform(10, 70)
        if rng.random() < 0.02 and s.reference_kl:
            changes["reference_kl"] = s.reference_kl * rng.choice((0.2, 2.0))
        found.append(replace(s, **changes))
    return found


def rescaled(steps: Sequence[Step], rng: random.Random) -> list[Step]:
    """With another reward scale: scores mapped to [0, 1], or stretched and moved."""
    spread, low = _score_range(steps), _lowest(steps)
    factor, offset = rng.choice(
        ((1 / spread, -low / spread), (rng.uniform(2, 10), rng.gauss(0, 5)))
    )
    return [
        replace(s, **{n: v * factor + offset for n in _SCORES if (v := _of(s, n)) is not None})
        for s in steps
    ]


def rounded(steps: Sequence[Step], rng: random.Random) -> list[Step]:
    """Printed with three decimals, as verl did up to 0.4.1."""
    del rng
    numbers = (*_POSITIVE, *_SCORES, "update_kl", "clip_ratio")
    return [
        replace(s, **{n: round(v, 3) for n in numbers if (v := _of(s, n)) is not None})
        for s in steps
    ]


def holed(steps: Sequence[Step], rng: random.Random) -> list[Step]:
    """With lines cut before score and length, and steps missing altogether."""
    period = rng.choice((3, 5, 10))
    cut = {"score": None, "score_min": None, "score_max": None, "reward": None,
           "response_length": None, "clip_ratio": None}  # fmt: skip
    kept = [s for s in steps if rng.random() > 0.1]
    return [replace(s, **cut) if s.step % period == 0 else s for s in kept]


def shuffled_noise(steps: Sequence[Step], rng: random.Random) -> list[Step]:
    """With its noise dealt out anew: each number keeps its course, its residuals change places."""
    found = list(steps)
    for number in (*_POSITIVE, "score"):
        at = [i for i, s in enumerate(found) if _of(s, number) is not None]
        values = [_of(found[i], number) or 0.0 for i in at]
        course = [_around(values, i) for i in range(len(values))]
        residuals = [v - c for v, c in zip(values, course, strict=True)]
        rng.shuffle(residuals)
        for i, c, r in zip(at, course, residuals, strict=True):
            value = c + r if number == "score" else max(0.0, c + r)
            found[i] = replace(found[i], **{number: value})
    return found


PERTURBATIONS: dict[str, Perturbation] = {
    f.__name__: f
    for f in (shifted, thinned, noisy, spiked, rescaled, rounded, holed, shuffled_noise)
}


def _of(step: Step, number: str) -> float | None:
    value: float | None = getattr(step, number)
    return value


def _around(values: Sequence[float], i: int, reach: int = 5) -> float:
    near = values[max(0, i - reach) : i + reach + 1]
    return sum(near) / len(near)


def _lowest(steps: Sequence[Step]) -> float:
    lows = [v for s in steps for n in ("score_min", "score") if (v := _of(s, n)) is not None]
    return min(lows, default=0.0)


def _score_range(steps: Sequence[Step]) -> float:
    highs = [v for s in steps for n in ("score_max", "score") if (v := _of(s, n)) is not None]
    return max(highs, default=1.0) - _lowest(steps) or 1.0
