"""Step 2 of the protocol as a function: what the scale stage does next on a number of nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log

from kltune.domain.confirmation import Confirmation, objective
from kltune.domain.consistency import PREFIX
from kltune.domain.curve import CurvePoint, coefficient_for
from kltune.domain.outcome import Band, Ending
from kltune.domain.protocol import RunTrial, Wait
from kltune.domain.scaling import ScaledSettings
from kltune.domain.trials import Role, Trial

#: Where inside the band trials aim once the rules were tried, as shares of the way from low to
#: high in log scale: the middle first.
_AIMS = (0.5, 0.2, 0.8)

#: Difference of two coefficients' logarithms below which a second trial would show nothing new.
_SAME = 0.2


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What is to be done on one number of nodes.

    Attributes:
        proposals: what the rules propose, in the order in which they are tried.
        band: wanted average reference KL, nats per token.
        trials: number of trials before the confirmation.
        seed: seed of all of them; that of one node, so that only the nodes differ.
        coefficients: range in which the search may move the coefficient.
        confirmation_seeds: fresh seeds on which the best trial must hold the band as well.
    """

    proposals: tuple[ScaledSettings, ...]
    band: Band
    trials: int
    seed: int
    coefficients: tuple[float, float]
    confirmation_seeds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The end of a stage on one number of nodes.

    Attributes:
        calibrated: whether the winner's average reference KL was inside the band on fresh seeds.
        winner: the best trial that ran to its end healthy with its reference KL in the band.
        gate: rule of the consistency gate that failed; None where it passed.
        reason: one sentence with the numbers.
    """

    calibrated: bool
    winner: Trial | None
    gate: str | None
    reason: str


def next_node_action(
    plan: NodePlan, history: Sequence[Trial], running: Collection[str] = ()
) -> RunTrial | Wait | NodeVerdict:
    """Return what the stage does next.

    Args:
        plan: what it is to do.
        history: its trials on this number of nodes, in the order in which they were started.
        running: names of those that run now, where several run side by side.
    """
    for trial in history:
        if (verdict := _failed(trial)) is not None:
            return verdict
    unfinished = [trial for trial in history if trial.outcome is None]
    for trial in unfinished:
        if trial.name not in running:
            return RunTrial(trial)
    searched = [trial for trial in history if trial.role is Role.SEARCH]
    if len(searched) < plan.trials:
        tried = {trial.name for trial in searched}
        for proposal in plan.proposals:
            if proposal.rule.value not in tried:
                name = proposal.rule.value
                return RunTrial(Trial(name, Role.SEARCH, proposal.settings, plan.seed))
        if (found := _near_the_best(plan, searched)) is not None:
            return RunTrial(found)
    if any(trial.role is Role.SEARCH for trial in unfinished):
        return Wait()
    confirmation = Confirmation(plan.band, plan.confirmation_seeds)
    winner = confirmation.winner(history)
    if winner is None:
        return _none_holds(plan, history)
    points = {Role.CONFIRM_WINNER: winner.settings}
    if (missing := confirmation.missing(points, history)) is not None:
        return RunTrial(missing)
    if unfinished:
        return Wait()
    holds, reason = confirmation.verdict(winner, history)
    return NodeVerdict(holds, winner, None, f"{winner.name}: {reason}")


def _failed(trial: Trial) -> NodeVerdict | None:
    """Return the verdict where a trial shows that nothing can be judged on these nodes."""
    outcome = trial.outcome
    if outcome is None:
        return None
    gate = next((rule for rule in outcome.critical if rule.startswith(PREFIX)), None)
    if gate is not None:
        return NodeVerdict(False, None, gate, f"{trial.name}: {outcome.reason}")
    if outcome.ending is Ending.FAILED and outcome.summary.steps == 0:
        reason = f"{trial.name} ended before its first step: {outcome.reason}"
        return NodeVerdict(False, None, None, reason)
    return None


def _near_the_best(plan: NodePlan, history: Sequence[Trial]) -> Trial | None:
    """Return a trial whose coefficient the curve of these nodes asks for."""
    curve = [p for trial in history if (p := _point(trial, plan.band)) is not None]
    if not curve:
        return None
    low, high = plan.band.low or plan.band.high / 100, plan.band.high
    base = _best(plan, history) or _nearest(plan, history)
    if base is None:
        return None
    known = {trial.settings.key() for trial in history}
    running = [t.settings.kl_coef for t in history if t.outcome is None]
    for share in _AIMS:
        aim = low * (high / low) ** share
        if any(aim / 1.25 < point.kl < aim * 1.25 for point in curve):
            continue
        coefficient = coefficient_for(aim, curve, *plan.coefficients)
        if coefficient is None:
            continue
        settings = replace(base.settings, kl_coef=coefficient)
        under_way = any(abs(log(c / coefficient)) < _SAME for c in running)
        if settings.key() not in known and not under_way:
            number = len(history) - len(plan.proposals) + 1
            return Trial(f"near-{number}", Role.SEARCH, settings, plan.seed)
    return None


def _point(trial: Trial, band: Band) -> CurvePoint | None:
    outcome = trial.outcome
    if outcome is None or outcome.ending is Ending.FAILED:
        return None
    kl = outcome.summary.kl
    if outcome.ending is Ending.STOPPED:
        # It was stopped on its way up: what it shows is a lower bound.
        kl = max(outcome.summary.kl_max or 0.0, 2 * band.high)
    coefficient = outcome.summary.coefficient or trial.settings.kl_coef
    if kl is None or not isfinite(kl) or coefficient <= 0:
        return None
    return CurvePoint(coefficient, max(kl, 1e-6))


def _best(plan: NodePlan, history: Sequence[Trial]) -> Trial | None:
    feasible = [t for t in history if t.outcome is not None and t.outcome.feasible(plan.band)]
    return max(feasible, key=objective, default=None)


def _nearest(plan: NodePlan, history: Sequence[Trial]) -> Trial | None:
    centre = (plan.band.low + plan.band.high) / 2
    with_kl = [
        (abs(t.outcome.summary.kl - centre), t)
        for t in history
        if t.outcome is not None and t.outcome.summary.kl is not None
    ]
    return min(with_kl, key=lambda pair: pair[0], default=(0.0, None))[1]


def _none_holds(plan: NodePlan, history: Sequence[Trial]) -> NodeVerdict:
    shown = _nearest(plan, history)
    if shown is None or shown.outcome is None:
        return NodeVerdict(False, None, None, "no trial logged a reference KL")
    return NodeVerdict(
        False,
        None,
        None,
        f"no trial ran to its end healthy with an average reference KL inside {plan.band}; the "
        f"nearest was {shown.name} with {shown.outcome.summary.kl:.4f} nats/token",
    )
