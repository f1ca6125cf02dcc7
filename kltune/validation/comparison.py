"""Two arms on the same problems: the difference in pass@1, and what may be said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from kltune.validation.estimate import bootstrap, estimate
from kltune.validation.results import Results, rates

if TYPE_CHECKING:
    import numpy

#: Probability of a verdict "improved" or "regressed" where there is no difference, both together.
LEVEL = 0.05

#: A test that would not find a difference of this size can say nothing by finding none; the
#: lower end of what the protocol expects of a stable KL (+5 to +10 %), in points of pass@1.
EXPECTED = (0.05, 0.10)

_POWER = 0.8


class Finding(Enum):
    """What a comparison shows."""

    IMPROVED = "improved"
    NO_DIFFERENCE = "no difference shown"
    REGRESSED = "regressed"
    NOT_ENOUGH = "not enough data"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against another, seed by seed and problem by problem.

    Attributes:
        finding: the verdict.
        reason: one sentence with the numbers.
        difference: of pass@1, new minus old, in points (0.01 is one percentage point).
        relative: the same as a share of the old pass@1; None where that is 0.
        interval: of the difference; misses the true one with probability ``level``.
        p_value: two-sided.
        detectable: smallest difference that this test finds four times in five.
        method: how interval and p-value were made.
        seeds, problems, samples: what it rests on.
        gained, lost: problems that only one arm solves, where there is one run of each with one
            answer to each problem.
    """

    finding: Finding
    reason: str
    difference: float
    relative: float | None
    interval: tuple[float, float]
    p_value: float
    detectable: float
    method: str
    seeds: int
    problems: int
    samples: int
    gained: int | None = None
    lost: int | None = None


def compare(old: Sequence[Results], new: Sequence[Results], level: float = LEVEL) -> Comparison:
    """Compare two arms whose runs are paired by seed.

    With several seeds, seeds and problems both count as drawn (a t-test with two-way random
    effects). One seed shows the difference of two policies (McNemar's exact test, or a bootstrap
    of whole problems where each has several answers) and not that of the settings they were
    trained with: that is not enough for a verdict, whatever the p-value.

    Args:
        old, new: results of the runs, in the same order of seeds, on the same problems.
        level: probability of a false verdict, both directions together.

    Raises:
        ValueError: the arms have different numbers of runs, or different problems.
    """
    if len(old) != len(new):
        raise ValueError(f"results: {len(old)} runs cannot be paired with {len(new)}")
    table = rates([*old, *new])
    before, after = table[: len(old)], table[len(old) :]
    change = after - before
    seeds, problems = change.shape
    samples = min(run.samples for run in (*old, *new))
    found = estimate(change)
    gained = lost = None
    if seeds > 1:
        method = "t-test, seeds and problems as random effects"
        interval, p_value = found.interval(level), found.p_value()
    elif samples == 1:
        method = "exact McNemar test"
        gained, lost, p_value = _mcnemar(change)
        interval = bootstrap(change, level)
    else:
        method = "bootstrap of problems"
        interval, p_value = bootstrap(change, level), found.p_value()
    detectable = found.detectable(level, _POWER)
    finding, reason = _verdict(seeds, found.mean, p_value, detectable, level)
    base = float(before.mean())
    return Comparison(
        finding=finding,
        reason=reason,
        difference=found.mean,
        relative=found.mean / base if base else None,
        interval=interval,
        p_value=p_value,
        detectable=detectable,
        method=method,
        seeds=seeds,
        problems=problems,
        samples=samples,
        gained=gained,
        lost=lost,
    )


def _mcnemar(change: numpy.ndarray[Any, Any]) -> tuple[int, int, float]:
    """Return problems gained, problems lost, and the exact two-sided p-value.

    Source: McNemar 1947; of the problems on which the two differ, either is as likely to be the
    one that is right.
    """
    from scipy import stats

    gained, lost = int((change > 0).sum()), int((change < 0).sum())
    if not gained + lost:
        return 0, 0, 1.0
    return gained, lost, float(stats.binomtest(gained, gained + lost, 0.5).pvalue)


def _verdict(
    seeds: int, mean: float, p_value: float, detectable: float, level: float
) -> tuple[Finding, str]:
    seen = f"{100 * mean:+.1f} points, p = {p_value:.2g}"
    if seeds < 2:
        return Finding.NOT_ENOUGH, (
            f"{seen} between these two runs; one seed cannot tell the settings from the luck of a "
            "training, so give --seeds 3 or more"
        )
    if p_value < level:
        return (Finding.IMPROVED if mean > 0 else Finding.REGRESSED), seen
    if detectable > EXPECTED[0]:
        return Finding.NOT_ENOUGH, (
            f"{seen}; only a difference of {100 * detectable:.1f} points would have been found "
            f"four times in five, so give more seeds or more samples"
        )
    return Finding.NO_DIFFERENCE, (
        f"{seen}; a difference of {100 * detectable:.1f} points would have been found four times "
        "in five"
    )
