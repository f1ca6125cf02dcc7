"""wandb's offline runs: the ``.wandb`` file, whose records are wandb's own protocol buffers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kltune.domain.steps import Step
from kltune.errors import MetricsError
from kltune.readers.jsonl import numbers
from kltune.readers.record_log import RecordLog
from kltune.readers.sources import wandb_file
from kltune.readers.tail import ByteTail
from kltune.verl.metrics import step_record


class WandbReader:
    """Reads the history of one run.

    Args:
        source: a ``.wandb`` file, or a directory that holds one run.
    """

    format = "wandb"
    ended = False

    def __init__(self, source: str):
        self._path = wandb_file(Path(source))
        self._tail = ByteTail(self._path)
        self._log = RecordLog()
        self._restarts = 0
        self._record = _record_type()

    def poll(self) -> list[Step]:
        """Return the steps whose records have become complete."""
        while chunk := self._tail.read():
            if self._tail.restarts != self._restarts:
                self._restarts, self._log = self._tail.restarts, RecordLog()
            if steps := list(self._steps(chunk)):
                return steps
        return []

    def finish(self) -> list[Step]:
        """Return nothing: a record without its end cannot be decoded."""
        return []

    def close(self) -> None:
        """Close the file."""
        self._tail.close()

    def _steps(self, chunk: bytes) -> Iterator[Step]:
        try:
            records = self._log.feed(chunk)
        except ValueError as error:
            raise MetricsError(f"{self._path}: {error}") from error
        for data in records:
            record = self._record()
            try:
                record.ParseFromString(data)
            except Exception:  # noqa: S112  protobuf's DecodeError, whatever its home
                continue
            if record.HasField("history"):
                yield from history_step(record.history)


def history_step(history: Any) -> Iterator[Step]:
    """Yield the step record of one record of wandb's history, if it holds numbers."""
    row = {}
    for item in history.item:
        name = item.key or "/".join(item.nested_key)
        try:
            row[name] = json.loads(item.value_json)
        except (ValueError, RecursionError):
            continue
    step = row.pop("_step", history.step.num)
    data = numbers({name: value for name, value in row.items() if not name.startswith("_")})
    if data and isinstance(step, int) and step >= 0:
        yield step_record(step, data)


def _record_type() -> Any:
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError as error:
        raise MetricsError(
            "reading .wandb files needs wandb: pip install 'kltune[wandb]'"
        ) from error
    return Record
