"""Points: which KL settings are worth a trial, from what the trials so far have shown.

They come from known good guesses first, then from the curve of reference KL over the coefficient
(``kltune.domain.curve``); while other trials run, also from the widest gap that they leave. What
else there is to try, the sampler of ``kltune.search.study`` draws.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite, log, sqrt

from kltune.domain.curve import CurvePoint, coefficient_for, must_exceed
from kltune.domain.kl import KlSettings, Placement, reachable, smallest_horizon
from kltune.domain.outcome import Band, Ending, Outcome
from kltune.domain.protocol import FALL_BACK, ONE_NODE
from kltune.domain.rules.band import KL_ABOVE_BAND
from kltune.domain.rules.divergence import KL_DIVERGENCE

#: Where inside the band the curve is asked for a coefficient, one after the other: the middle
#: first, then to either side. Shares of the way from low to high, in log scale.
AIMS = (0.5, 0.8, 0.2)

#: Rules that stop a trial because its reference KL is too high.
DIVERGED = {KL_ABOVE_BAND.id, KL_DIVERGENCE.id}

#: Factor between two coefficients below which a second trial would show nothing new.
SAME = 1.5


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What may be changed. A None dimension stays as the user has it.

    Attributes:
        kl_coef, target_kl, horizon, clip_ratio: (low, high).
        estimators: verl's names to choose from.
    """

    kl_coef: tuple[float, float]
    target_kl: tuple[float, float] | None = None
    horizon: tuple[float, float] | None = None
    clip_ratio: tuple[float, float] | None = None
    estimators: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A trial of which the search knows the end."""

    settings: KlSettings
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Points:
    """The points of one search.

    Attributes:
        space: what may be changed.
        base: the user's own settings; they fill what the space leaves alone.
        band: wanted reference KL, nats per token.
        rows: sequences of a step.
        steps: steps of a trial.
        kl_off: whether "KL off" is tried as well.
        known: settings that were good before; they are tried first.
    """

    space: SearchSpace
    base: KlSettings
    band: Band
    rows: int
    steps: int
    kl_off: bool = False
    known: Sequence[KlSettings] = ()

    def wanted(
        self,
        seen: Sequence[Seen],
        running: Collection[KlSettings] = (),
        taken: Collection[KlSettings] = (),
    ) -> tuple[KlSettings | None, str]:
        """Return the point that something better than sampling asks for, and what that is.

        Args:
            seen: every trial whose end is known.
            running: what is being tried at this moment.
            taken: what else is not to be tried; nobody may be at it now.
        """
        under_way = [settings.kl_coef for settings in running if settings.kl_coef > 0]
        known = {s.key() for s in (*running, *taken, *(s.settings for s in seen))}
        curve = curve_points(seen, self.band)
        if self.kl_off and self.off.key() not in known:
            return self.off, "kl-off"
        for guess in self._guesses():
            if guess.key() not in known and not self._excluded(guess, curve):
                return guess, "guess"
        for share in AIMS:
            low, high = self.band.low or self.band.high / 100, self.band.high
            aim = low * (high / low) ** share
            if any(_near(p.kl, aim, low, high) for p in curve):
                continue
            coefficient = coefficient_for(aim, curve, *self.space.kl_coef)
            if coefficient is None or _shown_soon(coefficient, curve, under_way):
                continue
            settings = self.filled(coefficient, aim)
            if settings.key() not in known:
                return settings, "curve"
        if running and (coefficient := self._widest_gap(curve, under_way)) is not None:
            return self.filled(coefficient), "gap"
        return None, "sampler"

    def _widest_gap(self, curve: Sequence[CurvePoint], under_way: Sequence[float]) -> float | None:
        """Return the middle (in log) of the widest stretch that no trial covers.

        Only between what is known to be above the band and what is known to be below it.
        """
        low, high = self.space.kl_coef
        low = max((p.coefficient for p in curve if p.kl > self.band.high), default=low)
        high = min((p.coefficient for p in curve if p.kl < self.band.low), default=high)
        inside = [c for c in (*under_way, *(p.coefficient for p in curve)) if low < c < high]
        edges = [low, *sorted(inside), high]
        # Halves of an earlier gap are the same but for their last digit: the first of them.
        left, right = max(pairwise(edges), key=lambda pair: round(log(pair[1] / pair[0]), 6))
        middle = sqrt(left * right)
        return None if right <= left or _same(middle, left) else middle

    @property
    def off(self) -> KlSettings:
        """The user's settings with the penalty multiplied by nothing."""
        return replace(
            self.base, kl_coef=0.0, target_kl=None, horizon=None, placement=Placement.REWARD
        )

    def _guesses(self) -> Iterable[KlSettings]:
        """Return what is worth a trial before any search: what was good, the protocol's own."""
        for known in (*self.known, ONE_NODE, FALL_BACK):
            yield self.filled(known.kl_coef, known.target_kl)

    def _excluded(self, settings: KlSettings, curve: Sequence[CurvePoint]) -> bool:
        """Whether trials have shown that these settings cannot keep the KL in the band."""
        largest = settings.kl_coef
        if settings.adaptive and settings.horizon:
            _, largest = reachable(settings.kl_coef, self.rows, settings.horizon, self.steps)
        return must_exceed(self.band.high, largest, curve)

    def filled(self, coefficient: float, target: float | None = None) -> KlSettings:
        """Return the user's settings with this coefficient, moved into the space.

        They are adaptive if targets are searched; without one given, the target is the user's.
        """
        space, base = self.space, self.base
        found = replace(base, kl_coef=_within(coefficient, space.kl_coef))
        if space.target_kl is not None and base.placement is Placement.REWARD:
            target = target or base.target_kl or ONE_NODE.target_kl
            assert target is not None
            found = replace(
                found, target_kl=_within(target, space.target_kl), horizon=self._horizon()
            )
        if space.clip_ratio is not None and base.clip_ratio is not None:
            found = replace(found, clip_ratio=_within(base.clip_ratio, space.clip_ratio))
        if space.estimators is not None and base.estimator not in space.estimators:
            found = replace(found, estimator=space.estimators[0])
        return found

    def _horizon(self) -> float:
        """Return the user's horizon where it is sound, else one of five sequences a row."""
        horizon = self.base.horizon
        if horizon is None or horizon <= smallest_horizon(self.rows):
            horizon = max(10_000.0, 5.0 * self.rows)
        return horizon if self.space.horizon is None else _within(horizon, self.horizons)

    @property
    def horizons(self) -> tuple[float, float]:
        """The space's horizons at which the coefficient keeps its sign."""
        assert self.space.horizon is not None
        low = max(self.space.horizon[0], 1.01 * smallest_horizon(self.rows))
        return low, max(self.space.horizon[1], low * 1.01)


