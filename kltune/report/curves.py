"""The plots that a report begins with."""

from __future__ import annotations

from functools import partial

from kltune.calibration.record import BASELINE
from kltune.calibration.report import Report
from kltune.report import plots
from kltune.report.document import Block, Plot, Section
from kltune.report.trials import course_plot


def curves(report: Report) -> Section:
    """Return the course of the baseline's trials, their curve, and the validation's."""
    runs = report.of(BASELINE)
    winner = report.calibration.winner if report.calibration is not None else None
    blocks: list[Block] = [course_plot(BASELINE, runs, report.band, winner)]
    if report.curve:
        caption = (
            "Reference KL over the coefficient, both as means over the last half of a trial's "
            "steps. Dashed: the curve that the search went by; a trial that was stopped counts "
            "with the highest KL it was seen at."
        )
        trials = [run.trial for run in runs]
        draw = partial(plots.coefficient_curve, trials, report.curve, report.band, winner)
        blocks.append(Plot("curve", caption, draw))
    tasks = report.validation.tasks if report.validation is not None else {}
    for number, (task, found) in enumerate(tasks.items()):
        if found.curves:
            caption = (
                f"{task}: held-out pass@1 and training score over the distance from the "
                "reference, sqrt(KL), validation by validation. Star: highest pass@1; bar: 95 % "
                "interval at the end. Dotted: from here on pass@1 has fallen beyond "
                "chance while the training score has not."
            )
            blocks.append(Plot(f"held-out-{number}", caption, partial(plots.held_out, found)))
    return Section("curves", "Curves", tuple(blocks))
