"""``kltune export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kltune.cli.options import DEFAULT_WORKSPACE, FormatOption, QuietOption, WorkspaceOption
from kltune.cli.output import Format, Output


def export(
    directory: Annotated[Path, typer.Option("--output", "-o", help="Where to write it.")],
    kind: Annotated[str, typer.Option("--as", help="What to write: config.")] = "config",
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Write the calibrated configuration: DIR/config.yaml, which verl trains with as it is."""
    from kltune.calibration import read_calibration
    from kltune.calibration.drift import remembered
    from kltune.calibration.export import train_command, write_config
    from kltune.errors import SettingsError
    from kltune.workspace import Workspace

    if kind != "config":
        raise SettingsError(f"--as {kind}: must be config")
    out = Output(form, quiet)
    calibration = read_calibration(Workspace(workspace))
    path = write_config(calibration, directory, remembered(Workspace(workspace)))
    command = train_command(calibration, directory)
    out.result({"config": str(path), "command": command}, lambda console: console.print(str(path)))
    out.hint(" ".join(command), "trains with it")
    if not calibration.calibrated:
        out.note(f"Note: {calibration.reason}")
