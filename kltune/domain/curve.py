"""The curve behind the search: reference KL falls monotonically with the coefficient.

Every trial shows one point of it, so a few trials bracket the coefficient that a wanted KL needs;
a search that sees a black box throws that away (Gao et al. 2022, arXiv 2210.10760, for the shape).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

#: Trials that are nearer to each other than this (in log) show noise rather than a slope.
APART = math.log(1.5)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What one trial showed.

    Attributes:
        coefficient: mean coefficient used over the last half of its steps; > 0.
        kl: mean reference KL over the same steps, nats per token; infinite if it diverged.
    """

    coefficient: float
    kl: float


def coefficient_for(
    kl: float, points: Iterable[CurvePoint], low: float, high: float
) -> float | None:
    """Return the coefficient at which the curve is expected to pass through ``kl``.

    Between two trials on either side of ``kl`` it interpolates in log-log coordinates. With
    trials on one side only it goes half the distance (in log) to the end of the search range, or
    farther, as far as the slope of the curve says: overshooting brackets the answer, too.

    Args:
        kl: wanted reference KL, nats per token; > 0.
        points: what trials have shown.
        low, high: range of the coefficient in the search; 0 < low < high.

    Returns:
        None when there is nothing to go by, or the wanted KL lies beyond the range.
    """
    usable = [p for p in points if p.coefficient > 0 and p.kl > 0]
    above = [p for p in usable if p.kl >= kl]
    below = [p for p in usable if p.kl < kl]
    if not usable:
        return None
    left = max(above, key=lambda p: p.coefficient, default=None)
    right = min(below, key=lambda p: p.coefficient, default=None)
    if left is None:
        assert right is not None
        return _beyond(right, kl, below, low) if right.coefficient > low else None
    if right is None:
        return _beyond(left, kl, above, high) if left.coefficient < high else None
    if left.coefficient >= right.coefficient:
        # Noise has put two trials in the wrong order: the answer lies between them.
        return math.sqrt(left.coefficient * right.coefficient)
    if not math.isfinite(left.kl):
        return math.sqrt(left.coefficient * right.coefficient)
    share = math.log(left.kl / kl) / math.log(left.kl / right.kl)
    # Keep clear of the two trials, or a flat stretch would be tried again and again.
    share = min(0.85, max(0.15, share))
    return float(left.coefficient * (right.coefficient / left.coefficient) ** share)


def _beyond(nearest: CurvePoint, kl: float, same_side: list[CurvePoint], end: float) -> float:
    """Return a coefficient between the nearest trial and the end of the range.

    At least half the distance; up to all of it where the trials on this side show a slope.
    """
    towards = math.log(end / nearest.coefficient)
    share = 0.5
    others = [p for p in same_side if abs(math.log(p.coefficient / nearest.coefficient)) > APART]
    other = min(
        others, key=lambda p: abs(math.log(p.coefficient / nearest.coefficient)), default=None
    )
    if other is not None and math.isfinite(other.kl) and math.isfinite(nearest.kl):
        change = math.log(nearest.kl / other.kl)
        distance = math.log(nearest.coefficient / other.coefficient)
        if change * distance < 0:
            share = max(share, math.log(kl / nearest.kl) * distance / change / towards)
    return float(nearest.coefficient * math.exp(towards * min(share, 1.0)))


def must_exceed(limit: float, coefficient: float, points: Iterable[CurvePoint]) -> bool:
    """Whether some trial shows that ``coefficient`` is too small to keep KL under ``limit``.

    True when a larger or equal coefficient has already led to more than twice the limit; the
    factor leaves room for the noise between seeds.
    """
    return any(p.coefficient >= coefficient and p.kl > 2 * limit for p in points)
