"""Reads step lines fast: a run prints the same metrics in the same order at most of its steps.

Of the hundred numbers of a line a step record needs twenty. So the place of each is learnt from
one line and looked up in the next, and the others become numbers only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

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
        self._layouts[line.count(_SEPARATOR) + 1] = _learn(line, found[1])
        return [*earlier, step_record(*found)]


#: What numbers are printed with; names differ in other characters.
_DIGITS = b"0123456789.e+-"

#: What may not stand before ``step:``, besides letters and digits: ``global_step:`` is a metric.
_WORD = (b"_", b"/")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the numbers stand in a line.

    Attributes:
        skeleton: the fields after the first, without what numbers are printed with.
        pick: returns the wanted ones of the fields.
        prefixes, suffixes: what surrounds the number in each of them: its name and a colon,
            perhaps ``np.float64(`` and a bracket.
        spans: start and end of the number in each of them.
        meaning: names the first of them; the others are validation scores.
    """

    skeleton: bytes
    pick: Callable[[list[bytes]], tuple[bytes, ...]]
    prefixes: tuple[bytes, ...]
    suffixes: tuple[bytes, ...]
    spans: tuple[tuple[int, int | None], ...]
    meaning: Meaning

    def read(self, line: bytes, fields: list[bytes]) -> Step | None:
        """Return the step record of a line; None unless it is laid out like this."""
        head, word, step = fields[0].rpartition(b"step:")
        if not word or not step.isdigit() or len(step) > 15:
            return None
        if head[-1:].isalnum() or head[-1:] in _WORD:
            return None
        if line[len(fields[0]) :].translate(None, _DIGITS) != self.skeleton:
            return None
        wanted = self.pick(fields)
        if not all(map(bytes.startswith, wanted, self.prefixes)):
            return None
        if not all(map(bytes.endswith, wanted, self.suffixes)):
            return None
        try:
            values = [float(f[a:z]) for f, (a, z) in zip(wanted, self.spans, strict=True)]
        except ValueError:
            return None
        names, scores = self.meaning.names, self.meaning.validation
        numbers = dict(zip(names, values, strict=False))
        validation = dict(zip(scores, values[len(names) :], strict=True)) if scores else {}
        return self.meaning.record(int(step), numbers, validation, LineNumbers(line))


def _learn(line: bytes, numbers: Mapping[str, float]) -> _Layout | None:
    """Return the layout of a line that was just read; None if it has oddities."""
    fields = line.split(_SEPARATOR)
    at = {_name(field): i for i, field in enumerate(fields[1:], start=1)}
    means = meaning(numbers.keys())
    if at.keys() != numbers.keys() or len(at) != len(fields) - 1:
        return None
    wanted = [at[name] for name in (*means.names.values(), *means.validation)]
    if len(wanted) < 2:
        return None  # too little to vouch for a line of this layout
    ends = [_wrapping(fields[i]) for i in wanted]
    return _Layout(
        skeleton=line[len(fields[0]) :].translate(None, _DIGITS),
        pick=itemgetter(*wanted),
        prefixes=tuple(prefix for prefix, _ in ends),
        suffixes=tuple(suffix for _, suffix in ends),
        spans=tuple((len(prefix), -1 if suffix else None) for prefix, suffix in ends),
        meaning=means,
    )


def _name(field: bytes) -> str:
    return field.rpartition(b":")[0].decode("utf-8", "replace")


def _wrapping(field: bytes) -> tuple[bytes, bytes]:
    """Return what stands before and behind the number of a field."""
    name, colon, printed = field.rpartition(b":")
    wrapper, bracket, _ = printed.rpartition(b"(")
    if printed.startswith(b"np.") and bracket:
        return name + colon + wrapper + bracket, b")"
    return name + colon, b""


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
