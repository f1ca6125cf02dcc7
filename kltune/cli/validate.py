"""``kltune validate``: is the calibrated training really better?"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from kltune.cli.options import (
    DEFAULT_WORKSPACE,
    ConfigOption,
    FormatOption,
    ParallelOption,
    PresetOption,
    QuietOption,
    SetOption,
    StepsOption,
    WorkspaceOption,
    settings_of,
)
from kltune.cli.output import Ended, Format, Output, hint

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from kltune.calibration.validation import ValidationReport
    from kltune.settings import Settings
    from kltune.validation import Curve


def validate(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    config: ConfigOption = None,
    preset: PresetOption = None,
    overrides: SetOption = None,
    steps: StepsOption = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Trainings of each of the two settings.")
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option("--task", help="gsm8k, aime24, aime25 or a parquet file; may be repeated."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", help="Answers to each problem; 1 is greedy.")
    ] = None,
    parallel: ParallelOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Set an earlier validation aside and start over.")
    ] = False,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Step 4: pass@1 of base model, reference and calibrated settings, on fresh seeds.

    Exit code 1 when the calibrated settings have become worse. Run again with more --seeds, it
    adds them to those that are there.
    """
    from kltune.calibration.fresh import set_stage_aside
    from kltune.calibration.validation import STAGE
    from kltune.workspace import Workspace

    out = Output(form, quiet)
    options = {
        "search.steps": steps,
        "validate.seeds": seeds,
        "validate.tasks": tasks or None,
        "validate.samples": samples,
        "cluster.parallel": parallel,
    }
    settings = settings_of(preset, config, overrides, options)
    if fresh:
        place = Workspace(workspace)
        with place.locked():
            set_stage_aside(place, STAGE)
    out.end(carry_out(out, settings, workspace))


def carry_out(out: Output, settings: Settings, workspace: Path) -> Ended:
    """Run the stage and return what it found."""
    from kltune.calibration import prepare
    from kltune.calibration.validation import STAGE, Validation, report_record
    from kltune.cli.live import Live
    from kltune.validation import Finding
    from kltune.workspace import Workspace

    setup = prepare(settings)
    runs = 2 * setup.settings.content.validation.seeds
    with Live(out, STAGE, setup.settings.band, runs) as live:
        report = Validation(setup, Workspace(workspace), live).run()
    notes: tuple[str, ...] = ()
    arm = [*report.settings][-1]
    if any(task.curves[arm].declined for task in report.tasks.values() if arm in task.curves):
        command = f"kltune export --workspace {shlex.quote(str(workspace))} -o DIR"
        why = "pass@1 has fallen from its peak beyond chance; says what holds the KL of the peak"
        notes = (hint(command, why),)
    return Ended(
        report_record(report),
        lambda console: show_validation(console, report),
        report.finding is not Finding.REGRESSED,
        notes,
    )


def show_validation(console: Console, report: ValidationReport) -> None:
    """Print levels, comparisons, curves and the verdict."""
    from rich.table import Table

    for arm, settings in report.settings.items():
        console.print(f"{arm}: {settings}")
    for task, found in report.tasks.items():
        answers = "greedy" if report.samples == 1 else f"{report.samples} answers each"
        console.print(
            f"\n{task}: {found.problems} problems, {len(report.seeds)} seeds, {answers}",
            style="bold",
        )
        table = Table(box=None, pad_edge=False)
        ks = sorted({k for level in found.levels.values() for k in level.pass_at})
        for title in ("", "pass@1", "95 % interval", *(f"pass@{k}" for k in ks)):
            table.add_column(title, no_wrap=True)
        for arm, level in found.levels.items():
            low, high = level.interval
            table.add_row(
                arm,
                f"{level.pass_at_1:.3f}",
                f"{low:.3f} to {high:.3f}",
                *(f"{level.pass_at[k]:.3f}" for k in ks),
            )
        console.print(table)
        for name, made in found.comparisons.items():
            low, high = made.interval
            share = "" if made.relative is None else f" ({made.relative:+.1%} of it)"
            console.print(
                f"{name}: {100 * made.difference:+.1f} points{share}, {100 * low:+.1f} to "
                f"{100 * high:+.1f}, p = {made.p_value:.2g} ({made.method}): {made.finding.value}"
            )
        for arm, drawn in found.curves.items():
            _show_curve(console, arm, drawn)
    console.print(
        "\nThe protocol expects +5 to +10 % of a stable KL; the measured differences are above."
    )
    for trial, why in report.left_out.items():
        console.print(f"left out: {trial}: {why}")
    console.print(f"\n{report.finding.value}: {report.reason}", style="bold")


def _show_curve(console: Console, arm: str, drawn: Curve) -> None:
    from kltune.cli.live import sparkline

    first, last = drawn.points[0], drawn.points[-1]
    console.print(
        f"\n{arm} over sqrt(KL), {first.distance:.3f} to {last.distance:.3f} "
        f"(step {first.step} to {last.step})"
    )
    for title, numbers in (
        ("training score", [p.score for p in drawn.points]),
        ("pass@1", [p.pass_at_1 for p in drawn.points]),
    ):
        ends = f"{numbers[0]:.3f} .. {numbers[-1]:.3f}"
        console.print(f"{title:>16}  {sparkline(numbers)}  {ends}")
    console.print(
        f"{'':>16}  pass@1 peaks at {drawn.peak.pass_at_1:.3f}, step {drawn.peak.step}, reference "
        f"KL {drawn.peak.kl:.4f} nats/token; {drawn.reason}"
    )
