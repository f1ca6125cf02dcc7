"""TensorBoard event directories, read with TensorBoard's own event reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kltune.domain.steps import Step
from kltune.errors import MetricsError
from kltune.verl.metrics import step_record


class TensorboardReader:
    """Reads the event files of one run, in the order in which they were begun.

    A resumed run begins a new file and repeats some steps. verl writes the numbers of a step one
    by one, so a step is complete when the next one begins.

    Args:
        source: an event file, or a directory that holds those of one run.
    """

    format = "tensorboard"
    ended = False

    def __init__(self, source: str):
        self._source = Path(source)
        self._loader = _event_loader()
        self._files: dict[Path, Any] = {}
        self._step: int | None = None
        self._numbers: dict[str, float] = {}

    def poll(self) -> list[Step]:
        """Return the steps after which another one has begun."""
        return list(self._complete())

    def finish(self) -> list[Step]:
        """Return the last step, which no other follows."""
        return list(self._flush())

    def close(self) -> None:
        """Close every file."""
        self._files.clear()

    def _complete(self) -> Iterator[Step]:
        for path in event_files(self._source):
            if path not in self._files:
                yield from self._flush()
                self._files[path] = self._loader(str(path))
            try:
                for event in self._files[path].Load():
                    yield from self._take(event)
            except (OSError, ValueError) as error:
                raise MetricsError(f"{path}: cannot be read: {error}") from error

    def _take(self, event: Any) -> Iterator[Step]:
        for value in event.summary.value:
            if value.WhichOneof("value") != "simple_value":
                continue
            if event.step != self._step:
                yield from self._flush()
                self._step = event.step
            self._numbers[value.tag] = value.simple_value

    def _flush(self) -> Iterator[Step]:
        if self._step is not None and self._step >= 0 and self._numbers:
            yield step_record(self._step, self._numbers)
        self._step, self._numbers = None, {}


def event_files(source: Path) -> list[Path]:
    """Return the event files of one run, oldest first.

    Raises:
        MetricsError: the directory holds several runs.
    """
    if not source.is_dir():
        return [source] if source.exists() else []
    found = sorted(source.rglob("*tfevents*"), key=lambda path: path.name)
    runs = sorted({path.parent for path in found})
    if len(runs) > 1:
        names = ", ".join(str(run) for run in runs[:8])
        raise MetricsError(f"{source}: holds {len(runs)} runs; name one of them: {names}")
    return found


def _event_loader() -> Any:
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise MetricsError(
            "reading TensorBoard event files needs TensorBoard: pip install 'kltune[tensorboard]'"
        ) from error
    return LegacyEventFileLoader
