"""A finding: a rule that fired on a run, with its evidence and the action it proposes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad a finding is; only a critical one ends or restarts a trial."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Kind(Enum):
    """What sort of failure a finding speaks of; decides what may be done about it.

    Only divergence may lead to a change of KL settings, and the protocol's fallback after a crash
    of the training itself. ``UNJUDGED`` says what the run's metrics do not allow to judge.
    """

    DIVERGENCE = "divergence"
    NON_FINITE = "non-finite"
    COLLAPSE = "collapse"
    MISMATCH = "mismatch"
    INFRASTRUCTURE = "infrastructure"
    CONFIGURATION = "configuration"
    NO_LEARNING = "no-learning"
    CRASH = "crash"
    UNJUDGED = "unjudged"


class Action(Enum):
    """What a finding proposes; carried out by the trial, by the protocol's limits."""

    NONE = "none"
    STOP = "stop"
    RAISE_COEFFICIENT = "raise-coefficient"
    PACK_SEQUENCES = "pack-sequences"
    PENALTY_K1 = "penalty-kl"
    FALL_BACK = "fall-back"
    RETRY = "retry"
    INSPECT = "inspect"


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that fired.

    Attributes:
        rule: id of the rule, e.g. ``kl-divergence``.
        severity, kind, action: see the enums.
        step: the step at which the rule fired; None if it does not belong to one.
        metric: the run's own name of the metric.
        value: what was seen; unit as in the step record.
        threshold: what it was compared with.
        message: one sentence with the numbers, for people.
    """

    rule: str
    severity: Severity
    kind: Kind
    action: Action
    step: int | None
    metric: str
    value: float | None
    threshold: float | None
    message: str
