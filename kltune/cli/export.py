"""``kltune export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kltune.cli.options import DEFAULT_WORKSPACE, FormatOption, QuietOption, WorkspaceOption
from kltune.cli.output import Format, Output, hint

if TYPE_CHECKING:
    from kltune.calibration import Calibration
    from kltune.calibration.peak import Choice
    from kltune.workspace import Workspace


def export(
    directory: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it.")
    ] = None,
    forms: Annotated[
        str,
        typer.Option(
            "--as", metavar="FORM,...", help="config, overrides, script, ray-job, slurm."
        ),
    ] = "config",
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", "-n", help="For so many nodes, as kltune scale found it."),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Show how the settings moved; writes nothing.")
    ] = False,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Write the calibrated configuration: DIR/config.yaml, which verl trains with as it is.

    After kltune scale, DIR/nodes-N/config.yaml is that of N nodes.

    Other forms of the same training: its overrides, a bash script (your own, with the changed
    lines marked, where the settings came from one), a Ray job, an sbatch script.
    """
    from kltune.calibration import read_calibration
    from kltune.calibration.drift import remembered
    from kltune.calibration.export import train_command, write_config, write_scaled
    from kltune.calibration.forms import FORMS, unknown_forms, write_form
    from kltune.calibration.peak import choose
    from kltune.calibration.validation import read_validation
    from kltune.errors import SettingsError
    from kltune.trial.records import as_json
    from kltune.workspace import Workspace

    out = Output(form, quiet)
    if history:
        _show_history(out, Workspace(workspace))
        return
    if directory is None:
        raise SettingsError("--output: where should it be written? give a directory, e.g. -o DIR")
    wanted = [form.strip() for form in forms.split(",") if form.strip()]
    if faults := unknown_forms(wanted, {"config": None, **FORMS}):
        raise SettingsError(faults)
    place = Workspace(workspace)
    calibration, validation = read_calibration(place), read_validation(place)
    if nodes is not None:
        calibration, validation = _at_nodes(place, calibration, nodes), None
    choice = choose(calibration, validation)
    written = {
        form: write_config(calibration, directory, remembered(place), validation)
        if form == "config"
        else write_form(calibration, choice, form, directory)
        for form in wanted
    }
    if "config" in written and nodes is None:
        for number, path in write_scaled(place, directory).items():
            written[f"nodes-{number}"] = path
    command = train_command(str(directory.resolve()))
    out.result(
        {
            **{form: str(path) for form, path in written.items()},
            "command": command,
            "choice": as_json(choice),
            "environment": dict(calibration.environment),
        },
        lambda console: console.print("\n".join(map(str, written.values()))),
    )
    if "config" in written:
        out.hint(" ".join(command), "trains with it")
    if not calibration.calibrated:
        out.note(f"Note: {calibration.reason}")
    for text in about(choice, calibration):
        out.note(text)


def _at_nodes(workspace: Workspace, calibration: Calibration, nodes: int) -> Calibration:
    from kltune.calibration.scaled import read_scaled
    from kltune.errors import NotCalibratedError

    found = read_scaled(workspace, calibration)
    if nodes not in found:
        there = f"there are settings for {', '.join(map(str, found))}; " if found else ""
        raise NotCalibratedError(
            f"--nodes {nodes}: nothing was calibrated on so many; {there}kltune scale --nodes "
            f"{nodes} does it"
        )
    return found[nodes]


def about(choice: Choice, calibration: Calibration) -> list[str]:
    """Return what is to be said of settings that a validation speaks against."""
    from kltune.calibration.export import confirm_command

    notes = [f"Note: {choice.reason}"] if choice.reason else []
    if choice.moved:
        trained = "one trial had them" if choice.measured else "no trial was run with them"
        notes += [
            f"Exported are {choice.settings.describe()}, from {choice.origin}; {trained}. The "
            "calibration itself stays as it was measured",
            hint(
                " ".join(confirm_command(calibration, choice)),
                "trains with them; then kltune validate --workspace AT-PEAK",
            ),
        ]
    return notes


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
