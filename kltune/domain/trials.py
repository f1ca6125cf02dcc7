"""A trial: KL settings, a seed, and what they came to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Outcome


class Role(Enum):
    """What a trial is for."""

    REFERENCE = "reference"
    SEARCH = "search"
    CONFIRM_WINNER = "confirm-winner"
    CONFIRM_REFERENCE = "confirm-reference"
    TRAINING = "training"
    VALIDATION = "validation"
    PROFILE = "profile"


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