def curve_points(seen: Iterable[Seen], band: Band) -> list[CurvePoint]:
    """Return what the trials show of the curve; a diverged one shows at least its highest KL.

    A trial that was stopped for another reason shows nothing: its KL was still on the way up.
    """
    points = []
    for trial in seen:
        summary, ending = trial.outcome.summary, trial.outcome.ending
        kl, coefficient = summary.kl, summary.coefficient or trial.settings.kl_coef
        if trial.settings.placement is Placement.LOSS:
            coefficient = trial.settings.kl_coef
        diverged = ending is Ending.STOPPED and not DIVERGED.isdisjoint(trial.outcome.critical)
        if diverged:
            highest = [v for v in (kl, summary.kl_max) if v is not None and isfinite(v)]
            kl = max([*highest, 2.01 * band.high])
        known = diverged or ending is Ending.COMPLETED
        if known and coefficient > 0 and kl is not None and isfinite(kl):
            points.append(CurvePoint(coefficient, max(kl, 1e-6)))
    return points


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(bounds[1], max(bounds[0], value))


def _near(kl: float, aim: float, low: float, high: float) -> bool:
    """Whether a trial's KL is so close to an aim that another trial would show nothing new."""
    return abs(log(kl / aim)) < 0.12 * log(high / low)


def _shown_soon(
    coefficient: float, curve: Sequence[CurvePoint], under_way: Sequence[float]
) -> bool:
    """Whether a running trial tries this, or lies on the same side beyond all that has ended.

    Out there the curve is a guess, which the running trial replaces.
    """
    low, high = (end(p.coefficient for p in curve) for end in (min, max))
    return any(
        _same(coefficient, c) or min(coefficient, c) > high or max(coefficient, c) < low
        for c in under_way
    )


def _same(one: float, other: float) -> bool:
    return max(one, other) < SAME * min(one, other)
