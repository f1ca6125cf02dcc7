"""The validation: pass@1 of base model, reference and calibrated settings."""

from __future__ import annotations

from collections.abc import Iterator

from kltune.calibration.peak import arm_of
from kltune.calibration.report import Report
from kltune.calibration.validation import STAGE, TaskReport, ValidationReport
from kltune.report.document import Block, Section, Table, Text
from kltune.report.trials import course_plot, trial_table


def held_out(report: Report, workspace: str) -> Section:
    """Return levels and comparisons of every test set, or how to get them."""
    found, runs = report.validation, report.of(STAGE)
    blocks: list[Block] = [] if found is None else list(_found(found))
    if found is None:
        what = "Validation is not finished:" if runs else "Not validated on held-out problems:"
        blocks.append(Text(what, f"kltune validate{workspace}"))
    elif report.calibration is not None and arm_of(report.calibration, found) is None:
        what = "The calibration has other settings by now. These were validated before; anew:"
        blocks.insert(0, Text(what, f"kltune validate --fresh{workspace}"))
    if runs:
        blocks.append(course_plot(STAGE, runs, report.band))
        blocks.append(trial_table(runs, report.band))
    return Section("validation", "Validation", tuple(blocks))


def _found(found: ValidationReport) -> Iterator[Block]:
    yield Text(f"{found.finding.value}: {found.reason}")
    for arm, settings in found.settings.items():
        yield Text(f"{arm}: {settings}")
    for task, report in found.tasks.items():
        yield _levels(task, report, found)
        yield _comparisons(task, report)
        for arm, drawn in report.curves.items():
            yield Text(
                f"{task}, {arm}: pass@1 peaks at {drawn.peak.pass_at_1:.3f}, step "
                f"{drawn.peak.step}, reference KL {drawn.peak.kl:.4f} nats/token; {drawn.reason}"
            )
    for trial, why in found.left_out.items():
        yield Text(f"left out: {trial}: {why}")
    yield Text("The protocol expects +5 to +10 % of a stable KL; these are the measured figures.")


def _levels(task: str, report: TaskReport, found: ValidationReport) -> Table:
    ks = sorted({k for level in report.levels.values() for k in level.pass_at})
    rows = tuple(
        (
            arm,
            f"{level.pass_at_1:.3f}",
            f"{level.interval[0]:.3f} to {level.interval[1]:.3f}",
            *(f"{level.pass_at[k]:.3f}" for k in ks),
        )
        for arm, level in report.levels.items()
    )
    answers = "greedy" if found.samples == 1 else f"{found.samples} answers each"
    seeds = ", ".join(map(str, found.seeds))
    caption = f"{task}: {report.problems} problems, {answers}, seeds {seeds}."
    return Table(("arm", "pass@1", "95 % interval", *(f"pass@{k}" for k in ks)), rows, caption)


def _comparisons(task: str, report: TaskReport) -> Table:
    rows = tuple(
        (
            name,
            f"{100 * made.difference:+.1f}",
            f"{100 * made.interval[0]:+.1f} to {100 * made.interval[1]:+.1f}",
            "" if made.relative is None else f"{made.relative:+.1%}",
            f"{made.p_value:.2g}",
            f"{100 * made.detectable:.1f}",
            made.method,
            made.finding.value,
        )
        for name, made in report.comparisons.items()
    )
    columns = ("new over old", "points", "interval", "relative", "p", "detectable", "method")
    caption = f"{task}: difference in pass@1, percentage points."
    return Table((*columns, "finding"), rows, caption)
