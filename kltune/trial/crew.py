"""Trials side by side: one process looks at each of them in turn.

No threads while they run: a trial's work is done by processes of its own, and a look at one takes
milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from kltune.domain.events import Observer
from kltune.domain.outcome import Outcome
from kltune.errors import KltuneError
from kltune.launchers.base import Launcher
from kltune.trial.run import Looks, watch_trial
from kltune.trial.spec import TrialSpec
from kltune.workspace import TrialDir, Workspace

#: Seconds between two looks at a running trial.
POLL_S = 0.25

_AnyCrew = TypeVar("_AnyCrew", bound="Crew")


class Crew:
    """Trials that run at the same time; a context manager, which leaves none of them running.

    Args:
        width: how many are to run side by side. One that is taken up from an earlier kltune may
            be started over it, since its processes run already.
    """

    def __init__(self, width: int = 1) -> None:
        self._width = width
        self._trials: dict[str, Looks] = {}
        self._ended: list[tuple[str, Outcome]] = []

    @property
    def running(self) -> Collection[str]:
        """Names of the trials that have not ended."""
        return self._trials.keys()

    @property
    def is_full(self) -> bool:
        """Whether as many run as are to run side by side."""
        return len(self._trials) >= self._width

    def start(self, name: str, trial: Looks) -> None:
        """Begin a trial, and look at it for the first time.

        Raises:
            LaunchError, SettingsError, KeyboardInterrupt: from the trial.
        """
        self._trials[name] = trial
        self._look_at(name)

    def ended(self) -> list[tuple[str, Outcome]]:
        """Return what the trials came to that have ended since this was asked before."""
        ended, self._ended = self._ended, []
        return ended

    def wait(self, at_most_s: float | None = None) -> None:
        """Look at the trials until one has ended; return at once where that is so already.

        Args:
            at_most_s: seconds after which to return in any case; also waited where no trial
                runs. None waits for as long as there are trials.

        Raises:
            LaunchError, SettingsError, KeyboardInterrupt: from one of the trials.
        """
        deadline = None if at_most_s is None else time.monotonic() + at_most_s
        while not self._ended:
            over = not self._trials if deadline is None else time.monotonic() >= deadline
            if over:
                return
            time.sleep(POLL_S)
            for name in list(self._trials):
                self._look_at(name)

    def _look_at(self, name: str) -> None:
        try:
            next(self._trials[name])
        except StopIteration as end:
            self._ended.append((name, end.value))
            del self._trials[name]

    def end(self) -> None:
        """End every trial as Ctrl-C does: it can be taken up again.

        Several at once, since each may take its seconds to go, and whoever ended us may not wait
        for their sum.

        Raises:
            KltuneError: one could not be ended; the others were.
        """
        trials = list(self._trials.values())
        self._trials.clear()
        if len(trials) == 1:
            # Here one more Ctrl-C reaches it, and means: without any patience.
            failed = [_end(trials[0])]
        else:
            with ThreadPoolExecutor(max(1, len(trials))) as pool:
                failed = list(pool.map(_end, trials))
        for error in failed:
            if error is not None:
                raise error

    def __enter__(self: _AnyCrew) -> _AnyCrew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def _end(trial: Looks) -> KltuneError | None:
    try:
        trial.throw(KeyboardInterrupt)
    except (KeyboardInterrupt, StopIteration):
        return None
    except KltuneError as error:
        return error
    return None


def run_trial(
    spec: TrialSpec,
    directory: TrialDir,
    workspace: Workspace,
    launcher: Launcher,
    observe: Observer,
) -> Outcome:
    """Run one trial to its end and return what it came to; see ``watch_trial``."""
    with Crew() as crew:
        crew.start(spec.trial.name, watch_trial(spec, directory, workspace, launcher, observe))
        crew.wait()
        ((_, outcome),) = crew.ended()
    return outcome
