"""verl's file logger: ``{"step": 1, "data": {"actor/ppo_kl": 0.0, …}}``, one record a line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping

from kltune.domain.steps import Step
from kltune.readers.console_line import parse_number
from kltune.readers.tail import open_tail
from kltune.verl.metrics import step_record


class JsonlReader:
    """Reads verl's own metric file, the best source from verl 0.7.1 on.

    Args:
        source: a path, or ``-`` for standard input.
    """

    format = "jsonl"

    def __init__(self, source: str):
        self._tail = open_tail(source)

    @property
    def ended(self) -> bool:
        """Whether the source can bring nothing more."""
        return self._tail.ended

    def poll(self) -> list[Step]:
        """Return the records of the next lines; see ``Reader``."""
        while (lines := self._tail.lines()) is not None:
            if steps := list(_steps(lines)):
                return steps
        return []

    def finish(self) -> list[Step]:
        """Return the record of a last line without an end: a cut one is no JSON."""
        return list(_steps([self._tail.remainder()]))

    def close(self) -> None:
        """Close the source."""
        self._tail.close()


def _steps(lines: Iterable[bytes]) -> Iterator[Step]:
    for line in lines:
        if (found := parse_record(line)) is not None:
            yield step_record(*found)


def parse_record(line: bytes | str) -> tuple[int, dict[str, float]] | None:
    """Return (step, number by metric name) of one line of the file logger, or None.

    ``null`` becomes NaN: since 0.7.1 verl writes NaN and infinity so, and a number that is null
    is non-finite, not missing.
    """
    try:
        record = json.loads(line, parse_int=_whole)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    step, data = record.get("step"), record.get("data")
    if not isinstance(data, dict) or isinstance(step, bool) or not isinstance(step, int | float):
        return None
    if not math.isfinite(step) or step < 0 or step != int(step):
        return None
    return int(step), numbers(data)


def numbers(data: Mapping[str, object]) -> dict[str, float]:
    """Return what is a number in ``data``: null as NaN, booleans as 0 and 1, numbers as text."""
    found: dict[str, float] = {}
    for name, value in data.items():
        number = _number(value)
        if number is not None:
            found[name] = number
    return found


def _number(value: object) -> float | None:
    if value is None:
        return math.nan
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        return float(value)
    return parse_number(value) if isinstance(value, str) else None


def _whole(digits: str) -> int | float:
    # Python refuses integers of more than 4,300 digits, and floats end at 1e308.
    return int(digits) if len(digits) < 300 else float(digits)
