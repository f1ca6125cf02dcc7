"""Ways to run one verl process, by name; loaded when one is asked for."""

from __future__ import annotations

from importlib import import_module

from kltune.launchers.base import JobSpec, JobState, JobStatus, Launcher, LaunchPlan

LAUNCHERS = {"local": "kltune.launchers.local:LocalLauncher"}


def open_launcher(name: str) -> Launcher:
    """Return the launcher of a name in ``LAUNCHERS``."""
    module, _, attribute = LAUNCHERS[name].partition(":")
    launcher: Launcher = getattr(import_module(module), attribute)()
    return launcher


__all__ = [
    "LAUNCHERS",
    "JobSpec",
    "JobState",
    "JobStatus",
    "LaunchPlan",
    "Launcher",
    "open_launcher",
]
