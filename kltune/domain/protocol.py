"""The protocol as a function: from the trials so far to what is to be done next.

Nothing here runs anything. ``kltune.calibration`` asks for the next action, carries it out, and
asks again; killed and started again, it asks with the same history and gets the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kltune.domain.confirmation import Confirmation, objective
from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Band, Ending
from kltune.domain.trials import Role, Trial

#: The protocol's settings of one node, and those it falls back to after a crash.
ONE_NODE = KlSettings(kl_coef=0.001, target_kl=0.02)
FALL_BACK = KlSettings(kl_coef=0.005, target_kl=0.01)

#: This many search trials in a row without a usable number mean that the launch is at fault.
FAILURES_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What a baseline is to do.

    Attributes:
        reference: the user's own KL settings.
        band: wanted average reference KL, nats per token.
        trials: number of search trials.
        seed: seed of the reference and the search trials.
        confirmation_seeds: fresh seeds of the confirmation.
        timeout_s: wall time of all trials after which no search trial is started; None: no limit.
        max_gpu_hours: the same for GPU hours.
    """

    reference: KlSettings
    band: Band
    trials: int
    seed: int
    confirmation_seeds: tuple[int, ...]
    timeout_s: float | None = None
    max_gpu_hours: float | None = None


@dataclass(frozen=True, slots=True)
class RunTrial:
    """Run this trial (or take it up where it stopped)."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class Search:
    """Ask the search for its next point and run it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Start nothing until a running trial has ended."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a stage.

    Attributes:
        calibrated: whether the winner's average reference KL was inside the band on fresh seeds.
        winner: the trial that is exported; None when no trial was feasible.
        best_outside: the trial with the best score outside the band, when it beat the winner: what
            the band costs.
        reason: one sentence with the numbers.
    """

    calibrated: bool
    winner: Trial | None
    best_outside: Trial | None
    reason: str


def next_action(
    plan: Plan, history: Sequence[Trial], running: Collection[str] = ()
) -> RunTrial | Search | Wait | Verdict:
    """Return what a baseline does next.

    Args:
        plan: what it is to do.
        history: its trials, in the order in which they were started.
        running: names of those that run now, where several run side by side.
    """
    unfinished = [t for t in history if t.outcome is None]
    for trial in unfinished:
        if trial.name not in running:
            return RunTrial(trial)
    if not any(t.role is Role.REFERENCE for t in history):
        return RunTrial(Trial("reference", Role.REFERENCE, plan.reference, plan.seed))
    if launch_is_at_fault(history):
        return Verdict(False, None, None, "trials end without a metric; nothing can be judged")
    searched = [t for t in history if t.role is Role.SEARCH]
    if len(searched) < plan.trials and not _spent(plan, history):
        return Search()
    if any(t.role in (Role.REFERENCE, Role.SEARCH) for t in unfinished):
        return Wait()
    confirmation = Confirmation(plan.band, plan.confirmation_seeds)
    winner = confirmation.winner(history)
    if winner is None:
        return Verdict(False, None, _best(history), _why_none(plan, history))
    points = {Role.CONFIRM_WINNER: winner.settings}
    if winner.role is not Role.REFERENCE:
        points[Role.CONFIRM_REFERENCE] = plan.reference
    if (missing := confirmation.missing(points, history)) is not None:
        return RunTrial(missing)
    if unfinished:
        return Wait()
    holds, reason = confirmation.verdict(winner, history)
    best = _best(history)
    outside = best if best is not None and objective(best) > objective(winner) else None
    return Verdict(holds, winner, outside, reason)


def launch_is_at_fault(history: Sequence[Trial]) -> bool:
    """Whether the reference, or several trials in a row, ended without one usable number."""

    def unusable(trial: Trial) -> bool:
        return trial.outcome is not None and trial.outcome.never_trained

    if any(t.role is Role.REFERENCE and unusable(t) for t in history):
        return True
    recent = [t for t in history if t.outcome is not None][-FAILURES_IN_A_ROW:]
    return len(recent) == FAILURES_IN_A_ROW and all(unusable(t) for t in recent)


def _spent(plan: Plan, history: Sequence[Trial]) -> bool:
    outcomes = [t.outcome for t in history if t.outcome is not None]
    seconds = sum(o.seconds for o in outcomes)
    gpu_hours = sum(o.gpu_hours for o in outcomes)
    return (plan.timeout_s is not None and seconds >= plan.timeout_s) or (
        plan.max_gpu_hours is not None and gpu_hours >= plan.max_gpu_hours
    )


def _candidates(history: Sequence[Trial]) -> list[Trial]:
    return [t for t in history if t.role in (Role.REFERENCE, Role.SEARCH)]


def _best(history: Sequence[Trial]) -> Trial | None:
    """Return the trial with the best score; one that did not end well has none to compare."""
    scored = [
        t
        for t in _candidates(history)
        if t.outcome is not None
        and t.outcome.ending is Ending.COMPLETED
        and objective(t) != float("-inf")
    ]
    return max(scored, key=objective, default=None)


def _why_none(plan: Plan, history: Sequence[Trial]) -> str:
    kls = [
        (t.name, t.outcome.summary.kl)
        for t in _candidates(history)
        if t.outcome is not None and t.outcome.summary.kl is not None
    ]
    if not kls:
        return "no trial logged a reference KL"
    centre = (plan.band.low + plan.band.high) / 2
    name, kl = min(kls, key=lambda pair: abs(pair[1] - centre))
    return (
        f"no trial ran to its end healthy with an average reference KL inside the band "
        f"{plan.band}; the nearest was {name} with {kl:.4f} nats/token"
    )
