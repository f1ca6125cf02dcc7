"""How good one arm is: pass@1 over its runs, with an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kltune.validation.estimate import estimate
from kltune.validation.results import Results, rates


@dataclass(frozen=True, slots=True)
class Level:
    """pass@1 of one arm.

    Attributes:
        seeds, problems, samples: runs, problems of each, answers to each problem.
        pass_at_1: mean over all; with several samples this is average@n.
        interval: 95 %.
        pass_at: pass@k by k, where it was asked for.
    """

    seeds: int
    problems: int
    samples: int
    pass_at_1: float
    interval: tuple[float, float]
    pass_at: Mapping[int, float]


def level(runs: Sequence[Results], ks: Sequence[int] = ()) -> Level:
    """Return how good an arm is.

    One greedy run has Wilson's interval for a share; otherwise seeds and problems count as drawn.
    The base model answers greedily the same under every seed, which makes it one run.

    Raises:
        ValueError: there is no run, runs differ in their problems, or one has too few answers.
    """
    from scipy import stats

    table = rates(runs)
    seeds, problems = table.shape
    samples = min(run.samples for run in runs)
    if (table == table[0]).all() and samples == 1:
        right = int(table[0].sum())
        found = stats.binomtest(right, problems).proportion_ci(0.95, method="wilson")
        interval = (float(found.low), float(found.high))
    else:
        low, high = estimate(table).interval(0.05)
        interval = (max(0.0, low), min(1.0, high))
    return Level(
        seeds=seeds,
        problems=problems,
        samples=samples,
        pass_at_1=float(table.mean()),
        interval=interval,
        pass_at={k: sum(run.pass_at(k) for run in runs) / seeds for k in ks if k > 1},
    )
