"""``kltune plan``."""

from __future__ import annotations

from kltune.cli.options import (
    DEFAULT_WORKSPACE,
    ConfigOption,
    FormatOption,
    PresetOption,
    QuietOption,
    SetOption,
    StepsOption,
    TrialsOption,
    WorkspaceOption,
    settings_of,
)
from kltune.cli.output import Format, Output


def plan(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    config: ConfigOption = None,
    preset: PresetOption = None,
    overrides: SetOption = None,
    trials: TrialsOption = None,
    steps: StepsOption = None,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Show exactly what would be launched, and the budget. Starts and writes nothing."""
    from kltune.calibration import prepare
    from kltune.calibration.preview import preview
    from kltune.cli.show import show_preview
    from kltune.trial.records import as_json
    from kltune.workspace import Workspace

    out = Output(form, quiet)
    options = {"search.trials": trials, "search.steps": steps}
    found = preview(prepare(settings_of(preset, config, overrides, options)), Workspace(workspace))
    out.result(as_json(found), lambda console: show_preview(console, found))
    out.hint("kltune run", "does it")
