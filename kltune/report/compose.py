"""Which sections a report has, in the order in which people ask."""

from __future__ import annotations

import shlex

from kltune.calibration.record import BASELINE
from kltune.calibration.report import Report
from kltune.report.curves import curves
from kltune.report.document import Document, without_secrets
from kltune.report.held_out import held_out
from kltune.report.nodes import nodes
from kltune.report.provenance import journal, past, provenance
from kltune.report.trials import attempts, findings, training, trials
from kltune.report.verdict import held_fixed, sentence, verdict


def compose(report: Report) -> Document:
    """Return a report as a document, secrets hidden."""
    option = f" --workspace {shlex.quote(report.status.workspace)}"
    calibration = report.calibration
    sections = (
        verdict(report, option),
        *(() if calibration is None else (held_fixed(calibration),)),
        curves(report),
        trials(report.of(BASELINE), report.band),
        attempts(report),
        findings(report),
        nodes(report, option),
        held_out(report, option),
        training(report, option),
        past(report, option),
        journal(report),
        provenance(report),
    )
    good = calibration.calibrated if calibration is not None else None
    return without_secrets(Document("KL calibration", sentence(report), good, sections))
