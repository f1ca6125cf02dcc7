"""``kltune report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kltune.cli.options import DEFAULT_WORKSPACE, FormatOption, QuietOption, WorkspaceOption
from kltune.cli.output import Format, Output


def report(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE-or-DIR", help="report.html in the workspace."
        ),
    ] = None,
    forms: Annotated[
        str, typer.Option("--as", metavar="FORM,...", help="html, markdown, json.")
    ] = "",
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Write everything that is known of a calibration, with plots, as one HTML file.

    It may be written at any time, finished or not, and disturbs nobody who works there.
    """
    from kltune.calibration.report import read_report
    from kltune.report.forms import places, write_report
    from kltune.workspace import Workspace

    out = Output(form, quiet)
    wanted = [form.strip() for form in forms.split(",") if form.strip()]
    where = places(output or workspace, wanted)
    write_report(read_report(Workspace(workspace.resolve())), where)
    written = {form: str(path) for form, path in where.items()}
    out.result(written, lambda console: console.print("\n".join(written.values())))
