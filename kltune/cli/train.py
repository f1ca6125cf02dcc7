"""``kltune train``: the user's real training, under watch."""

from __future__ import annotations

import typer

from kltune.cli.options import (
    DEFAULT_WORKSPACE,
    ConfigOption,
    FormatOption,
    PresetOption,
    QuietOption,
    SetOption,
    StepsOption,
    WorkspaceOption,
    settings_of,
)
from kltune.cli.output import Format, Output


def train(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    config: ConfigOption = None,
    preset: PresetOption = None,
    overrides: SetOption = None,
    steps: StepsOption = None,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Train with the calibrated settings: watched, restarted and rolled back by the protocol.

    Killed and run again, it goes on: it takes up the training that still runs, or continues from
    the last checkpoint with the coefficient that verl forgets.
    """
    from kltune.calibration import Training, prepare
    from kltune.cli.live import Live
    from kltune.cli.show import show_outcome
    from kltune.domain.outcome import Ending
    from kltune.trial.records import as_json
    from kltune.workspace import Workspace

    out = Output(form, quiet)
    setup = prepare(settings_of(preset, config, overrides))
    with Live(out, "train", setup.settings.band, runs=1) as live:
        outcome = Training(setup, Workspace(workspace), live, steps).run()
    out.result(as_json(outcome), lambda console: show_outcome(console, outcome))
    if outcome.ending is not Ending.COMPLETED:
        out.hint(f"kltune status --workspace {workspace}", "tells the story of the attempts")
        raise typer.Exit(1)
