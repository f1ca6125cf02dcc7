"""``kltune scale``."""

from __future__ import annotations

from typing import Annotated

import typer

from kltune.cli.options import (
    DEFAULT_WORKSPACE,
    ConfigOption,
    FormatOption,
    PresetOption,
    QuietOption,
    SetOption,
    WorkspaceOption,
    settings_of,
)
from kltune.cli.output import Format, Output


def scale(
    nodes: Annotated[
        str | None, typer.Option("--nodes", "-n", help="Numbers of nodes, e.g. 8 or 2,4,8.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option("--rule", help="Tried first: per-8-nodes, literal, hold, tensor-parallel."),
    ] = None,
    tensor_parallel: Annotated[
        int | None,
        typer.Option("--tensor-parallel", help="Also try target_kl times this size."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", help="Trials on each number of nodes.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Training steps of a trial; the baseline's.")
    ] = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    config: ConfigOption = None,
    preset: PresetOption = None,
    overrides: SetOption = None,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Step 2: carry the baseline's settings over to more nodes, by rules that trials check.

    With a CPU preset the nodes are virtual ones on this machine. Interrupted or killed, the same
    command goes on where it stopped.
    """
    from kltune.calibration.scale import Scaling
    from kltune.cli.live import Live
    from kltune.cli.show import show_scaling
    from kltune.trial.records import as_json
    from kltune.workspace import Workspace

    options = {
        "scale.nodes": _numbers(nodes),
        "scale.rule": rule,
        "scale.tensor_parallel": tensor_parallel,
        "scale.trials": trials,
        "scale.steps": steps,
    }
    out = Output(form, quiet)
    settings = settings_of(preset, config, overrides, options)
    section = settings.content.scale
    runs = section.trials * len(section.nodes)
    with Live(out, "scale", settings.band, runs) as live:
        scaling = Scaling(settings, Workspace(workspace.resolve()), live)
        results = scaling.run()
    out.result(
        [as_json(result) for result in results],
        lambda console: show_scaling(console, results, settings.band),
    )
    for result in results:
        if result.settings is not None:
            out.note(f"Wrote {scaling.export(result)}")
    if not results[-1].calibrated:
        raise typer.Exit(1)


def _numbers(text: str | None) -> list[int] | None:
    from kltune.errors import SettingsError

    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingsError(f"--nodes {text}: must be numbers such as 8 or 2,4,8") from None
