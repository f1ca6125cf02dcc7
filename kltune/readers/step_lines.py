"""Reads step lines fast: a run prints the same metrics in the same order at most of its steps.

Of the hundred numbers of a line a step record needs twenty. So the place of each is learnt from
one line and looked up in the next, and the others become numbers only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kltune.domain.steps import Step
from kltune.readers.console_line import CUT_AT, parse_step_line
from kltune.verl.metrics import Meaning, meaning, step_record

_SEPARATOR = b" - "


class StepLines:
    """Turns printed lines into step records, and remembers how the run's lines are laid out."""

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout | None] = {}

    def parse(self, line: bytes, *, complete: bool = True) -> list[Step]:
        """Return the step records of one physical line; a carriage return in it starts another.

        Args:
            line: without its end.
            complete: False for a last line whose end was not written.
        """
        if b"\r" in line:
            *redrawn, line = line.split(b"\r")
            earlier = [step for part in redrawn for step in self.parse(part)]
        else:
            earlier = []
        if complete and len(line) % CUT_AT and line.isascii():
            fields = line.split(_SEPARATOR)
            layout = self._layouts.get(len(fields))
            if layout is not None and (step := layout.read(line, fields)) is not None:
                return [*earlier, step]
        found = parse_step_line(line.decode("utf-8", "replace"), complete=complete)
        if found is None:
            return earlier
        fields = line.split(_SEPARATOR)
        self._layouts[len(fields)] = _learn(fields, found[1])
        return [*earlier, step_record(*found)]


#: Index of a field, start and end of the number in it.
_Place = tuple[int, int, int | None]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the numbers stand in a line.

    Attributes:
        prefixes: what each field after the first begins with: its name, a colon, perhaps
            ``np.float64(``.
        numbers, validation: place of each number of the step record, and of each score.
        wrapped: those of them that end with a bracket.
    """

    prefixes: tuple[bytes, ...]
    numbers: tuple[tuple[str, _Place], ...]
    validation: tuple[tuple[str, _Place], ...]
    wrapped: tuple[int, ...]
    meaning: Meaning

    def read(self, line: bytes, fields: list[bytes]) -> Step | None:
        """Return the step record of a line; None unless it is laid out like this."""
        head, word, step = fields[0].rpartition(b"step:")
        if not word or not step.isdigit() or len(step) > 15:
            return None
        if head[-1:].isalnum() or head[-1:] in _WORD:
            return None
        if not all(map(bytes.startswith, fields[1:], self.prefixes)):
            return None
        if not all(fields[i].endswith(b")") for i in self.wrapped):
            return None
        try:
            numbers = {name: float(fields[i][a:z]) for name, (i, a, z) in self.numbers}
            scores = {name: float(fields[i][a:z]) for name, (i, a, z) in self.validation}
        except ValueError:
            return None
        return self.meaning.record(int(step), numbers, scores, LineNumbers(line))


#: What may not stand before ``step:``, besides letters and digits: ``global_step:`` is a metric.
_WORD = (b"_", b"/")


def _learn(fields: list[bytes], numbers: Mapping[str, float]) -> _Layout | None:
    """Return the layout of a line that was just read; None if it has oddities."""
    prefixes: list[bytes] = []
    places: dict[str, _Place] = {}
    for index, field in enumerate(fields[1:], start=1):
        name, colon, printed = field.rpartition(b":")
        wrapper, bracket, _ = printed.rpartition(b"(")
        prefix = name + colon + (wrapper + bracket if printed.startswith(b"np.") else b"")
        prefixes.append(prefix)
        places[name.decode("utf-8", "replace")] = (
            index,
            len(prefix),
            -1 if prefix.endswith(b"(") else None,
        )
    if places.keys() != numbers.keys() or len(places) != len(fields) - 1:
        return None
    means = meaning(numbers.keys())
    if not means.names and not means.validation:
        return None  # nothing would vouch for a line of this layout
    wanted = [places[name] for name in (*means.names.values(), *means.validation)]
    return _Layout(
        prefixes=tuple(prefixes),
        wrapped=tuple(index for index, _, end in wanted if end is not None),
        numbers=tuple((number, places[name]) for number, name in means.names.items()),
        validation=tuple((name, places[name]) for name in means.validation),
        meaning=means,
    )


class LineNumbers(Mapping[str, float]):
    """Every number of a step line by its name, read when the first is asked for."""

    __slots__ = ("_line", "_numbers")

    def __init__(self, line: bytes):
        self._line = line
        self._numbers: dict[str, float] | None = None

    def _read(self) -> dict[str, float]:
        if self._numbers is None:
            found = parse_step_line(self._line.decode("utf-8", "replace"))
            self._numbers = found[1] if found else {}
            self._line = b""
        return self._numbers

    def __getitem__(self, name: str) -> float:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())
