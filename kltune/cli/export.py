"""``kltune export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kltune.cli.options import DEFAULT_WORKSPACE, FormatOption, QuietOption, WorkspaceOption
from kltune.cli.output import Format, Output

if TYPE_CHECKING:
    from kltune.workspace import Workspace


def export(
    directory: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it.")
    ] = None,
    kind: Annotated[str, typer.Option("--as", help="What to write: config.")] = "config",
    history: Annotated[
        bool, typer.Option("--history", help="Show how the settings moved; writes nothing.")
    ] = False,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Write the calibrated configuration: DIR/config.yaml, which verl trains with as it is."""
    from kltune.calibration import read_calibration
    from kltune.calibration.drift import remembered
    from kltune.calibration.export import train_command, write_config
    from kltune.calibration.validation import read_validation
    from kltune.errors import SettingsError
    from kltune.workspace import Workspace

    out = Output(form, quiet)
    if history:
        _show_history(out, Workspace(workspace))
        return
    if directory is None:
        raise SettingsError("--output: where should it be written? give a directory, e.g. -o DIR")
    if kind != "config":
        raise SettingsError(f"--as {kind}: must be config")
    place = Workspace(workspace)
    calibration = read_calibration(place)
    path = write_config(calibration, directory, remembered(place), read_validation(place))
    command = train_command(calibration, directory)
    out.result({"config": str(path), "command": command}, lambda console: console.print(str(path)))
    out.hint(" ".join(command), "trains with it")
    if not calibration.calibrated:
        out.note(f"Note: {calibration.reason}")


def _show_history(out: Output, workspace: Workspace) -> None:
    import time

    from rich.console import Console
    from rich.table import Table

    from kltune.calibration.recalibration import history
    from kltune.trial.records import as_json

    found = history(workspace)

    def show(console: Console) -> None:
        table = Table(box=None, pad_edge=False)
        for title in ("finished", "settings", "KL", "score", "calibrated", "data"):
            table.add_column(title, overflow="fold")
        for entry in found:
            table.add_row(
                time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.finished)),
                entry.settings.describe() if entry.settings is not None else "none",
                "" if entry.kl is None else f"{entry.kl:.4f}",
                "" if entry.objective is None else f"{entry.objective:.4f}",
                "yes" if entry.calibrated else "no",
                entry.data,
            )
        console.print(table)

    out.result([as_json(entry) for entry in found], show)
