"""The consistency gate: on step 1 the policy *is* the reference, so some numbers must be zero.

Whatever is wrong here (shards, precision, micro batches, engine) shows as KL later on, and no KL
setting cures it. The checks are rules like any other, and end a trial at its first step.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, sqrt

from kltune.domain.findings import Action, Kind, Severity
from kltune.domain.history import History
from kltune.domain.profiles import Profile, Threshold
from kltune.domain.rules.base import Alarm, Limits, Rule
from kltune.domain.steps import Step

GATE = {
    "gate_reference_kl": Threshold(
        1e-4, "a tenth of the 0.001 that verl#2088 reports as the symptom; in fp32 it is 0.0"
    ),
    "gate_update_kl_one": Threshold(1e-4, "one update a step: the policy against itself"),
    "gate_update_kl_many": Threshold(0.01, "good runs of four updates a step stay below 0.006"),
    "gate_mismatch_prob": Threshold(0.01, "verl's FAQ: under 0.005 is normal, over 0.01 not"),
    "gate_mismatch_kl": Threshold(0.1, "verl's documentation of rollout correction: alert"),
    "gate_entropy": Threshold(0.2, "share of the one-node value; batches differ by less"),
    "gate_score_errors": Threshold(4.0, "standard errors of a difference of two batches' means"),
    "gate_rise": Threshold(2.0, "factor; means over thousands of tokens do not double by chance"),
    "gate_reference_kl_floor": Threshold(
        1e-6, "verl on a CPU: 0.0 in fp32, 7.5e-6 with the reference in bf16; slime asks for 1e-8"
    ),
    "gate_mismatch_floor": Threshold(
        1e-5, "verl on a CPU: 2.5e-7 in fp32, 4.2e-4 with the rollout in bf16"
    ),
}

#: How the ids of the gate's rules begin.
PREFIX = "consistency-"


def with_gate(profile: Profile, one_node: Step | None, updates: int, rows: int) -> Profile:
    """Return a profile whose trials pass the gate at their first step, or end there.

    Args:
        profile: the rules that judge the steps after it.
        one_node: step 1 of the same configuration on one node; None leaves the comparison out.
        updates: updates of a step.
        rows: sequences of a step.
    """
    rules = (
        _rule(
            "reference-kl",
            "reference KL of step 1",
            "policy and reference have other weights or another precision on some rank: compare "
            "fsdp dtypes of actor and ref, the shards, and the micro batches of training and log "
            "probs (verl#6280)",
            _reference_kl,
        ),
        _rule(
            "update-kl",
            "update KL of step 1",
            "training and old log probs differ before any update: compare micro batches, dropout, "
            "use_remove_padding and precision",
            lambda run, limits: _update_kl(run, limits, updates),
        ),
        _rule(
            "rollout",
            "log probs of rollout engine and training at step 1",
            "the engine computes another policy: compare its dtype, its weights after the first "
            "sync, tensor parallel size, and top_p and top_k",
            _rollout,
        ),
        _rule(
            "one-node",
            "step 1 against step 1 on one node",
            "the same model answers differently on more nodes: compare weights, data, sampling "
            "settings and precision",
            lambda run, limits: _one_node(run, limits, one_node, rows),
        ),
    )
    thresholds = {**profile.thresholds, **GATE}
    return Profile(profile.name, (*rules, *profile.rules), thresholds, profile.rearm)


def _rule(
    name: str, watches: str, look_at: str, check: Callable[[History, Limits], Alarm | None]
) -> Rule:
    def at_step_1(run: History, limits: Limits) -> Alarm | None:
        alarm = check(run, limits) if run.step.step == 1 else None
        if alarm is None:
            return None
        message = f"{alarm.message}: {look_at}. No KL setting was changed for it"
        return Alarm(alarm.severity, alarm.number, alarm.value, alarm.threshold, message)

    return Rule(
        id=f"{PREFIX}{name}",
        watches=watches,
        why="what differs before the first update is no matter of KL settings",
        fires="at step 1 only",
        kind=Kind.MISMATCH,
        action=Action.INSPECT,
        check=at_step_1,
    )


def _reference_kl(run: History, limits: Limits) -> Alarm | None:
    return _too_large(
        run.step.reference_kl, limits["gate_reference_kl"], "reference_kl", "reference KL"
    )


def _update_kl(run: History, limits: Limits, updates: int) -> Alarm | None:
    limit = limits["gate_update_kl_one" if updates == 1 else "gate_update_kl_many"]
    return _too_large(run.step.update_kl, limit, "update_kl", f"update KL after {updates} updates")


def _rollout(run: History, limits: Limits) -> Alarm | None:
    step = run.step
    return _too_large(
        step.mismatch_prob,
        limits["gate_mismatch_prob"],
        "mismatch_prob",
        "rollout and training probabilities differ by",
    ) or _too_large(
        step.mismatch_kl, limits["gate_mismatch_kl"], "mismatch_kl", "KL of rollout and training"
    )


def _one_node(run: History, limits: Limits, one: Step | None, rows: int) -> Alarm | None:
    if one is None:
        return None
    step = run.step
    for number, floor in (
        ("reference_kl", limits["gate_reference_kl_floor"]),
        ("mismatch_prob", limits["gate_mismatch_floor"]),
    ):
        value, before = getattr(step, number), getattr(one, number)
        if value is None or before is None:
            continue
        limit = max(floor, limits["gate_rise"] * abs(before))
        if abs(value) > limit:
            message = f"{number} is {value:.3g} at step 1 and {before:.3g} on one node"
            return Alarm(Severity.CRITICAL, number, value, limit, f"{message}, limit {limit:.2g}")
    if step.entropy is not None and one.entropy:
        limit = limits["gate_entropy"] * abs(one.entropy)
        if (alarm := _differs("entropy", step.entropy, one.entropy, limit)) is not None:
            return alarm
    if step.score is not None and one.score is not None:
        spreads = [(s.score_max or 0.0) - (s.score_min or 0.0) for s in (step, one)]
        # No sample of a bounded score has a larger deviation than half of its range.
        error = max(spreads) / 2 * sqrt(2 / rows)
        limit = limits["gate_score_errors"] * error
        if limit and (alarm := _differs("score", step.score, one.score, limit)) is not None:
            return alarm
    return None


def _too_large(value: float | None, limit: float, number: str, what: str) -> Alarm | None:
    if value is None or (isfinite(value) and abs(value) <= limit):
        return None
    message = f"{what} is {value:.3g} at step 1, limit {limit:g}"
    return Alarm(Severity.CRITICAL, number, value, limit, message)


def _differs(number: str, value: float, one: float, limit: float) -> Alarm | None:
    if abs(value - one) <= limit:
        return None
    message = f"{number} is {value:.4g} at step 1 and {one:.4g} on one node, limit ±{limit:.3g}"
    return Alarm(Severity.CRITICAL, number, value, limit, message)
