"""The notation in which the cases of a rule write a run.

A series is a list of words, each one value or several:

    0.5        one value                 _        a step that did not log it
    0.5@4      four times 0.5            nan, inf as they are
    0.1+0.02@5 0.1, 0.12 … five values   _@3      three steps that did not log it
    1*2@4      1, 2, 4, 8

``held_out`` is the score of a validation, ``source X`` what the reward source X gave.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kltune.domain.steps import Step

_WORD = re.compile(r"(?P<start>[^@+*]+?)(?:(?P<how>[+*])(?P<by>[^@]+))?(?:@(?P<count>\d+))?")


def values(series: str | float) -> list[float | None]:
    """Return the values of a series."""
    found: list[float | None] = []
    for word in str(series).split():
        match = _WORD.fullmatch(word)
        assert match is not None, word
        value = None if match["start"] == "_" else float(match["start"])
        for _ in range(int(match["count"] or 1)):
            found.append(value)
            if value is not None and match["how"]:
                by = float(match["by"])
                value = value + by if match["how"] == "+" else value * by
    return found


def steps(series: Mapping[str, str | float], first: int = 1) -> list[Step]:
    """Return the step records of a run; a short series holds its last value."""
    columns = {name: values(text) for name, text in series.items()}
    length = max(len(column) for column in columns.values())
    records = []
    for i in range(length):
        row = {n: c[min(i, len(c) - 1)] for n, c in columns.items()}
        numbers = {n: v for n, v in row.items() if v is not None}
        held_out = numbers.pop("held_out", None)
        sources = {
            n.removeprefix("source "): numbers.pop(n)
            for n in row
            if n in numbers and n.startswith("source ")
        }
        validation = {} if held_out is None else {"val-core/test/acc/mean@1": held_out}
        names = {n: n for n in numbers}
        records.append(
            Step(
                first + i,
                names=names,
                raw=dict(numbers),
                validation=validation,
                sources=sources,
                **numbers,
            )
        )
    return records
