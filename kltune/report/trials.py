"""Trials, their attempts, and the findings on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from kltune.calibration.report import AttemptSeen, Report, Run
from kltune.calibration.training import STAGE as TRAINING
from kltune.domain.outcome import Band
from kltune.report import plots
from kltune.report.document import Plot, Section, Table, Text
from kltune.report.rows import ROW_NAMES, clock, row_of, short

_FINDING = ("trial", "severity", "rule", "step", "metric", "value", "limit", "what", "action")

_KL = "KL: mean reference KL over the last half of the steps, nats/token; coef: mean coefficient."


def trial_table(runs: Iterable[Run], band: Band) -> Table:
    """Return trials in the columns of ``kltune status``."""
    rows = tuple(row_of(run.trial, run.trial.outcome, band) for run in runs)
    return Table(ROW_NAMES, rows, _KL)


def trials(runs: Sequence[Run], band: Band) -> Section:
    """Return the table of the baseline's trials."""
    return Section("trials", "Trials", (trial_table(runs, band),))


def course_plot(
    stage: str, runs: Sequence[Run], band: Band, winner: str | None = None
) -> Plot | Text:
    """Return the course of a stage's trials."""
    if not plots.has_course(runs):
        return Text(f"No trial of {stage} has logged a step.")
    caption = (
        f"Every trial of {stage} over its steps. Shaded: the band {band} nats/token. A cross "
        "marks where a trial was stopped, with the rule that stopped it."
    )
    return Plot(f"course-{stage}", caption, partial(plots.course, runs, band, winner))


def training(report: Report, workspace: str) -> Section:
    """Return the real training under watch, or how to start it."""
    runs = report.of(TRAINING)
    if not runs:
        missing = Text("Not trained under watch:", f"kltune train{workspace}")
        return Section("training", "Training", (missing,))
    blocks = (course_plot(TRAINING, runs, report.band), trial_table(runs, report.band))
    return Section("training", "Training", blocks)


def attempts(report: Report) -> Section:
    """Return the verl processes of trials that took more than one, and how many took one."""
    again = [run for run in report.runs if len(run.attempts) > 1]
    once = sum(len(run.attempts) == 1 for run in report.runs)
    text = Text(f"{once} trials took one attempt, {len(again)} more than one.")
    rows = tuple(
        (_name(run), str(number), *_cells(seen))
        for run in again
        for number, seen in enumerate(run.attempts, 1)
    )
    columns = ("trial", "attempt", "why", "settings", "from step", "ended", "last step", "time")
    blocks = (text, Table(columns, rows)) if rows else (text,)
    return Section("attempts", "Attempts", blocks)


def findings(report: Report) -> Section:
    """Return what the rules said, with the evidence."""
    rows = tuple(
        (
            f"{_name(run)}, attempt {seen.attempt}" if seen.attempt > 1 else _name(run),
            seen.finding.severity.value,
            seen.finding.rule,
            "" if seen.finding.step is None else str(seen.finding.step),
            seen.finding.metric,
            short(seen.finding.value),
            short(seen.finding.threshold),
            seen.finding.message,
            seen.finding.action.value,
        )
        for run in report.runs
        for seen in run.findings
    )
    block = Table(_FINDING, rows) if rows else Text("No rule fired on any trial.")
    return Section("findings", "Findings", (block,))


def _name(run: Run) -> str:
    return f"{run.stage}/{run.trial.name}"


def _cells(seen: AttemptSeen) -> tuple[str, ...]:
    record, result = seen.record, seen.result
    start = record.change.resume_step
    packed = " sequences packed" if record.change.remove_padding else ""
    last = result.attempt.last_step if result is not None else None
    return (
        record.reason,
        f"{record.change.settings.describe()}{packed}",
        "" if start is None else str(start),
        result.attempt.ending.value if result is not None else "not ended",
        "" if last is None else str(last),
        clock(result.seconds) if result is not None else "",
    )
