"""Step 2 of the protocol as a function: what the scale stage does next on a number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from kltune.domain.consistency import PREFIX
from kltune.domain.curve import CurvePoint, coefficient_for
from kltune.domain.outcome import Band, Ending
from kltune.domain.protocol import Role, RunTrial, Trial
from kltune.domain.scaling import ScaledSettings

#: Where inside the band trials aim once the rules were tried, as shares of the way from low to
#: high in log scale: the middle first.
_AIMS = (0.5, 0.2, 0.8)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What is to be done on one number of nodes.

    Attributes:
        proposals: what the rules propose, in the order in which they are tried.
        band: wanted average reference KL, nats per token.
        trials: number of trials in all.
        seed: seed of all of them; that of one node, so that only the nodes differ.
        coefficients: range in which the search may move the coefficient.
    """

    proposals: tuple[ScaledSettings, ...]
    band: Band
    trials: int
    seed: int
    coefficients: tuple[float, float]


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The end of a stage on one number of nodes.

    Attributes:
        calibrated: whether a trial ran to its end healthy with its reference KL in the band.
        winner: the best such trial.
        gate: rule of the consistency gate that failed; None where it passed.
        reason: one sentence with the numbers.
    """

    calibrated: bool
    winner: Trial | None
    gate: str | None
    reason: str


def next_node_action(plan: NodePlan, history: Sequence[Trial]) -> RunTrial | NodeVerdict:
    """Return what the stage does next.

    Args:
        plan: what it is to do.
        history: its trials on this number of nodes, in the order in which they were started.
    """
    for trial in history:
        if trial.outcome is None:
            return RunTrial(trial)
        gate = next((rule for rule in trial.outcome.critical if rule.startswith(PREFIX)), None)
        if gate is not None:
            return NodeVerdict(False, None, gate, f"{trial.name}: {trial.outcome.reason}")
        if trial.outcome.ending is Ending.FAILED and trial.outcome.summary.steps == 0:
            return NodeVerdict(
                False, None, None, f"{trial.name} ended before its first step: "
                f"{trial.outcome.reason}"
            )  # fmt: skip
    if len(history) < plan.trials:
        tried = {trial.name for trial in history}
        for proposal in plan.proposals:
            if proposal.rule.value not in tried:
                name = proposal.rule.value
                return RunTrial(Trial(name, Role.SEARCH, proposal.settings, plan.seed))
        if (found := _near_the_best(plan, history)) is not None:
            return RunTrial(found)
    return _verdict(plan, history)


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
    for share in _AIMS:
        aim = low * (high / low) ** share
        if any(aim / 1.25 < point.kl < aim * 1.25 for point in curve):
            continue
        coefficient = coefficient_for(aim, curve, *plan.coefficients)
        if coefficient is None:
            continue
        settings = replace(base.settings, kl_coef=coefficient)
        if settings.key() not in known:
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


def _feasible(plan: NodePlan, history: Sequence[Trial]) -> list[Trial]:
    return [t for t in history if t.outcome is not None and t.outcome.feasible(plan.band)]


def _best(plan: NodePlan, history: Sequence[Trial]) -> Trial | None:
    def objective(trial: Trial) -> float:
        value = trial.outcome.summary.objective if trial.outcome else None
        return float("-inf") if value is None or value != value else value

    return max(_feasible(plan, history), key=objective, default=None)


def _nearest(plan: NodePlan, history: Sequence[Trial]) -> Trial | None:
    centre = (plan.band.low + plan.band.high) / 2
    with_kl = [
        (abs(t.outcome.summary.kl - centre), t)
        for t in history
        if t.outcome is not None and t.outcome.summary.kl is not None
    ]
    return min(with_kl, key=lambda pair: pair[0], default=(0.0, None))[1]


def _verdict(plan: NodePlan, history: Sequence[Trial]) -> NodeVerdict:
    winner = _best(plan, history)
    shown = winner or _nearest(plan, history)
    if shown is None or shown.outcome is None or shown.outcome.summary.kl is None:
        return NodeVerdict(False, None, None, "no trial logged a reference KL")
    kl = shown.outcome.summary.kl
    if winner is not None:
        reason = f"{winner.name}: average reference KL {kl:.4f} nats/token, inside {plan.band}"
        return NodeVerdict(True, winner, None, reason)
    return NodeVerdict(
        False,
        None,
        None,
        f"no trial ran to its end healthy with an average reference KL inside {plan.band}; the "
        f"nearest was {shown.name} with {kl:.4f} nats/token",
    )
