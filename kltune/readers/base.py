"""The contract of every reader of training metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kltune.domain.steps import Step


class Reader(Protocol):
    """Reads the metrics of one run, live or finished.

    1. ``poll`` returns each step record once, oldest first; a step that the run repeats after
       a resume is returned again, and the caller keeps the later one.
    2. A half-written last line is not yet a record.
    3. No file yet means an empty list, not an error.
    4. A file that shrank or was replaced is read from its start.
    5. Non-finite numbers stay non-finite.
    6. ``poll`` never blocks, and costs what is new, not what is there.
    7. An empty list means that nothing is new. A list may be a part of what is new, so that the
       memory of a poll is bounded: who wants all of it polls until the list is empty.

    Attributes:
        format: name of the format, a key of ``kltune.readers.FORMATS``.
        ended: whether the source can bring nothing more: the end of standard input. A file never
            ends by itself.
    """

    format: str

    @property
    def ended(self) -> bool: ...

    def poll(self) -> list[Step]:
        """Return step records that have become complete since the last call.

        Raises:
            MetricsError: the source exists and cannot be read.
        """
        ...

    def finish(self) -> list[Step]:
        """Return what an unfinished last line or record still holds; the writer has ended.

        The last field of an unfinished line may be cut in the middle of a number and is left out.
        """
        ...

    def close(self) -> None:
        """Let go of every resource. Never raises; may be called twice."""
        ...


def drain(reader: Reader, *, writer_ended: bool = True) -> Iterator[Step]:
    """Yield every step record that is there now, in pieces of bounded memory.

    Args:
        reader: polled until it brings nothing.
        writer_ended: whether an unfinished last record counts too.
    """
    while steps := reader.poll():
        yield from steps
    if writer_ended:
        yield from reader.finish()
