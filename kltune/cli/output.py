"""The one sink of output: data to stdout, everything else to stderr, secrets nowhere."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import typer

from kltune.verl.secrets import redact

if TYPE_CHECKING:
    from rich.console import Console


class Format(str, Enum):
    """For people, or for machines."""

    HUMAN = "human"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Ended:
    """What a stage came to.

    Attributes:
        value: for machines; what JSON can hold.
        show: prints it for people.
        good: whether the goal was met.
        notes: what else a person wants to know: what was written, what to do next.
    """

    value: Any
    show: Callable[[Console], None]
    good: bool
    notes: tuple[str, ...] = ()


class Output:
    """Where a command writes.

    Args:
        form: human or json.
        quiet: leave out progress and hints.
    """

    def __init__(self, form: Format = Format.HUMAN, quiet: bool = False):
        self.form = form
        self.quiet = quiet

    @property
    def stderr(self) -> Console:
        """Console of progress and hints."""
        from rich.console import Console

        return Console(stderr=True, markup=False, highlight=False, soft_wrap=True)

    def result(self, value: Any, human: Callable[[Console], None]) -> None:
        """Write the command's data: ``value`` as JSON, or what ``human`` prints."""
        if self.form is Format.JSON:
            text = json.dumps(_finite(value), ensure_ascii=False, indent=2)
            sys.stdout.write(redact(text) + "\n")
            return
        from rich.console import Console

        # A table must not be folded to 80 columns where nobody looks at a terminal.
        width = None if sys.stdout.isatty() else 120
        human(Console(markup=False, highlight=False, width=width))

    def text(self, text: str) -> None:
        """Write plain data."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")

    def note(self, text: str) -> None:
        """Tell something on stderr."""
        if not self.quiet:
            self.stderr.print(redact(text))

    def hint(self, command: str, why: str) -> None:
        """Say what to do next, in the user's own words."""
        self.note(hint(command, why))

    def end(self, ended: Ended) -> None:
        """Write what a stage came to, and end the command with the exit code that says it."""
        self.result(ended.value, ended.show)
        for text in ended.notes:
            self.note(text)
        if not ended.good:
            raise typer.Exit(1)


def hint(command: str, why: str) -> str:
    """Return a line that says what to do next."""
    return f"Next: {command}   ({why})"


def _finite(value: Any) -> Any:
    """Return the value with NaN and infinity as null, which JSON has instead."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
