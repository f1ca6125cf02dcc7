"""Starting over in a workspace that holds something already."""

from __future__ import annotations

import time
from contextlib import suppress

from kltune.errors import LaunchError
from kltune.launchers import launcher_of
from kltune.trial.records import AttemptRecord, read
from kltune.workspace import AttemptDir, Workspace, cannot_write


def start_over(workspace: Workspace) -> None:
    """Set everything in the workspace aside, after ending what still runs of it.

    The old content stays beside it, under a name that ends in the time of the move.

    Raises:
        LaunchError: another kltune works here, or the directory cannot be moved.
    """
    if not workspace.identity.exists():
        return
    with workspace.locked():
        for plan in workspace.path.glob("*/*/attempt-*/attempt.json"):
            _end(AttemptDir(plan.parent))
        path = workspace.path.resolve()
        aside = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        while aside.exists():
            aside = aside.with_name(f"{aside.name}+")
        try:
            path.rename(aside)
        except OSError as error:
            raise cannot_write(aside, error) from error


def set_stage_aside(workspace: Workspace, stage: str) -> None:
    """Set a stage of a locked workspace aside, after ending what still runs of it.

    Raises:
        LaunchError: it cannot be moved.
    """
    for plan in workspace.stage(stage).glob("*/attempt-*/attempt.json"):
        _end(AttemptDir(plan.parent))
    workspace.set_stage_aside(stage)


def _end(attempt: AttemptDir) -> None:
    # Neither a damaged file nor a machine that is gone must keep anybody from starting over.
    with suppress(LaunchError):
        record = read(attempt.plan, AttemptRecord)
        if record is not None and not attempt.result.exists():
            launcher_of(record.handle).cancel(record.handle)
