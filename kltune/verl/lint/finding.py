"""What a check of the lint says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kltune.verl.overrides import render


class Level(Enum):
    """How bad it is; only errors change the exit code."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One thing that a check found.

    Attributes:
        id: the check, e.g. ``kl-ctrl-inert``; its row is in ``docs/lint.md``.
        level: see the enum.
        message: one or two sentences with the numbers: what, why, what follows.
        evidence: the values that it rests on, by verl's key.
        fix: overrides that cure it; empty where only the user can tell.
        drop: override keys to take away.
        safe: True where the cure does not change what is trained, so that ``--fix`` may apply it.
        line: line of the script that gave the first of the evidence; 0 if there is none.
    """

    id: str
    level: Level
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: Mapping[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    safe: bool = False
    line: int = 0

    def fix_words(self) -> list[str]:
        """Return the cure as words to paste into a command line."""
        return render(self.fix)
