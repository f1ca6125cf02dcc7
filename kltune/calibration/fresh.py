"""Starting over in a workspace that holds something already."""

from __future__ import annotations

import time

from kltune.launchers import LAUNCHERS, open_launcher
from kltune.trial.records import AttemptRecord, AttemptResult, read
from kltune.workspace import Workspace, cannot_write


def start_over(workspace: Workspace) -> None:
    """Set everything in the workspace aside, after ending what still runs of it.

    The old content stays beside it, under a name that ends in the time of the move.

    Raises:
        LaunchError: another kltune works here, or the directory cannot be moved.
    """
    if not workspace.identity.exists():
        return
    with workspace.locked():
        for stage in workspace.stages():
            for trial in workspace.trials(stage):
                for attempt in trial.attempts():
                    record = read(attempt.plan, AttemptRecord)
                    if record is not None and read(attempt.result, AttemptResult) is None:
                        scheme = record.handle.partition("://")[0]
                        if scheme in LAUNCHERS:
                            open_launcher(scheme).cancel(record.handle)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        aside = workspace.path.with_name(f"{workspace.path.name}.{stamp}")
        try:
            workspace.path.rename(aside)
        except OSError as error:
            raise cannot_write(aside, error) from error
