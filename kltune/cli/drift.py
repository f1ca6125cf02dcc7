"""``kltune drift``: has the data changed since the calibration?"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kltune.cli.options import (
    DEFAULT_WORKSPACE,
    ConfigOption,
    FormatOption,
    PresetOption,
    QuietOption,
    WorkspaceOption,
    settings_of,
)
from kltune.cli.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from kltune.drift import Drift


def drift(
    data: Annotated[
        list[Path], typer.Option("--data", help="Training data as it is now; may be repeated.")
    ],
    since: Annotated[
        Path | None,
        typer.Option("--since", help="Older parquet file, or data.json of an export."),
    ] = None,
    limit: Annotated[
        float | None, typer.Option("--limit", help="Share that means recalibrate, e.g. 0.1.")
    ] = None,
    prompt_key: Annotated[
        str, typer.Option("--prompt-key", help="Name of the prompt's column.")
    ] = "prompt",
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    config: ConfigOption = None,
    preset: PresetOption = None,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Compare training data with what the calibration was made on; exit code 1 from 10 % on.

    Rows are compared by content, whatever their order. Shifts of prompt length, answer length and
    mix of sources are shares of rows too, and never larger than the share of changed rows.
    """
    from kltune.calibration.drift import drift_since_calibration, drift_since_file
    from kltune.workspace import Workspace

    out = Output(form, quiet)
    allowed = settings_of(preset, config, None, {"drift.limit": limit}).content.drift.limit
    found = (
        drift_since_calibration(Workspace(workspace), data, prompt_key)
        if since is None
        else drift_since_file(since, data, prompt_key)
    )
    over = found.share >= allowed
    record = {**asdict(found), "limit": allowed, "recalibrate": over}
    out.result(record, lambda console: _show(console, found, allowed))
    if over:
        words = ["kltune", "run", "--since", "last", "--workspace", str(workspace)]
        words += ["--set", f"data.train_files=[{','.join(map(str, data))}]"]
        out.hint(shlex.join(words), "a short calibration from where the last one ended")
        raise typer.Exit(1)


def _show(console: Console, drift: Drift, limit: float) -> None:
    about = "" if drift.margin is None else f" ± {drift.margin:.1%} (from a sample)"
    rows = f"{drift.rows_before} rows before, {drift.rows_after} now"
    console.print(f"{rows}, {drift.unchanged} unchanged")
    if drift.changed is None:
        console.print(f"{drift.removed} removed or changed, {drift.added} added or changed")
    else:
        counts = f"{drift.added} added, {drift.removed} removed, {drift.changed} changed"
        note = "; rows are numbered anew, so none counts as changed" if drift.renumbered else ""
        console.print(counts + note)
    for name, shift in (
        ("prompt length", drift.prompt_length),
        ("answer length", drift.answer_length),
    ):
        console.print(
            f"{name}: mean {shift.before:.1f} -> {shift.after:.1f} characters, "
            f"shift {shift.distance:.1%}"
        )
    console.print(f"source mix: shift {drift.source_mix:.1%}")
    for name, (before, after) in drift.sources.items():
        if before != after:
            console.print(f"  {name}: {before:.1%} -> {after:.1%}")
    verdict = "recalibrate" if drift.share >= limit else "the calibration still holds"
    console.print(
        f"{drift.share:.1%}{about} of the data changed, limit {limit:.0%}: {verdict}", style="bold"
    )
