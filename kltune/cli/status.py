"""``kltune status``."""

from __future__ import annotations

from kltune.cli.options import DEFAULT_WORKSPACE, FormatOption, QuietOption, WorkspaceOption
from kltune.cli.output import Format, Output


def status(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Show trials, attempts, findings, and what was spent."""
    from kltune.calibration.status import read_status
    from kltune.cli.show import show_status
    from kltune.trial.records import as_json
    from kltune.workspace import Workspace

    out = Output(form, quiet)
    found = read_status(Workspace(workspace))
    out.result(as_json(found), lambda console: show_status(console, found))
    if found.running:
        out.hint("kltune run", "goes on where it stopped, unless another kltune is at it")
