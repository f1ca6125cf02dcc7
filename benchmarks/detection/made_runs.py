"""Runs that are made, not recorded: shapes of failures and of good runs, with seeded noise.

Each shape is described in a public thread or seen on a recorded run; the numbers are made up so
that levels, lengths and noise differ. They ask whether the rules know a shape beyond the one
recorded collapse, and say nothing about how often it occurs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from kltune.domain.steps import Step
from kltune.verl.metrics import step_record

Curve = Callable[[float], float]

_NAMES = {
    "kl": "actor/reward_kl_penalty",
    "score": "critic/score/mean",
    "length": "response_length/mean",
    "clipped": "response_length/clip_ratio",
    "entropy": "actor/entropy",
    "grad": "actor/grad_norm",
    "mismatch": "rollout_corr/kl",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How the numbers of a run move.

    Attributes:
        curves: level of each number at a step.
        steps: length of the run.
        onset: step from which the run goes wrong; None for a good run.
        dead: step from which there is nothing left to save.
        noise: standard deviation of the score of one step; other numbers scatter by 6 %.
        scores: lowest and highest score of an answer.
    """

    curves: dict[str, Curve]
    steps: int
    onset: int | None = None
    dead: int | None = None
    noise: float = 0.03
    scores: tuple[float, float] = (0.0, 1.0)


def run(shape: Shape, seed: int) -> list[Step]:
    """Return the step records of a run of this shape."""
    rng = random.Random(seed)  # noqa: S311
    return [step_record(i, _numbers(shape, i, rng)) for i in range(1, shape.steps + 1)]


def _numbers(shape: Shape, step: int, rng: random.Random) -> dict[str, float]:
    low, high = shape.scores
    numbers: dict[str, float] = {"critic/score/min": low, "critic/score/max": high}
    for name, curve in shape.curves.items():
        level = curve(step)
        if name == "score":
            level = min(max(level + rng.gauss(0, shape.noise), low), high)
        elif math.isfinite(level):
            level *= rng.lognormvariate(0, 0.06)
        if name == "grad" and rng.random() < 0.02:
            level *= rng.uniform(5, 70)
        numbers[_NAMES[name]] = min(level, 1.0) if name == "clipped" else level
    return numbers


def _ramp(before: float, after: float, begin: float, end: float) -> Curve:
    """``before`` until ``begin``, ``after`` from ``end``, smooth between."""

    def level(step: float) -> float:
        share = min(max((step - begin) / (end - begin), 0.0), 1.0)
        return before + (after - before) * share * share * (3 - 2 * share)

    return level


def _growth(before: float, after: float, begin: float, end: float) -> Curve:
    """As ``_ramp``, in the logarithm: for KL, entropy and gradient norms."""
    exponent = _ramp(math.log(before), math.log(after), begin, end)
    return lambda step: math.exp(exponent(step))


def _then(first: Curve, second: Curve, at: float) -> Curve:
    return lambda step: first(step) if step < at else second(step)


def _flat(level: float) -> Curve:
    return lambda step: level


def _good(score: float, kl: float, by: float) -> dict[str, Curve]:
    return {
        "kl": _growth(0.0005, kl, 0, by),
        "score": _ramp(0.01, score, 0, by),
        "length": _ramp(240, 170, 0, by),
        "clipped": _ramp(0.2, 0.02, 0, by),
        "entropy": _growth(0.45, 0.15, 0, by),
        "grad": _flat(1.5),
    }


def _breaks(at: float, over: float, **after: Curve) -> dict[str, Curve]:
    del over
    return {
        n: _then(c, after[n], at) if n in after else c for n, c in _good(0.6, 0.16, 120).items()
    }


