"""What the readers of line formats share: a tail, and a parser from one line to a step record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kltune.domain.steps import Step
from kltune.readers.tail import open_tail


class LineReader:
    """A reader whose records are single lines; a format supplies ``parse``.

    Args:
        source: a path, or ``-`` for standard input.
    """

    format = ""

    def __init__(self, source: str):
        self._tail = open_tail(source)

    @property
    def ended(self) -> bool:
        """Whether the source can bring nothing more."""
        return self._tail.ended

    def parse(self, line: bytes, *, complete: bool) -> Iterable[Step]:
        """Return the records of one line; none for a line that is no record."""
        raise NotImplementedError

    def poll(self) -> list[Step]:
        """Return the records of the next lines; see ``Reader``."""
        while (lines := self._tail.lines()) is not None:
            if steps := list(self._records(lines)):
                return steps
        return []

    def finish(self) -> list[Step]:
        """Return the records of a last line without an end; see ``Reader``."""
        return list(self.parse(self._tail.remainder(), complete=False))

    def close(self) -> None:
        """Close the source."""
        self._tail.close()

    def _records(self, lines: list[bytes]) -> Iterator[Step]:
        for line in lines:
            yield from self.parse(line, complete=True)
