"""Notebooks: the console log of a run inside the output cells of an ``.ipynb`` file."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kltune.domain.steps import Step
from kltune.readers.snapshot import SnapshotReader
from kltune.readers.step_lines import StepLines


class NotebookReader(SnapshotReader):
    """Reads the step lines that the cells of a notebook printed."""

    format = "notebook"

    def parse(self, text: str) -> list[Step]:
        """Return the records of all output cells."""
        lines = StepLines()
        return [step for line in output_lines(text) for step in lines.parse(line)]


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
