"""``kltune scale``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kltune.cli.options import (
    DEFAULT_WORKSPACE,
    ConfigOption,
    FormatOption,
    ParallelOption,
    PresetOption,
    QuietOption,
    SetOption,
    WorkspaceOption,
    settings_of,
)
from kltune.cli.output import Ended, Format, Output

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from kltune.calibration.profiling import StepProfile
    from kltune.calibration.scaled import NodeResult
    from kltune.settings import Settings


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
    parallel: ParallelOption = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Then profile a step on the most nodes: communication."),
    ] = False,
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
    options = {
        "scale.nodes": _numbers(nodes),
        "scale.rule": rule,
        "scale.tensor_parallel": tensor_parallel,
        "scale.trials": trials,
        "scale.steps": steps,
        "cluster.parallel": parallel,
    }
    out = Output(form, quiet)
    settings = settings_of(preset, config, overrides, options)
    out.end(carry_out(out, settings, workspace, profile))


def carry_out(out: Output, settings: Settings, workspace: Path, profile: bool = False) -> Ended:
    """Run the stage, write the configuration of every number of nodes, and return the results."""
    from kltune.calibration.export import write_scaled
    from kltune.calibration.profiling import STEPS, check_profiler, profile_step
    from kltune.calibration.scale import Scaling
    from kltune.cli.live import Live
    from kltune.cli.show import show_scaling, show_step_profile
    from kltune.workspace import Workspace

    place = Workspace(workspace.resolve())
    section = settings.content.scale
    runs = (section.trials + settings.content.search.confirmations) * len(section.nodes)
    with Live(out, "scale", settings.band, runs) as live:
        scaling = Scaling(settings, place, live)
        if profile:
            check_profiler(scaling.setup(section.nodes[-1], STEPS))
        results = scaling.run()
        notes = tuple(f"Wrote {path}" for path in write_scaled(place).values())
        found = [result for result in results if result.settings is not None]
        profiled = profile_step(scaling, found[-1]) if profile and found else None

    def show(console: Console) -> None:
        show_scaling(console, results, settings.band)
        if profiled is not None:
            show_step_profile(console, profiled)

    value = [_as_json(result, profiled) for result in results]
    return Ended(value, show, results[-1].calibrated, notes)


def _as_json(result: NodeResult, profile: StepProfile | None) -> dict[str, Any]:
    from kltune.cli.comm import communication
    from kltune.trial.records import as_json

    found = None
    if profile is not None and profile.nodes == result.nodes:
        found = {**as_json(profile), **communication(profile.shares, profile.advice)}
        del found["shares"]
    return {**as_json(result), "profile": found}


def _numbers(text: str | None) -> list[int] | None:
    from kltune.errors import SettingsError

    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingsError(f"--nodes {text}: must be numbers such as 8 or 2,4,8") from None
