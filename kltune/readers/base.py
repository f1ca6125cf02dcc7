"""The contract of every reader of training metrics."""

from __future__ import annotations

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
    """

    def poll(self) -> list[Step]:
        """Return the step records that have become complete since the last call."""
        ...

    def close(self) -> None:
        """Let go of every resource. Never raises; may be called twice."""
        ...
