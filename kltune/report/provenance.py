"""Where the numbers come from: earlier calibrations, the journal, versions, seeds, data, cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from kltune.calibration.report import Report
from kltune.report.document import Block, Section, Table, Text
from kltune.report.rows import clock, short


def past(report: Report, workspace: str) -> Section:
    """Return how the settings moved from calibration to calibration."""
    rows = tuple(
        (
            date(entry.finished),
            entry.settings.describe() if entry.settings is not None else "none",
            short(entry.kl),
            short(entry.objective),
            "yes" if entry.calibrated else "no",
            entry.data,
        )
        for entry in report.history
    )
    columns = ("finished", "settings", "KL", "score", "calibrated", "data")
    command = f"kltune run --since last{workspace}"
    block = Table(columns, rows) if rows else Text("Never calibrated again:", command)
    return Section("history", "Recalibrations", (block,))


def journal(report: Report) -> Section:
    """Return every decision as a sentence."""
    rows = tuple((date(told.time), told.text) for told in report.journal)
    return Section("journal", "Decisions", (Table(("UTC", "decision"), rows),))


def provenance(report: Report) -> Section:
    """Return versions, seeds, data, cost and the user's own configuration."""
    return Section("provenance", "Provenance", tuple(_provenance(report)))


def date(seconds: float) -> str:
    """Return a time as people write it, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _provenance(report: Report) -> Iterator[Block]:
    calibration, status = report.calibration, report.status
    facts = [("workspace", status.workspace), ("band", f"{report.band} nats/token")]
    if calibration is not None:
        facts += [
            ("finished", f"{date(calibration.finished)} UTC"),
            ("verl", calibration.verl),
            ("kltune", calibration.kltune),
            ("command", " ".join(calibration.command)),
            ("nodes", f"{calibration.nodes} of {calibration.gpus_per_node} GPUs"),
            ("steps of a trial", str(calibration.steps)),
            *_flat(calibration.about, "about."),
        ]
    facts.append(("training data", report.data or "no fingerprint was taken"))
    yield Table(("what", "value"), tuple(facts))
    yield Table(("stage", "trials", "seeds", "GPU hours", "time"), tuple(_stages(report)), "Cost.")
    rows = tuple(
        (key, str(value), report.origins.get(key.lstrip("+~"), ""))
        for key, value in report.overrides.items()
    )
    yield Table(("verl override", "value", "origin"), rows, "The user's own, before calibration.")
    yield Table(("kltune setting", "value"), tuple(_flat(report.made_with)))


def _stages(report: Report) -> Iterator[tuple[str, ...]]:
    for stage in sorted({run.stage for run in report.runs}):
        runs = report.of(stage)
        outcomes = [run.trial.outcome for run in runs if run.trial.outcome is not None]
        yield (
            stage,
            str(len(runs)),
            ", ".join(str(seed) for seed in sorted({run.trial.seed for run in runs})),
            f"{sum(o.gpu_hours for o in outcomes):.2f}",
            clock(sum(o.seconds for o in outcomes)),
        )
    hours, seconds = report.status.gpu_hours, report.status.seconds
    yield ("all", str(len(report.runs)), "", f"{hours:.2f}", clock(seconds))


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)
