"""Notebooks: the console log of a run inside the output cells of an ``.ipynb`` file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from kltune.domain.steps import Step
from kltune.errors import MetricsError
from kltune.readers.console import step_lines


class NotebookReader:
    """Reads a notebook anew whenever it was saved, and returns the lines that were added.

    A notebook is one JSON value that every save writes again, so there is nothing to tail.
    """

    format = "notebook"
    ended = False

    def __init__(self, source: str):
        self._path = Path(source)
        self._saved: tuple[int, int] | None = None
        self._seen: list[Step] = []

    def poll(self) -> list[Step]:
        """Return the records added since the last save; all of them if earlier ones changed."""
        try:
            state = self._path.stat()
            saved = (state.st_mtime_ns, state.st_size)
            if saved == self._saved:
                return []
            text = self._path.read_text("utf-8", "replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise MetricsError(f"{self._path}: cannot be read: {error.strerror}") from error
        try:
            steps = [step for line in output_lines(text) for step in step_lines(line)]
        except ValueError as error:
            if self._saved is None:
                raise MetricsError(f"{self._path}: is no notebook: {error}") from error
            return []  # a save is under way; the next poll sees it whole
        self._saved = saved
        known = len(self._seen)
        fresh = steps[known:] if steps[:known] == self._seen else steps
        self._seen = steps
        return fresh

    def finish(self) -> list[Step]:
        """Return nothing: a saved notebook has no unfinished lines."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""


def output_lines(notebook: str) -> Iterator[bytes]:
    """Yield the lines of text that the cells of a notebook printed.

    Raises:
        ValueError: the text is no notebook.
    """
    try:
        cells = json.loads(notebook)["cells"]
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError("no cells") from error
    for cell in cells if isinstance(cells, list) else ():
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        for output in outputs if isinstance(outputs, list) else ():
            yield from _printed(output).encode("utf-8", "replace").split(b"\n")


def _printed(output: object) -> str:
    if not isinstance(output, dict):
        return ""
    text = output.get("text")
    if text is None:
        data = output.get("data")
        text = data.get("text/plain", "") if isinstance(data, dict) else ""
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""
