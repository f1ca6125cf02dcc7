"""What a launch script starts: the values that reading one gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kltune.verl.script.text import Text, Unknown


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command line.

    Attributes:
        text: what the shell makes of it.
        line: where it stands in the script, counted from 1.
        span: bytes of the script that it is written in; None where it comes out of a variable's
            text, so that no place in the script is this word alone.
    """

    text: Text
    line: int
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Override:
    """One override of verl's configuration, as the script gives it.

    Attributes:
        key: with Hydra's ``+``, ``++`` or ``~`` where the script has them.
        value: as Hydra reads it; None for ``~key`` and where it is not known.
        word: where it stands.
        unknown: what in it cannot be told without running the script.
    """

    key: str
    value: Any
    word: Word
    unknown: tuple[Unknown, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the reader of a script should know, and the line that it speaks of."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A variable that the caller of the script may set, and the default that was taken."""

    name: str
    default: str
    line: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a verl training.

    Attributes:
        line: the line of the command.
        wrapper: words before the interpreter, e.g. ``ray job submit … --`` or ``nohup``.
        command: interpreter, its options, module or file: ``python3 -m verl.trainer.main_ppo``.
        options: Hydra's own options, e.g. ``--config-name=…``.
        overrides: in the script's order; where a key comes twice, the last one counts.
        env: what the script sets for the process, by name.
        directory: where it changes to before; empty if it does not.
        context: the conditions and loop values that this start stands under.
        takes_arguments: True if the script passes its own arguments on (``$@``).
        faults: words that Hydra would refuse, or that may hold overrides nobody can see.
        span: bytes of the script that the command is written in.
    """

    line: int
    wrapper: tuple[str, ...]
    command: tuple[Text, ...]
    options: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()
    env: Mapping[str, Text] = field(default_factory=dict)
    directory: str = ""
    context: tuple[str, ...] = ()
    takes_arguments: bool = False
    faults: tuple[Note, ...] = ()
    span: tuple[int, int] | None = None

    def values(self) -> dict[str, Any]:
        """Return the known values by key, the last one of each key."""
        return {o.key: o.value for o in self.overrides if not o.unknown}

    def unresolved(self) -> tuple[Override, ...]:
        """Return the overrides whose value cannot be told, in the script's order."""
        last = {o.key: o for o in self.overrides}
        return tuple(o for o in last.values() if o.unknown)


@dataclass(frozen=True, slots=True)
class LaunchScript:
    """A launch script that was read, not run.

    Attributes:
        text: the script itself.
        launches: each start of a verl training that the script can come to.
        parameters: variables whose default was taken.
        notes: what else a reader should know.
        sbatch: the ``#SBATCH`` lines, without that word.
    """

    text: str
    launches: tuple[Launch, ...]
    parameters: tuple[Parameter, ...] = ()
    notes: tuple[Note, ...] = ()
    sbatch: tuple[str, ...] = ()
