"""What the readers of formats share that are written anew at every save: nothing to tail."""

from __future__ import annotations

from pathlib import Path

from kltune.domain.steps import Step
from kltune.errors import MetricsError


class SnapshotReader:
    """Reads a file anew whenever it was saved, and returns the records that were added.

    A format supplies ``parse``. This is the exception to the rule that a poll costs what is new.

    Args:
        source: a path.
    """

    format = ""
    ended = False

    def __init__(self, source: str):
        self._path = Path(source)
        self._saved: tuple[int, int] | None = None
        self._seen: list[str] = []

    def parse(self, text: str) -> list[Step]:
        """Return the records of the whole text.

        Raises:
            ValueError: the text is not of this format, or only a part of it.
        """
        raise NotImplementedError

    def poll(self) -> list[Step]:
        """Return the records added since the last save; all of them if earlier ones changed."""
        try:
            state = self._path.stat()
            saved = (state.st_mtime_ns, state.st_size)
            if saved == self._saved:
                return []
            text = self._path.read_text("utf-8-sig", "replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise MetricsError(f"{self._path}: cannot be read: {error.strerror}") from error
        try:
            steps = self.parse(text)
        except ValueError as error:
            if self._saved is not None or not text.strip():
                return []  # a save is under way; a later poll sees the whole
            raise MetricsError(f"{self._path}: is no {self.format} file: {error}") from error
        self._saved = saved
        known, self._seen = self._seen, [f"{step.step} {step.raw}" for step in steps]
        return steps[len(known) :] if self._seen[: len(known)] == known else steps

    def finish(self) -> list[Step]:
        """Return nothing: a saved file has no unfinished records."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""
