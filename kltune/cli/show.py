"""How results look to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kltune.cli.live import ROW_NAMES, row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kltune.calibration import Calibration
    from kltune.calibration.health import Check
    from kltune.calibration.preview import Preview
    from kltune.calibration.status import Status
    from kltune.domain.outcome import Band
    from kltune.domain.protocol import Trial


def show_trials(console: Console, trials: Sequence[Trial], band: Band) -> None:
    """Print a table of trials."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ROW_NAMES:
        table.add_column(name, no_wrap=True)
    for trial in trials:
        table.add_row(*row_of(trial, trial.outcome, band))
    console.print(table)


def show_calibration(console: Console, calibration: Calibration) -> None:
    """Print the verdict, the numbers behind it, and what it does not carry over without."""
    show_trials(console, calibration.trials, calibration.band)
    console.print("KL is the mean reference KL over the last half of the steps, nats per token.\n")
    verdict = "calibrated" if calibration.calibrated else "not calibrated"
    console.print(f"{verdict}: {calibration.reason}", style="bold")
    if calibration.settings is not None:
        console.print(f"settings ({calibration.winner}): {calibration.settings.describe()}")
    console.print(f"reference: {calibration.reference.describe()}")
    if calibration.best_outside is not None:
        console.print(
            f"outside the band, {calibration.best_outside} had a better score: the band costs that"
        )
    fixed = ", ".join(f"{name} {value}" for name, value in calibration.held_fixed.items())
    console.print(f"held fixed: {fixed}")
    cost = f"{calibration.gpu_hours:.2f} GPU hours, {calibration.seconds / 60:.1f} minutes"
    console.print(f"cost: {len(calibration.trials)} trials, {cost}")


def show_status(console: Console, status: Status) -> None:
    """Print trials, spending, and the story so far."""
    show_trials(console, status.trials, status.band)
    console.print(f"\nspent: {status.seconds / 60:.1f} minutes, {status.gpu_hours:.2f} GPU hours")
    for sentence in status.story:
        console.print(f"  {sentence}")
    if status.running is not None:
        console.print(f"not ended: {status.running}")


def show_preview(console: Console, preview: Preview) -> None:
    """Print the script of the reference trial, what kltune changed, and the budget."""
    console.print(preview.script.rstrip(), soft_wrap=True)
    console.print("\nChanged by kltune:", style="bold")
    for changed in preview.changed:
        before = f"   (was {changed.before})" if changed.before else ""
        console.print(f"  {changed.override}{before}", soft_wrap=True)
    console.print(
        f"\nBudget: at most {preview.trials} trials of {preview.steps} steps on {preview.gpus} "
        f"GPU(s); limits: {preview.bounds}"
    )


def show_health(console: Console, checks: Sequence[Check]) -> None:
    """Print what was looked at, one line each."""
    signs = {"good": "ok  ", "warning": "note", "missing": "FAIL"}
    for check in checks:
        console.print(f"{signs[check.health.value]}  {check.name}: {check.found}", soft_wrap=True)
        if check.remedy:
            console.print(f"      {check.remedy}", soft_wrap=True)
