"""Tables exported from a dashboard: a row per step, or a row per number."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from kltune.domain.steps import Step
from kltune.readers.console_line import parse_number
from kltune.readers.snapshot import SnapshotReader
from kltune.readers.sources import step_column
from kltune.verl.metrics import step_record


class CsvReader(SnapshotReader):
    """Reads a table with a step column.

    wandb exports a column per run and metric, ``run - metric``, with its extremes beside it;
    MLflow a row per number (``key``, ``value``, ``step``); pandas a column per metric.
    """

    format = "csv"

    def parse(self, text: str) -> list[Step]:
        """Return the records of the whole table, in the order of their steps."""
        return [step_record(step, numbers) for step, numbers in parse_table(text)]


def parse_table(text: str) -> list[tuple[int, dict[str, float]]]:
    """Return (step, number by metric name) of a table, in the order of the steps.

    Raises:
        ValueError: no step column, no metrics, or the columns of several runs.
    """
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise ValueError(str(error)) from error
    header = rows[0] if rows else []
    at = step_column(header)
    if at is None:
        raise ValueError("no column step, _step, global_step or training/global_step")
    columns = {name.strip().lower(): index for index, name in enumerate(header)}
    found: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for step, row in _steps(rows[1:], at):
        if "value" in columns:
            numbers = _long_row(row, columns)
        else:
            numbers = _wide_row(row, _metric_columns(header, at))
        if numbers:
            found[step].update(numbers)
    return sorted(found.items())


def _steps(rows: Iterable[Sequence[str]], at: int) -> Iterable[tuple[int, Sequence[str]]]:
    for row in rows:
        step = parse_number(row[at].strip()) if len(row) > at else None
        if step is not None and 0 <= step < 1e15 and step == int(step):
            yield int(step), row


def _metric_columns(header: Sequence[str], at: int) -> dict[int, str]:
    names: dict[int, str] = {}
    runs = set()
    for index, column in enumerate(header):
        if index == at or column.endswith(("__MIN", "__MAX")):
            continue
        run, dash, metric = column.strip().rpartition(" - ")
        names[index] = metric
        if dash:
            runs.add(run)
    if len(runs) > 1:
        raise ValueError(f"columns of {len(runs)} runs ({', '.join(sorted(runs))}); export one")
    return names


def _wide_row(row: Sequence[str], names: Mapping[int, str]) -> dict[str, float]:
    cells = ((name, row[index]) for index, name in names.items() if index < len(row))
    numbers = ((name, parse_number(cell.strip())) for name, cell in cells)
    return {name: number for name, number in numbers if number is not None}


def _long_row(row: Sequence[str], columns: Mapping[str, int]) -> dict[str, float]:
    name = next((columns[key] for key in ("key", "metric", "tag", "name") if key in columns), None)
    if name is None:
        raise ValueError("a value, and no column key, metric or tag that names it")
    value = columns["value"]
    if len(row) <= max(name, value):
        return {}
    number = parse_number(row[value].strip())
    return {} if number is None else {row[name].strip(): number}
