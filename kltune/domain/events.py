"""What happens while kltune works, as values, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kltune.domain.findings import Finding
from kltune.domain.outcome import Outcome
from kltune.domain.steps import Step
from kltune.domain.trials import Trial


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A trial begins, or is taken up again; ``steps`` is its length."""

    trial: Trial
    steps: int


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A verl process of a trial was started."""

    trial: Trial
    number: int
    reason: str
    console: str


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A trial has logged a step."""

    trial: Trial
    step: Step


@dataclass(frozen=True, slots=True)
class FindingSeen:
    """A rule fired on a trial."""

    trial: Trial
    finding: Finding


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial has ended."""

    trial: Trial
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person wants to know."""

    text: str


Event = TrialStarted | AttemptStarted | StepSeen | FindingSeen | TrialEnded | Note
Observer = Callable[[Event], None]
