"""``kltune doctor``."""

from __future__ import annotations

import typer

from kltune.cli.options import DEFAULT_WORKSPACE, FormatOption, QuietOption, WorkspaceOption
from kltune.cli.output import Format, Output


def doctor(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Say what is here, what is missing, and how to get it."""
    from kltune.calibration.health import examine
    from kltune.cli.show import show_health
    from kltune.trial.records import as_json
    from kltune.workspace import Workspace

    out = Output(form, quiet)
    checks = examine(Workspace(workspace))
    out.result(
        {"checks": [as_json(check) for check in checks]},
        lambda console: show_health(console, checks),
    )
    if any(check.blocks for check in checks):
        raise typer.Exit(4)
