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

_WORD, _SEPARATOR = b"step:", b" - "

#: What numbers are printed with; what is left of a line without them is its skeleton.
_DIGITS = b"0123456789.e+-"

#: Layouts that are remembered; a run has two or three (with and without validation).
_LAYOUTS = 16


class StepLines:
    """Turns printed lines into step records, and remembers how the run's lines are laid out."""

    def __init__(self) -> None:
        self._layouts: dict[bytes, _Layout] = {}
        self._last: _Layout | None = None

    def parse(self, line: bytes, *, complete: bool = True) -> list[Step]:
        """Return the step records of one physical line; a carriage return in it starts another.

        Args:
            line: without its end.
            complete: False for a last line whose end was not written.
        """
        earlier: list[Step] = []
        if b"\r" in line:
            *redrawn, line = line.split(b"\r")
            earlier = [step for part in redrawn for step in self.parse(part)]
        usual = complete and len(line) % CUT_AT and line.isascii()
        if usual and (step := self._by_layout(line)) is not None:
            return [*earlier, step]
        found = parse_step_line(line.decode("utf-8", "replace"), complete=complete)
        if found is None:
            return earlier
        self._learn(line, found[1])
        return [*earlier, step_record(*found)]

    def _by_layout(self, line: bytes) -> Step | None:
        begins = line.find(_WORD)
        ends = line.find(_SEPARATOR, begins)
        number = line[begins + len(_WORD) : ends]
        before = line[begins - 1 : begins] if begins else b""
        if begins < 0 or not number.isdigit() or len(number) > 15:
            return None
        if before.isalnum() or before in (b"_", b"/"):
            return None  # ``global_step:`` is a metric
        fields = line[ends:]
        skeleton = fields.translate(None, _DIGITS)
        layout = self._last
        if layout is None or layout.skeleton != skeleton:
            layout = self._last = self._layouts.get(skeleton)
        return layout.read(int(number), fields, line) if layout is not None else None

    def _learn(self, line: bytes, numbers: Mapping[str, float]) -> None:
        if len(self._layouts) >= _LAYOUTS:
            self._layouts.clear()
        layout = _layout(line[line.find(_SEPARATOR) :], numbers)
        if layout is not None:
            self._layouts[layout.skeleton] = layout


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a wanted number stands.

    Attributes:
        name: in the step record; for a validation score verl's name.
        before: what stands in front of it: separator, metric and colon, perhaps ``np.float64(``.
        behind: what stands behind it: nothing or a bracket.
    """

    name: str
    before: bytes
    behind: bytes


@dataclass(frozen=True, slots=True)
class _Layout:
    """The fields of a line, in the order in which they are printed.

    Attributes:
        skeleton: the fields without what numbers are printed with.
        places: of the wanted numbers.
        scores: those of them that are validation scores.
    """

    skeleton: bytes
    places: tuple[_Place, ...]
    scores: frozenset[str]
    meaning: Meaning

    def read(self, step: int, fields: bytes, line: bytes) -> Step | None:
        """Return the step record of a line with this skeleton; None if it differs after all."""
        at = 0
        values: dict[str, float] = {}
        for place in self.places:
            found = fields.find(place.before, at)
            if found < 0:
                return None
            start = found + len(place.before)
            at = fields.find(b" ", start)
            printed = fields[start:at] if at >= 0 else fields[start:]
            if place.behind:
                if not printed.endswith(place.behind):
                    return None
                printed = printed[:-1]
            try:
                values[place.name] = float(printed)
            except ValueError:
                return None
            if at < 0:
                at = len(fields)
        scores = {name: values.pop(name) for name in self.scores}
        return self.meaning.record(step, values, scores, LineNumbers(line))


def _layout(fields: bytes, numbers: Mapping[str, float]) -> _Layout | None:
    """Return the layout of the fields of a line that was just read; None if it has oddities."""
    means = meaning(numbers.keys())
    wanted = {name: number for number, name in means.names.items()}
    wanted |= {name: name for name in means.validation}
    printed = [field.rpartition(b":") for field in fields.split(_SEPARATOR)[1:]]
    names = [name.decode("utf-8", "replace") for name, _, _ in printed]
    if not wanted or names != list(numbers):
        return None
    places = []
    for name, (metric, colon, value) in zip(names, printed, strict=True):
        if name in wanted:
            wrapper, bracket, _ = value.rpartition(b"(")
            before = _SEPARATOR + metric + colon + wrapper + bracket
            places.append(_Place(wanted[name], before, b")" if bracket else b""))
    skeleton = fields.translate(None, _DIGITS)
    return _Layout(skeleton, tuple(places), frozenset(means.validation), means)


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
