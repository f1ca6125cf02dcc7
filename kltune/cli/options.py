"""Options that every command spells the same way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kltune.cli.output import Format

if TYPE_CHECKING:
    from kltune.settings import Settings

WorkspaceOption = Annotated[
    Path, typer.Option("--workspace", "-w", help="Directory that holds everything.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings; ./kltune.yaml where it exists.")
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", "-p", help="Preset that the settings are laid over.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="A verl override; may be repeated."),
]
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="human or json.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no hints.")]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Start over; what was there is set aside.")
]
TrialsOption = Annotated[int | None, typer.Option("--trials", help="Number of search trials.")]
StepsOption = Annotated[int | None, typer.Option("--steps", help="Training steps of a trial.")]
EpochsOption = Annotated[
    float | None, typer.Option("--epochs", help="Length of a trial in epochs, without --steps.")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", metavar="MINUTES", help="No new search trial after this long."),
]
GpuHoursOption = Annotated[
    float | None,
    typer.Option("--max-gpu-hours", help="No new search trial after so many GPU hours."),
]
ParallelOption = Annotated[
    int | None,
    typer.Option("--parallel", help="Trials side by side, each with its own GPUs."),
]

DEFAULT_WORKSPACE = Path("kltune-runs")


def settings_of(
    preset: str | None,
    config: Path | None,
    overrides: list[str] | None,
    options: dict[str, Any] | None = None,
) -> Settings:
    """Return the settings that a command line asks for.

    Without ``--config`` a ``kltune.yaml`` in the current directory is taken; without that and
    without ``--preset`` it is the first preset, which runs on any machine.

    Raises:
        SettingsError: everything that is wrong with them.
    """
    from kltune.settings import FIRST_PRESET, load
    from kltune.verl.overrides import parse

    here = Path("kltune.yaml")
    if config is None and here.exists():
        config = here
    if config is None and preset is None:
        preset = FIRST_PRESET
    return load(preset, config, parse(overrides or []), options)
