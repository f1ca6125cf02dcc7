"""The protocol as a function: from the trials so far to what is to be done next.

Nothing here runs anything. ``kltune.calibration`` asks for the next action, carries it out, and
asks again; killed and started again, it asks with the same history and gets the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Band, Ending, Outcome

#: The protocol's settings of one node, and those it falls back to after a crash.
ONE_NODE = KlSettings(kl_coef=0.001, target_kl=0.02)
FALL_BACK = KlSettings(kl_coef=0.005, target_kl=0.01)

#: This many search trials in a row without a usable number mean that the launch is at fault.
FAILURES_IN_A_ROW = 3


class Role(Enum):
    """What a trial is for."""

    REFERENCE = "reference"
    SEARCH = "search"
    CONFIRM_WINNER = "confirm-winner"
    CONFIRM_REFERENCE = "confirm-reference"
    TRAINING = "training"
    VALIDATION = "validation"


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a stage.

    Attributes:
        name: its directory's name, unique in the stage.
        role: what it is for.
        settings: the KL settings it trains with.
        seed: seed of its data order and sampling.
        outcome: None while it has not ended.
    """

    name: str
    role: Role
    settings: KlSettings
    seed: int
    outcome: Outcome | None = None


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


def next_action(plan: Plan, history: Sequence[Trial]) -> RunTrial | Search | Verdict:
    """Return what a baseline does next.

    Args:
        plan: what it is to do.
        history: its trials, in the order in which they were started.
    """
    unfinished = next((t for t in history if t.outcome is None), None)
    if unfinished is not None:
        return RunTrial(unfinished)
    reference = next((t for t in history if t.role is Role.REFERENCE), None)
    if reference is None:
        return RunTrial(Trial("reference", Role.REFERENCE, plan.reference, plan.seed))
    if launch_is_at_fault(history):
        return Verdict(False, None, None, "trials end without a metric; nothing can be judged")
    searched = [t for t in history if t.role is Role.SEARCH]
    if len(searched) < plan.trials and not _spent(plan, history):
        return Search()
    winner = _winner(plan, history)
    if winner is None:
        return Verdict(False, None, _best(history), _why_none(plan, history))
    for seed in plan.confirmation_seeds:
        for role, settings in (
            (Role.CONFIRM_WINNER, winner.settings),
            (Role.CONFIRM_REFERENCE, plan.reference),
        ):
            if role is Role.CONFIRM_REFERENCE and winner.role is Role.REFERENCE:
                continue
            if not any(
                t.role is role and t.seed == seed and t.settings.key() == settings.key()
                for t in history
            ):
                number = sum(t.role is role for t in history) + 1
                return RunTrial(Trial(f"{role.value}-{number}", role, settings, seed))
    return _confirmed(plan, winner, history)


def launch_is_at_fault(history: Sequence[Trial]) -> bool:
    """Whether the reference, or several trials in a row, ended without one usable number."""

    def unusable(trial: Trial) -> bool:
        return trial.outcome is not None and trial.outcome.never_trained

    if history and history[0].role is Role.REFERENCE and unusable(history[0]):
        return True
    recent = history[-FAILURES_IN_A_ROW:]
    return len(recent) == FAILURES_IN_A_ROW and all(unusable(t) for t in recent)


def _spent(plan: Plan, history: Sequence[Trial]) -> bool:
    outcomes = [t.outcome for t in history if t.outcome is not None]
    seconds = sum(o.seconds for o in outcomes)
    gpu_hours = sum(o.gpu_hours for o in outcomes)
    return (plan.timeout_s is not None and seconds >= plan.timeout_s) or (
        plan.max_gpu_hours is not None and gpu_hours >= plan.max_gpu_hours
    )


def _objective(trial: Trial) -> float:
    objective = trial.outcome.summary.objective if trial.outcome else None
    return float("-inf") if objective is None or objective != objective else objective


def _candidates(history: Sequence[Trial]) -> list[Trial]:
    return [t for t in history if t.role in (Role.REFERENCE, Role.SEARCH)]


def _winner(plan: Plan, history: Sequence[Trial]) -> Trial | None:
    """Return the best feasible trial that no fresh seed has put outside the band.

    A candidate that fails its confirmation makes room for the next one, once.
    """
    feasible = [t for t in _candidates(history) if t.outcome and t.outcome.feasible(plan.band)]
    ranked = sorted(feasible, key=_objective, reverse=True)[:2]
    for candidate in ranked:
        if _fresh_runs_hold(plan, candidate, history) is not False:
            return candidate
    return ranked[0] if ranked else None


def _fresh_runs_hold(plan: Plan, candidate: Trial, history: Sequence[Trial]) -> bool | None:
    """Whether the candidate's confirmation held the band; None while it is not complete."""
    runs = _confirmations(candidate, history)
    if len(runs) < len(plan.confirmation_seeds):
        return None
    kls = [o.summary.kl for o in runs if o.summary.kl is not None]
    healthy = all(o.ending is Ending.COMPLETED and not o.critical for o in runs)
    return healthy and len(kls) == len(runs) and plan.band.holds(fmean(kls)) if runs else True


def _confirmations(candidate: Trial, history: Sequence[Trial]) -> list[Outcome]:
    return [
        t.outcome
        for t in history
        if t.role is Role.CONFIRM_WINNER
        and t.outcome is not None
        and t.settings.key() == candidate.settings.key()
    ]


def _best(history: Sequence[Trial]) -> Trial | None:
    """Return the trial with the best score; one that did not end well has none to compare."""
    scored = [
        t
        for t in _candidates(history)
        if t.outcome is not None
        and t.outcome.ending is Ending.COMPLETED
        and _objective(t) != float("-inf")
    ]
    return max(scored, key=_objective, default=None)


def _confirmed(plan: Plan, winner: Trial, history: Sequence[Trial]) -> Verdict:
    runs = _confirmations(winner, history)
    holds = bool(_fresh_runs_hold(plan, winner, history))
    kls = [o.summary.kl for o in runs if o.summary.kl is not None]
    if not runs:
        kls = [
            o.summary.kl for o in [winner.outcome] if o is not None and o.summary.kl is not None
        ]
    seen = f"average reference KL {fmean(kls):.4f} nats/token" if kls else "no reference KL"
    where = (
        f"on {len(runs)} fresh seed(s)" if runs else "in the search (no confirmation asked for)"
    )
    sides = "inside" if holds else "not held inside"
    best = _best(history)
    outside = best if best is not None and _objective(best) > _objective(winner) else None
    return Verdict(holds, winner, outside, f"{seen} {where}, {sides} the band {plan.band}")


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
