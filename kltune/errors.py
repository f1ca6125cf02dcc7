"""Every error that kltune raises on purpose, and the exit code that it ends the program with.

    KltuneError
    ├── NotCalibratedError   1   the work is done, the goal is not met
    ├── SettingsError        3   settings, preset, verl configuration or workspace are invalid
    ├── LaunchError          4   a trial could not be started, or a directory not be written
    └── MetricsError         5   no usable metrics

Codes 0, 2 (usage), 70 (our own bug) and 130 (interrupted) belong to ``kltune.cli.app``.
An error's text says what was given, which rule it breaks, and the way out.
"""

from __future__ import annotations

from collections.abc import Sequence


class KltuneError(Exception):
    """Base of all errors that a user may see; never raised itself."""

    exit_code = 70


class NotCalibratedError(KltuneError):
    """The protocol ran to its end and its goal was not met."""

    exit_code = 1


class SettingsError(KltuneError, ValueError):
    """Settings are invalid. Carries every fault that was found, not only the first.

    Args:
        faults: one sentence each: subject, rule, value received, way out.
    """

    exit_code = 3

    def __init__(self, faults: str | Sequence[str]):
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class LaunchError(KltuneError, RuntimeError):
    """A trial could not be started, or what it needs could not be written."""

    exit_code = 4


class MetricsError(KltuneError, RuntimeError):
    """A source holds no metrics that can be judged."""

    exit_code = 5
