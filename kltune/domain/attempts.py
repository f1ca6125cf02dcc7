"""What follows when an attempt of a trial ends: done, another attempt, or giving up.

The protocol's actions, with the limits that they need: multiplying the coefficient without a cap
runs away, and a restart that is judged by the rules at once restarts for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from kltune.domain.findings import Action, Finding, Kind
from kltune.domain.kl import KlSettings
from kltune.domain.protocol import FALL_BACK

#: Protocol, step 3: a reference KL over its limit multiplies the coefficient by this.
RAISE_FACTOR = 1.5


class AttemptEnding(Enum):
    """How one verl process of a trial ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Change:
    """What an attempt does differently from the trial's own settings.

    Attributes:
        settings: KL settings of the attempt.
        remove_padding: whether sequence packing was turned on.
        resume_step: step of the checkpoint that it continues from; None starts from the beginning.
    """

    settings: KlSettings
    remove_padding: bool = False
    resume_step: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that has ended.

    Attributes:
        change: what it ran with.
        ending: how it ended.
        last_step: last step that it logged; None if it logged none.
        finding: the critical finding, or the crash, that ended it; None otherwise.
        proposals: milder actions that its warnings proposed; taken up with the next change.
        coefficient: coefficient used in its last step.
        good_checkpoint: step of the last checkpoint from before the trouble began; None if there
            is none.
        resume_coefficient: coefficient of the step after that checkpoint. verl keeps none in a
            checkpoint, so whoever continues from it passes this on.
    """

    change: Change
    ending: AttemptEnding
    last_step: int | None = None
    finding: Finding | None = None
    proposals: tuple[Action, ...] = ()
    coefficient: float | None = None
    good_checkpoint: int | None = None
    resume_coefficient: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How often, and how far, a trial may be changed and started again.

    Attributes:
        restarts: attempts with changed settings.
        retries: attempts with the same settings after a failure of the machines.
        kl_coef_max: largest coefficient that a restart may begin with.
        may_pack: whether sequence packing works where the trial runs; it needs a GPU's kernels.
    """

    restarts: int
    retries: int = 2
    kl_coef_max: float = 1.0
    may_pack: bool = True


@dataclass(frozen=True, slots=True)
class Again:
    """Start another attempt."""

    change: Change
    reason: str


@dataclass(frozen=True, slots=True)
class Over:
    """The trial has ended."""

    completed: bool
    reason: str


def next_attempt(
    settings: KlSettings, limits: Limits, attempts: Sequence[Attempt]
) -> Again | Over:
    """Return what a trial does after these attempts.

    Args:
        settings: the trial's own KL settings.
        limits: of restarts and retries.
        attempts: its attempts so far, oldest first.
    """
    if not attempts:
        return Again(Change(settings), "first attempt")
    last = attempts[-1]
    if last.ending is AttemptEnding.COMPLETED:
        return Over(True, "")
    same = _continued(last)
    if last.ending is AttemptEnding.INTERRUPTED:
        return Again(same, "interrupted; continued")
    finding = last.finding
    if finding is None:
        return Over(False, "ended without a reason that can be named")
    if _repeats(attempts):
        return Over(False, f"the same failure at the same step twice: {finding.message}")
    if finding.action is Action.RETRY:
        retried = sum(a.finding is not None and a.finding.action is Action.RETRY for a in attempts)
        if retried > limits.retries:
            return Over(False, f"given up after {limits.retries} retries: {finding.message}")
        return Again(same, f"the same settings again: {finding.message}")
    changed = _changed(last, same, limits)
    if changed is None:
        return Over(False, finding.message)
    restarts = sum(
        a.finding is not None and a.finding.action is not Action.RETRY for a in attempts
    )
    if restarts > limits.restarts:
        after = f" after {limits.restarts} restarts" if limits.restarts else ""
        return Over(False, f"{finding.message}{after}")
    return changed


def _continued(last: Attempt) -> Change:
    """Return the last change, from the last good checkpoint on and with its coefficient."""
    settings = last.change.settings
    if last.good_checkpoint is not None and last.resume_coefficient is not None:
        settings = replace(settings, kl_coef=last.resume_coefficient)
    return replace(last.change, settings=settings, resume_step=last.good_checkpoint)


def _changed(last: Attempt, same: Change, limits: Limits) -> Again | None:
    """Return the protocol's answer to a finding; None where it has none."""
    finding = last.finding
    assert finding is not None
    settings = last.change.settings
    if finding.action is Action.RAISE_COEFFICIENT and finding.kind is Kind.DIVERGENCE:
        # verl forgets the controller's coefficient, so the last one used is the base.
        base = last.coefficient or settings.kl_coef
        raised = min(base * RAISE_FACTOR, limits.kl_coef_max)
        if raised <= base:
            return None
        what = f"kl_coef {base:.4g} -> {raised:.4g}"
        settings = replace(settings, kl_coef=raised)
    elif finding.action is Action.FALL_BACK:
        target = FALL_BACK.target_kl if settings.adaptive else None
        fallen = replace(settings, kl_coef=FALL_BACK.kl_coef, target_kl=target)
        if fallen == settings:
            return None
        what, settings = f"fallen back to {fallen.describe()}", fallen
    else:
        return None
    change = replace(same, settings=settings)
    if Action.PENALTY_K1 in last.proposals and settings.estimator not in ("kl", "k1"):
        change = replace(change, settings=replace(settings, estimator="kl"))
        what += ", kl_penalty=kl"
    if Action.PACK_SEQUENCES in last.proposals and limits.may_pack and not change.remove_padding:
        change = replace(change, remove_padding=True)
        what += ", sequences packed"
    return Again(change, f"{what}: {finding.message}")


def _repeats(attempts: Sequence[Attempt]) -> bool:
    """Whether the last two attempts ended by the same rule at the same step.

    Machines may fail twice at the start; what fails twice at one step will do so again. A
    divergence under a raised coefficient is no repetition: the first step that is judged after a
    cooldown is the same every time, and restarts and the coefficient have limits of their own.
    """
    if len(attempts) < 2:
        return False
    last, before = attempts[-1], attempts[-2]
    return (
        last.finding is not None
        and before.finding is not None
        and last.finding.rule == before.finding.rule
        and last.finding.kind is not Kind.INFRASTRUCTURE
        and last.last_step == before.last_step
        and not (
            last.finding.kind is Kind.DIVERGENCE and last.change.settings != before.change.settings
        )
    )
