"""Asks a backend no more often than it can bear, and bears with it when it does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kltune.errors import LaunchError
from kltune.launchers.base import JobStatus


@dataclass(slots=True)
class Patience:
    """Remembers the last status of every job.

    Attributes:
        every_s: a status this young is not asked for again.
        patience_s: for so long the last status stands in for one that cannot be had: a training
            of days must not be given up because a controller restarts.
    """

    every_s: float
    patience_s: float = 300.0
    _known: dict[str, tuple[float, JobStatus]] = field(default_factory=dict)
    _asked: dict[str, float] = field(default_factory=dict)

    def status(self, handle: str, ask: Callable[[], JobStatus]) -> JobStatus:
        """Return the status, asked for or remembered.

        Raises:
            LaunchError: ``ask`` raised it, and has done so for ``patience_s``.
        """
        now = time.monotonic()
        known = self._known.get(handle)
        if known is not None and (
            known[1].state.is_terminal or now - self._asked[handle] < self.every_s
        ):
            return known[1]
        self._asked[handle] = now
        try:
            found = ask()
        except LaunchError:
            if known is None or now - known[0] > self.patience_s:
                raise
            return known[1]
        self._known[handle] = now, found
        return found

    def forget(self, handle: str) -> None:
        """Ask anew the next time."""
        self._known.pop(handle, None)
