"""What a rule is: a pure question about the history of a run, with its reason attached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kltune.domain.findings import Action, Finding, Kind, Severity
from kltune.domain.history import History

Limits = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Alarm:
    """What a rule says when it fires.

    Attributes:
        severity: how bad it is.
        number: the number of the step record that shows it, or a metric's own name.
        value, threshold: what was seen and what it was compared with, in that number's unit.
        message: one sentence with the numbers.
    """

    severity: Severity
    number: str
    value: float | None
    threshold: float | None
    message: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: its name in findings, settings and documentation.
        watches: what it looks at.
        why: why that matters.
        fires: when it fires, in words; the thresholds it names are keys of the profile.
        kind: the sort of failure.
        action: what it proposes when it is critical; a warning proposes to inspect.
        check: the question; None means quiet.
    """

    id: str
    watches: str
    why: str
    fires: str
    kind: Kind
    action: Action
    check: Callable[[History, Limits], Alarm | None]

    def finding(self, alarm: Alarm, history: History) -> Finding:
        """Return the finding of an alarm at the step at hand."""
        critical = alarm.severity is Severity.CRITICAL
        quiet = Action.NONE if alarm.severity is Severity.INFO else Action.INSPECT
        return Finding(
            rule=self.id,
            severity=alarm.severity,
            kind=self.kind,
            action=self.action if critical or self.action in _MILD else quiet,
            step=history.step.step,
            metric=history.name(alarm.number),
            value=alarm.value,
            threshold=alarm.threshold,
            message=alarm.message,
        )


#: Proposals that hold for a warning as well: they change no KL setting that training depends on.
_MILD = {Action.PACK_SEQUENCES, Action.PENALTY_K1}


def warning(number: str, value: float, threshold: float, message: str) -> Alarm:
    """Return a warning."""
    return Alarm(Severity.WARNING, number, value, threshold, message)


def critical(number: str, value: float, threshold: float | None, message: str) -> Alarm:
    """Return a critical alarm."""
    return Alarm(Severity.CRITICAL, number, value, threshold, message)
