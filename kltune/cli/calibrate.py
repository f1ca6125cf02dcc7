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
from kltune.cli.output import Ended, Format, Output, hint

if TYPE_CHECKING:
    from rich.console import Console

    from kltune.calibration import Calibration, Setup
    from kltune.domain.events import Observer
    from kltune.settings import Settings
    from kltune.workspace import Workspace


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

    After the baseline come the stages that the settings name: scale, validate. Without any
    argument, and without a kltune.yaml here, it calibrates the shipped tiny model on this
    machine's CPU. Interrupted or killed, the same command goes on where it stopped.
    """
    from kltune.cli import scale, validate

    out = Output(form, quiet)
    options = _budget(trials, steps, epochs, timeout, max_gpu_hours, parallel)
    settings, calibration = _calibrate(
        out, workspace, config, preset, overrides, options, fresh, since, later_stages=True
    )
    scaled = validated = None
    if calibration.calibrated:
        if settings.names("scale"):
            scaled = scale.carry_out(out, settings, workspace)
        if settings.names("validate"):
            validated = validate.carry_out(out, settings, workspace)
    out.end(_whole(calibration, scaled, validated, _write(calibration, workspace)))


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
    _, calibration = _calibrate(out, workspace, config, preset, overrides, options, fresh)
    notes: tuple[str, ...] = ()
    if calibration.settings is not None:
        where = shlex.quote(str(workspace))
        command = f"kltune export --workspace {where} -o calibrated"
        notes = (hint(command, "a config that verl trains with"),)
    out.end(_ended(calibration, notes))


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
    later_stages: bool = False,
) -> tuple[Settings, Calibration]:
    from kltune.calibration import Baseline, prepare, start_over
    from kltune.calibration.recalibration import begin_again, fewer
    from kltune.cli.live import Live
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
        if later_stages:
            _check_later_stages(setup, settings, workspace, live)
        calibration = Baseline(setup, workspace, live).run()
    return settings, calibration


def _check_later_stages(
    setup: Setup, settings: Settings, workspace: Workspace, observe: Observer
) -> None:
    """Have what would keep a later stage from starting told before the first trial."""
    from kltune.calibration.scale import Scaling
    from kltune.calibration.validation import Validation

    if settings.names("scale"):
        section = settings.content.scale
        for nodes in section.nodes:
            Scaling(settings, workspace, observe).setup(nodes, section.steps or setup.steps)
    if settings.names("validate"):
        Validation(setup, workspace, observe).tasks()


def _write(calibration: Calibration, path: Path) -> tuple[str, ...]:
    """Write the configuration, and return what to say about it."""
    where = shlex.quote(str(path))
    report = hint(f"kltune report --workspace {where}", "everything on one page, with plots")
    if calibration.settings is None:
        return (report,)
    from kltune.calibration.drift import remembered
    from kltune.calibration.export import write_config
    from kltune.calibration.peak import choose
    from kltune.calibration.validation import read_validation
    from kltune.cli.export import about
    from kltune.workspace import Workspace

    workspace = Workspace(path)
    directory = workspace.calibrated
    validation = read_validation(workspace)
    write_config(calibration, directory, remembered(workspace), validation)
    command = f"kltune export --workspace {where} -o DIR"
    return (
        f"Wrote {directory / 'config.yaml'}",
        *about(choose(calibration, validation), calibration),
        hint(command, "the config, where you want it"),
        report,
    )


def _ended(calibration: Calibration, notes: tuple[str, ...] = ()) -> Ended:
    from kltune.cli.show import show_calibration
    from kltune.trial.records import as_json

    return Ended(
        as_json(calibration),
        lambda console: show_calibration(console, calibration),
        calibration.calibrated,
        notes,
    )


def _whole(
    calibration: Calibration,
    scaled: Ended | None,
    validated: Ended | None,
    notes: tuple[str, ...],
) -> Ended:
    """Return all stages as one; for machines, the later ones beside the baseline's result."""
    first = _ended(calibration)
    later = {"scale": scaled, "validation": validated}
    stages = [first, *(stage for stage in later.values() if stage is not None)]

    def show(console: Console) -> None:
        for stage in stages:
            stage.show(console)

    value = {**first.value, **{name: stage and stage.value for name, stage in later.items()}}
    told = [note for stage in stages for note in stage.notes]
    return Ended(value, show, all(stage.good for stage in stages), (*told, *notes))
