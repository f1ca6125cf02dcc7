"""What one node says about many: the reference KL to expect under other settings."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import fmean

from kltune.domain.curve import CurvePoint
from kltune.domain.kl import KlSettings, next_coefficient
from kltune.domain.steps import Step

#: A fall of KL steeper than this is noise between two trials that are close together.
_STEEPEST = 2.0


def elasticity(points: Sequence[CurvePoint]) -> float:
    """Return -d log(KL) / d log(coefficient) over the trials; 0 where fewer than two differ.

    Least squares in log-log coordinates, as ``kltune.domain.curve`` interpolates.
    """
    pairs = [(log(p.coefficient), log(p.kl)) for p in points if p.kl > 0 and p.coefficient > 0]
    if len(pairs) < 2:
        return 0.0
    x0, y0 = fmean(x for x, _ in pairs), fmean(y for _, y in pairs)
    spread = sum((x - x0) ** 2 for x, _ in pairs)
    if spread < 1e-12:
        return 0.0
    slope = sum((x - x0) * (y - y0) for x, y in pairs) / spread
    return min(_STEEPEST, max(0.0, -slope))


def predicted_kl(
    one_node: Sequence[Step], settings: KlSettings, rows: int, steepness: float
) -> float | None:
    """Return the mean reference KL of the last half of the steps, under other settings.

    verl's controller is played through the steps of the one-node trial: where it would have used
    another coefficient, that step's KL is taken along the curve to it.

    Args:
        one_node: steps of the trial that the settings were calibrated in.
        settings: the settings to predict for.
        rows: sequences of a step under them.
        steepness: see ``elasticity``.

    Returns:
        None where the trial logged no reference KL.
    """
    coefficient, kls = settings.kl_coef, []
    for step in one_node:
        if step.reference_kl is None or step.step < 1:
            continue
        used = step.coefficient
        factor = (used / coefficient) ** steepness if used and coefficient > 0 else 1.0
        kls.append(step.reference_kl * factor)
        if settings.target_kl is not None and settings.horizon is not None:
            coefficient = next_coefficient(
                coefficient, kls[-1], settings.target_kl, rows, settings.horizon
            )
    half = kls[len(kls) // 2 :]
    return fmean(half) if half else None
