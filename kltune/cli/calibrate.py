"""``kltune run`` and ``kltune baseline``."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kltune.cli.options import (
    DEFAULT_WORKSPACE,
    ConfigOption,
    EpochsOption,
    FormatOption,
    FreshOption,
    GpuHoursOption,
    ParallelOption,
    PresetOption,
    QuietOption,
    SetOption,
    StepsOption,
    TimeoutOption,
    TrialsOption,
    WorkspaceOption,
    settings_of,
)
from kltune.cli.output import Format, Output

if TYPE_CHECKING:
    from kltune.calibration import Calibration


class Since(str, Enum):
    """What a calibration begins from."""

    LAST = "last"


def run(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    config: ConfigOption = None,
    preset: PresetOption = None,
    overrides: SetOption = None,
    trials: TrialsOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    timeout: TimeoutOption = None,
    max_gpu_hours: GpuHoursOption = None,
    parallel: ParallelOption = None,
    fresh: FreshOption = False,
    since: Annotated[
        Since | None,
        typer.Option("--since", help="last: a short calibration from where that one ended."),
    ] = None,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Run the whole protocol and write a calibrated config.yaml.

    Without any argument, and without a kltune.yaml here, it calibrates the shipped tiny model on
    this machine's CPU. Interrupted or killed, the same command goes on where it stopped.
    """
    out = Output(form, quiet)
    options = _budget(trials, steps, epochs, timeout, max_gpu_hours, parallel)
    calibration = _calibrate(out, workspace, config, preset, overrides, options, fresh, since)
    if calibration.settings is not None:
        from kltune.calibration.drift import remembered
        from kltune.calibration.export import write_config
        from kltune.calibration.validation import read_validation
        from kltune.workspace import Workspace

        place = Workspace(workspace)
        directory = place.calibrated
        write_config(calibration, directory, remembered(place), read_validation(place))
        out.note(f"Wrote {directory / 'config.yaml'}")
        where = shlex.quote(str(workspace))
        out.hint(f"kltune export --workspace {where} -o DIR", "the config, where you want it")
    _finish(calibration)


def baseline(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    config: ConfigOption = None,
    preset: PresetOption = None,
    overrides: SetOption = None,
    trials: TrialsOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    timeout: TimeoutOption = None,
    max_gpu_hours: GpuHoursOption = None,
    parallel: ParallelOption = None,
    fresh: FreshOption = False,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Step 1: a reference trial, a search, and a confirmation on fresh seeds."""
    out = Output(form, quiet)
    options = _budget(trials, steps, epochs, timeout, max_gpu_hours, parallel)
    calibration = _calibrate(out, workspace, config, preset, overrides, options, fresh)
    if calibration.settings is not None:
        where = shlex.quote(str(workspace))
        out.hint(
            f"kltune export --workspace {where} -o calibrated", "a config that verl trains with"
        )
    _finish(calibration)


def _budget(
    trials: int | None,
    steps: int | None,
    epochs: float | None,
    timeout: float | None,
    max_gpu_hours: float | None,
    parallel: int | None,
) -> dict[str, Any]:
    return {
        "search.trials": trials,
        "search.steps": steps,
        "search.epochs": epochs,
        "search.timeout_minutes": timeout,
        "search.max_gpu_hours": max_gpu_hours,
        "cluster.parallel": parallel,
    }


def _calibrate(
    out: Output,
    path: Path,
    config: Path | None,
    preset: str | None,
    overrides: list[str] | None,
    options: dict[str, Any],
    fresh: bool,
    since: Since | None = None,
) -> Calibration:
    from kltune.calibration import Baseline, prepare, start_over
    from kltune.calibration.recalibration import begin_again, fewer
    from kltune.cli.live import Live
    from kltune.cli.show import show_calibration
    from kltune.trial.records import as_json
    from kltune.workspace import Workspace

    settings = settings_of(preset, config, overrides, options)
    if since is not None and options["search.trials"] is None:
        options["search.trials"] = fewer(settings.content.search.trials)
        settings = settings_of(preset, config, overrides, options)
    setup = prepare(settings)
    workspace = Workspace(path.resolve())
    if fresh:
        start_over(workspace)
    elif since is not None:
        begin_again(setup, workspace)
    search = setup.settings.content.search
    runs = 1 + search.trials + 2 * search.confirmations
    with Live(out, "baseline", setup.settings.band, runs) as live:
        calibration = Baseline(setup, workspace, live).run()
    out.result(as_json(calibration), lambda console: show_calibration(console, calibration))
    return calibration


def _finish(calibration: Calibration) -> None:
    if not calibration.calibrated:
        raise typer.Exit(1)
