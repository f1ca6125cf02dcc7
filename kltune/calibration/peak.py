"""What to train with: the search's winner, or what holds the KL at which held-out pass@1 peaked.

A search sees the end of its trials. A validation sees their course, and where such settings go on
to lose pass@1, the reference KL at its peak is the one worth holding (Gao et al. 2022, arXiv
2210.10760: it falls with the distance from the reference, whatever led there).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import log
from statistics import fmean

from kltune.calibration.record import Calibration
from kltune.calibration.validation import CALIBRATED, REFERENCE, ValidationReport
from kltune.domain.curve import coefficient_for
from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Ending
from kltune.domain.trials import Role, Trial
from kltune.errors import NotCalibratedError
from kltune.search import Seen, curve_points
from kltune.validation import Curve

#: Reference KLs within this factor of each other are the same: seeds differ by as much.
SAME_KL = 1.2


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings to train with.

    Attributes:
        settings: KL settings.
        origin: where they come from, in a few words.
        moved: whether they are not the calibration's own.
        measured: whether a trial was run with them.
        reason: what the validation shows against the calibration's own settings, and what follows
            from it; empty where it shows nothing.
    """

    settings: KlSettings
    origin: str
    moved: bool = False
    measured: bool = True
    reason: str = ""


def choose(calibration: Calibration, report: ValidationReport | None) -> Choice:
    """Return the settings to export and to train with.

    They are the calibration's own unless held-out pass@1 has fallen from its peak beyond chance,
    and at a larger reference KL than the peak's. Then they are, in this order: those of a trial
    that measured the KL of the peak; the calibration's own with that KL as the target and the
    coefficient that the trials' curve shows for it to begin with, where it is adaptive; with that
    coefficient, where it is fixed. The curve is asked between two trials, never beyond them; a
    target alone is moved only where the controller has held the one that it had.

    Args:
        calibration: with settings.
        report: of a validation of these settings; None, or one of others, changes nothing.

    Raises:
        NotCalibratedError: no trial was feasible.
    """
    if calibration.settings is None:
        raise NotCalibratedError(f"nothing to export or train with: {calibration.reason}")
    own = Choice(calibration.settings, f"trial {calibration.winner}")
    arm = arm_of(calibration, report)
    if report is None or arm is None:
        return own
    declined = {
        task: drawn
        for task, found in report.tasks.items()
        if (drawn := found.curves.get(arm)) is not None and drawn.declined
    }
    if not declined:
        return own
    # Beyond the lowest of several peaks at least one test set loses.
    task, drawn = min(declined.items(), key=lambda item: item[1].peak.kl)
    seen, kl = _seen(task, drawn), drawn.peak.kl
    if kl <= 0:
        return replace(own, reason=f"{seen}. No KL keeps what training loses: verify the reward")
    if drawn.points[-1].kl < SAME_KL * kl:
        return replace(
            own,
            reason=f"{seen}. The KL was the same, so it is the length of the training: end it at "
            f"step {drawn.peak.step}",
        )
    if not calibration.band.holds(kl):
        seen += f". The peak lies outside the band {calibration.band}; confirm it with another one"
    return _holding(kl, calibration, own, seen)


def arm_of(calibration: Calibration, report: ValidationReport | None) -> str | None:
    """Return the arm of a validation that trained with the calibration's settings, if any."""
    if report is None or calibration.settings is None:
        return None
    arm = CALIBRATED if CALIBRATED in report.settings else REFERENCE
    return arm if report.settings[arm] == calibration.settings.describe() else None


def _holding(kl: float, calibration: Calibration, own: Choice, seen: str) -> Choice:
    settings = own.settings
    trials = [t for t in calibration.trials if _comparable(t, settings)]
    near = {
        t: measured
        for t in trials
        if t.role in (Role.REFERENCE, Role.SEARCH)
        and t.settings.key() != settings.key()
        and (measured := _measured(t.settings, trials)) is not None
        and abs(log(measured / kl)) <= log(SAME_KL)
    }
    if near:
        trial, measured = min(near.items(), key=lambda item: abs(log(item[1] / kl)))
        return Choice(
            trial.settings,
            f"trial {trial.name}, nearest to the peak of pass@1",
            moved=True,
            reason=f"{seen}. {trial.name} held {measured:.4f}",
        )
    coefficient = _coefficient(kl, trials, calibration)
    if settings.adaptive and (coefficient is not None or _holds_its_target(settings, trials)):
        # Where the controller is slow, what it begins with decides as much as its target.
        start = settings.kl_coef if coefficient is None else _rounded(coefficient)
        return Choice(
            replace(settings, target_kl=_rounded(kl), kl_coef=start),
            "the peak of pass@1",
            moved=True,
            measured=False,
            reason=f"{seen}. That KL is the target now",
        )
    if coefficient is None:
        return replace(
            own,
            reason=f"{seen}. No two trials lie on either side of that KL, so the coefficient that "
            "holds it is not known: search there, with a band around it",
        )
    return Choice(
        replace(settings, kl_coef=_rounded(coefficient)),
        "the trials' curve at the peak of pass@1",
        moved=True,
        measured=False,
        reason=f"{seen}. The trials' curve shows that KL at this coefficient",
    )


def _seen(task: str, drawn: Curve) -> str:
    peak, end = drawn.peak, drawn.points[-1]
    return (
        f"{task}: pass@1 fell from {peak.pass_at_1:.3f} at a reference KL of {peak.kl:.4f} "
        f"nats/token (step {peak.step}) to {end.pass_at_1:.3f} at {end.kl:.4f} (step {end.step}), "
        "beyond the chance of problems and seeds"
    )


def _comparable(trial: Trial, settings: KlSettings) -> bool:
    """Whether a trial ran to its end, healthy, and measured the same number as the settings."""
    return (
        trial.outcome is not None
        and trial.outcome.ending is Ending.COMPLETED
        and not trial.outcome.critical
        and trial.settings.estimator == settings.estimator
        and trial.settings.placement is settings.placement
    )


def _measured(settings: KlSettings, trials: Iterable[Trial]) -> float | None:
    """Return the mean reference KL of all trials with these settings, nats per token."""
    kls = [
        t.outcome.summary.kl
        for t in trials
        if t.settings.key() == settings.key()
        and t.outcome is not None
        and t.outcome.summary.kl is not None
    ]
    return found if kls and (found := fmean(kls)) > 0 else None


def _holds_its_target(settings: KlSettings, trials: Iterable[Trial]) -> bool:
    held, target = _measured(settings, trials), settings.target_kl
    return held is not None and target is not None and abs(log(held / target)) <= log(SAME_KL)


def _coefficient(kl: float, trials: Iterable[Trial], calibration: Calibration) -> float | None:
    seen = [Seen(t.settings, t.outcome) for t in trials if t.outcome is not None]
    points = curve_points(seen, calibration.band)
    sides = {point.kl >= kl for point in points}
    if len(sides) < 2:
        return None
    tried = [point.coefficient for point in points]
    return coefficient_for(kl, points, min(tried), max(tried))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