SHAPES: dict[str, Shape] = {
    "good: PPO from a zero KL to 0.3, score rising": Shape(_good(0.57, 0.3, 300), 400),
    "good: fast learner, KL 0.2 within 30 steps": Shape(_good(0.7, 0.2, 30), 100),
    "good: score flat and noisy, KL to 0.1": Shape(
        {**_good(0.6, 0.1, 150), "score": _flat(0.3)}, 200, noise=0.06
    ),
    "good: teacher as reference, KL 0.8 to 0.4": Shape(
        {
            "kl": _growth(0.8, 0.4, 0, 100),
            "score": _ramp(-0.3, 0.1, 0, 150),
            "length": _ramp(900, 1300, 0, 150),
            "entropy": _growth(0.25, 0.1, 0, 150),
            "grad": _flat(0.4),
        },
        150,
        noise=0.08,
        scores=(-1.0, 1.0),
    ),
    "good: reward model without bounds": Shape(
        {**_good(0.6, 0.15, 150), "score": _ramp(-1.0, 3.0, 0, 150)},
        200,
        noise=0.25,
        scores=(-9.0, 8.0),
    ),
    "good: answers grow fivefold": Shape(
        {
            **_good(0.6, 0.1, 200),
            "length": _ramp(900, 5000, 0, 200),
            "clipped": _ramp(0.0, 0.4, 80, 200),
            "entropy": _growth(0.3, 0.2, 0, 200),
        },
        250,
    ),
    "good: harder data from step 100, score steps down by a third": Shape(
        {**_good(0.6, 0.12, 80), "score": _then(_ramp(0.1, 0.6, 0, 80), _flat(0.42), 100)}, 180
    ),
    "bad: explodes after 150 good steps": Shape(
        _breaks(
            150,
            20,
            kl=_growth(0.16, 12, 150, 170),
            score=_ramp(0.6, 0.0, 153, 168),
            length=_ramp(170, 2, 155, 172),
            grad=_growth(1.5, 40, 150, 168),
        ),
        220,
        onset=153,
        dead=168,
    ),
    "bad: drifts away over 100 steps": Shape(
        {
            "kl": _growth(0.02, 2.5, 20, 120),
            "score": _ramp(0.5, 0.05, 50, 130),
            "length": _ramp(300, 1000, 60, 130),
            "entropy": _growth(0.4, 2.5, 50, 130),
            "grad": _growth(1, 6, 50, 130),
        },
        160,
        onset=60,
        dead=115,
    ),
    "bad: reward model without bounds, KL explodes": Shape(
        {
            **_breaks(120, 20, kl=_growth(0.15, 8, 120, 140), length=_ramp(170, 900, 120, 140)),
            "score": _then(_ramp(-1, 3, 0, 100), _ramp(3, -6, 122, 142), 122),
        },
        180,
        onset=124,
        dead=140,
        noise=0.25,
        scores=(-12.0, 9.0),
    ),
    "bad: no KL logged, entropy explodes": Shape(
        {
            n: c
            for n, c in _breaks(
                90,
                20,
                score=_ramp(0.6, 0.02, 92, 112),
                entropy=_growth(0.2, 6, 90, 112),
                length=_ramp(180, 500, 92, 115),
                clipped=_ramp(0.05, 0.95, 92, 115),
            ).items()
            if n != "kl"
        },
        140,
        onset=93,
        dead=110,
    ),
    "bad: no KL logged, entropy collapses": Shape(
        {
            n: c
            for n, c in _breaks(
                90,
                30,
                score=_ramp(0.6, 0.1, 95, 120),
                entropy=_growth(0.2, 0.002, 88, 110),
                length=_ramp(180, 40, 95, 120),
            ).items()
            if n != "kl"
        },
        150,
        onset=96,
        dead=116,
    ),
    "bad: over-driven from the first step": Shape(
        {
            "kl": _growth(0.01, 0.5, 0, 7),
            "score": _ramp(0.2, 0.02, 2, 9),
            "length": _ramp(8, 14, 1, 8),
            "entropy": _growth(0.8, 2.2, 0, 8),
            "grad": _growth(1, 3, 0, 6),
        },
        25,
        onset=4,
        dead=12,
        noise=0.03,
    ),
    "bad: teacher as reference, explodes slowly": Shape(
        {
            "kl": _growth(0.5, 12, 10, 60),
            "score": _ramp(-0.3, -0.98, 15, 50),
            "length": _ramp(1000, 3, 20, 60),
            "entropy": _growth(0.25, 0.01, 40, 60),
            "grad": _growth(0.4, 10, 20, 55),
        },
        100,
        onset=22,
        dead=45,
        noise=0.08,
        scores=(-1.0, 1.0),
    ),
    "bad: nothing is ever scored, KL explodes, answers fill the limit": Shape(
        {
            "kl": _growth(0.001, 6, 5, 40),
            "score": _flat(0.0),
            "length": _ramp(200, 512, 10, 40),
            "clipped": _ramp(0.05, 1.0, 10, 40),
            "entropy": _growth(0.4, 5, 10, 40),
            "grad": _growth(1, 20, 10, 40),
        },
        60,
        onset=18,
        dead=42,
        noise=0.0,
    ),
    "bad: gradients explode, score is lost": Shape(
        _breaks(
            100,
            10,
            grad=_growth(1.5, 200, 100, 106),
            score=_ramp(0.6, 0.05, 101, 110),
            kl=_ramp(0.15, 0.4, 101, 112),
            entropy=_growth(0.18, 1.0, 101, 112),
        ),
        140,
        onset=102,
        dead=112,
    ),
    "bad: rollout drifts from training": Shape(
        {**_good(0.6, 0.15, 80), "mismatch": _growth(0.005, 3, 30, 90)}, 120, onset=60, dead=90
    ),
}
