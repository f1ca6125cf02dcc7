"""How results look to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kltune.cli.live import sparkline, summary_line
from kltune.cli.trial_table import trial_table
from kltune.domain.steps import values
from kltune.report.rows import row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kltune.calibration import Calibration
    from kltune.calibration.health import Check
    from kltune.calibration.preview import Preview
    from kltune.calibration.profiling import StepProfile
    from kltune.calibration.scaled import NodeResult
    from kltune.calibration.status import Status
    from kltune.domain.communication import Advice, RankShare
    from kltune.domain.findings import Finding
    from kltune.domain.outcome import Band, Outcome
    from kltune.domain.steps import Step
    from kltune.domain.trials import Trial
    from kltune.monitor import Watched


def show_trials(console: Console, trials: Sequence[Trial], band: Band) -> None:
    """Print a table of trials."""
    rows = (row_of(trial, trial.outcome, band) for trial in trials)
    console.print(trial_table(rows, console.width))


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


def show_outcome(console: Console, outcome: Outcome) -> None:
    """Print how a single training ended."""
    console.print(summary_line(outcome.summary))
    why = f": {outcome.reason}" if outcome.reason else ""
    console.print(f"{outcome.ending.value} after {outcome.attempts} attempt(s){why}", style="bold")


def show_status(console: Console, status: Status) -> None:
    """Print trials, spending, and the story so far."""
    show_trials(console, status.trials, status.band)
    console.print(f"\nspent: {status.seconds / 60:.1f} minutes, {status.gpu_hours:.2f} GPU hours")
    for sentence in status.story:
        console.print(f"  {sentence}")
    if status.running:
        console.print(f"not ended: {', '.join(status.running)}")


def show_preview(console: Console, preview: Preview) -> None:
    """Print the script of the reference trial, what kltune changed, and the budget."""
    console.print(preview.script.rstrip(), soft_wrap=True)
    console.print("\nChanged by kltune:", style="bold")
    for change in preview.changed:
        for line in change.lines():
            console.print(f"  {line}", soft_wrap=True)
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


def show_scaling(console: Console, results: Sequence[NodeResult], band: Band) -> None:
    """Print each number of nodes: trials, KL against its prediction, throughput, the verdict."""
    for result in results:
        console.print(f"{result.nodes} nodes", style="bold")
        show_trials(console, result.trials, band)
        for transfer in result.transfers:
            if transfer.error is not None:
                console.print(
                    f"{transfer.trial}: reference KL {transfer.predicted_kl:.4f} predicted from "
                    f"one node, {transfer.measured_kl:.4f} measured ({transfer.error:+.0%})"
                )
        if result.throughput and result.throughput_one_node:
            share = result.throughput / result.throughput_one_node
            console.print(
                f"throughput: {result.throughput:.4g} tokens/s/GPU, {share:.0%} of one node's"
            )
        verdict = "calibrated" if result.calibrated else "not calibrated"
        console.print(f"{verdict}: {result.reason}", style="bold", soft_wrap=True)
        if result.settings is not None:
            console.print(f"settings ({result.winner}): {result.settings.describe()}\n")


def show_communication(console: Console, shares: Sequence[RankShare], advice: Advice) -> None:
    """Print the share of communication of every rank, its operations, and the advice."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("rank", "seconds", "communication", "share", "not hidden", "operations (s)"):
        table.add_column(title, overflow="fold")
    for rank in shares:
        hidden = "" if rank.exposed is None else f"{rank.exposed:.3g}"
        operations = ", ".join(f"{name} {s:.3g}" for name, s in rank.families.items())
        numbers = (f"{rank.seconds:.3g}", f"{rank.communication:.3g}", f"{rank.share:.1%}")
        table.add_row(rank.rank, *numbers, hidden, operations)
    console.print(table)
    console.print(advice.text, style="bold", soft_wrap=True)
    for key, value in advice.overrides.items():
        console.print(f"  {key}={value}", soft_wrap=True)


def show_step_profile(console: Console, profile: StepProfile) -> None:
    """Print where a profile was made, and the communication in it."""
    console.print(
        f"step {profile.step} on {profile.nodes} nodes with the settings of {profile.trial}, "
        f"{profile.tool} profiler: {profile.traces}",
        soft_wrap=True,
    )
    show_communication(console, profile.shares, profile.advice)


def finding_line(finding: Finding) -> str:
    """Return a finding in one line."""
    where = "" if finding.step is None else f"step {finding.step}  "
    action = "" if finding.action.value == "none" else f"  -> {finding.action.value}"
    return f"{finding.severity.value:8}  {where}{finding.rule}: {finding.message}{action}"


#: What is drawn of a run, with a title each.
CURVES = {
    "reference_kl": "reference KL",
    "coefficient": "coefficient",
    "score": "score",
    "response_length": "length",
    "entropy": "entropy",
    "grad_norm": "grad norm",
    "mismatch_kl": "rollout KL",
}

_WIDTH = 64


def curves(steps: Sequence[Step]) -> list[str]:
    """Return one line for each number that a run logs: its title, its course, first and last."""
    lines = []
    for name, title in CURVES.items():
        found = [value for _, value in values(steps, name)]
        if found:
            ends = f"{found[0]:.4g} .. {found[-1]:.4g}"
            lines.append(f"{title:>13}  {sparkline(_thinned(found))}  {ends}")
    if steps:
        lines.append(f"{'steps':>13}  {steps[0].step} .. {steps[-1].step}")
    return lines


def _thinned(numbers: list[float]) -> list[float]:
    """Return at most ``_WIDTH`` of the numbers; of each stretch the one farthest from its mean."""
    if len(numbers) <= _WIDTH:
        return numbers
    kept = []
    for column in range(_WIDTH):
        start, end = column * len(numbers) // _WIDTH, (column + 1) * len(numbers) // _WIDTH
        stretch = numbers[start:end]
        mean = sum(stretch) / len(stretch)
        bad = [v for v in stretch if v != v]
        kept.append(bad[0] if bad else max(stretch, key=lambda v: abs(v - mean)))
    return kept


def show_watched(console: Console, runs: Sequence[Watched], profile: str) -> None:
    """Print a table of runs with every profile's verdict, then curves and findings of each."""
    from rich.table import Table

    profiles = list(runs[0].replay.findings)
    table = Table(box=None, pad_edge=False)
    for title in ("source", "format", "steps", "KL mean", "max", "last", *profiles):
        table.add_column(title, overflow="fold")
    for run in runs:
        record: Any = run.record()
        kl = [record["kl"][key] for key in ("mean", "max", "last")]
        table.add_row(
            run.source,
            run.format,
            str(record["steps"]),
            *("" if value is None else f"{value:.4g}" for value in kl),
            *(_verdict(run, name) for name in profiles),
        )
    console.print(table)
    for run in runs:
        console.print(f"\n{run.source}", style="bold", soft_wrap=True)
        for line in curves(list(run.recent)):
            console.print(line, soft_wrap=True)
        for name in profiles:
            for finding in run.replay.findings[name]:
                mark = "*" if name == profile else " "
                console.print(f"{mark} {name:9} {finding_line(finding)}", soft_wrap=True)


def _verdict(run: Watched, profile: str) -> str:
    from kltune.domain.findings import Severity

    first = next(
        (f for f in run.replay.findings[profile] if f.severity is Severity.CRITICAL), None
    )
    when = f" (step {first.step})" if first is not None and first.step is not None else ""
    return run.replay.verdict(profile).value + when
