"""``kltune comm``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kltune.cli.options import (
    ConfigOption,
    FormatOption,
    PresetOption,
    QuietOption,
    SetOption,
    settings_of,
)
from kltune.cli.output import Format, Output

if TYPE_CHECKING:
    from kltune.domain.communication import Advice, MicroBatch, RankShare


def comm(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Torch profiler traces (.json, .json.gz), Nsight Systems exports (.sqlite, or "
            "CSV of nsys stats), or directories of them.",
        ),
    ],
    config: ConfigOption = None,
    preset: PresetOption = None,
    overrides: SetOption = None,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Show the share of collective communication, per rank and operation, and the advice."""
    from kltune.cli.show import show_communication
    from kltune.domain.communication import advise
    from kltune.traces import read_shares

    out = Output(form, quiet)
    shares = read_shares(traces)
    advice = advise(shares, _micro_batch(config, preset, overrides))
    out.result(
        communication(shares, advice),
        lambda console: show_communication(console, shares, advice),
    )


def communication(shares: Sequence[RankShare], advice: Advice) -> dict[str, Any]:
    """Return what was read from traces, and the advice, as JSON."""
    from kltune.trial.records import as_json

    ranks = [{**as_json(share), "share": share.share} for share in shares]
    return {"ranks": ranks, "advice": as_json(advice)}


def _micro_batch(
    config: Path | None, preset: str | None, overrides: list[str] | None
) -> MicroBatch | None:
    """Return the micro batch of the configuration that the command line names, if any."""
    if config is None and preset is None and not overrides:
        return None
    from kltune.calibration.batches import micro_batch

    return micro_batch(settings_of(preset, config, overrides))
