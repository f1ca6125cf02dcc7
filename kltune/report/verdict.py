"""What came out, the settings before and after, and what they do not carry over without."""

from __future__ import annotations

from collections.abc import Iterator

from kltune.calibration.record import Calibration
from kltune.calibration.report import Report, Setting
from kltune.domain.trials import Trial
from kltune.report.document import Block, Section, Table, Text
from kltune.report.rows import short


def sentence(report: Report) -> str:
    """Return the verdict in one sentence."""
    calibration, status = report.calibration, report.status
    if calibration is None:
        ended = len(status.trials) - len(status.running)
        return f"Not finished: {ended} of {len(status.trials)} trials that were begun have ended"
    return f"{'Calibrated' if calibration.calibrated else 'Not calibrated'}: {calibration.reason}"


def verdict(report: Report, workspace: str) -> Section:
    """Return the verdicts of all stages and the settings, from before to after.

    Args:
        report: what to tell of.
        workspace: option that names the workspace in a command.
    """
    return Section("settings", "Settings", tuple(_verdict(report, workspace)))


def held_fixed(calibration: Calibration) -> Section:
    """Return what the settings hold for."""
    rows = tuple((name, str(value)) for name, value in calibration.held_fixed.items())
    return Section(
        "held-fixed",
        "Held fixed",
        (
            Text("The settings hold for these; with others, calibrate again."),
            Table(("what", "value"), rows),
        ),
    )


def _verdict(report: Report, workspace: str) -> Iterator[Block]:
    calibration = report.calibration
    if calibration is None:
        running = ", ".join(report.status.running)
        text = f"Running or interrupted: {running}. " if running else ""
        yield Text(f"{text}This goes on where it stopped:", f"kltune run{workspace}")
        return
    rows = tuple(
        (
            setting.key,
            _value(setting.before),
            setting.before_origin,
            *_after(setting),
        )
        for setting in report.settings
    )
    if report.choice is None:
        yield Text("No trial was feasible, so there are no settings to train with.")
        rows = tuple((*row[:3], "", "") for row in rows)
    yield Table(("setting", "before", "origin", "after", "origin"), rows)
    if report.choice is not None and report.choice.reason:
        yield Text(report.choice.reason)
    if (cost := _cost_of_the_band(calibration)) is not None:
        yield Text(cost)
    for found in report.nodes:
        done = "calibrated" if found.calibrated else "not calibrated"
        yield Text(f"On {found.nodes} nodes, {done}: {found.reason}")
    if report.validation is not None:
        yield Text(f"Validation, {report.validation.finding.value}: {report.validation.reason}")


def _cost_of_the_band(calibration: Calibration) -> str | None:
    """Return how much better the best trial outside the band scored."""
    trials = {trial.name: trial for trial in calibration.trials}
    best = trials.get(calibration.best_outside or "")
    if best is None:
        return None
    winner = trials.get(calibration.winner or "")
    against = "" if winner is None else f", {winner.name} inside it {_score(winner)}"
    return (
        f"What the band {calibration.band} costs: outside it {best.name} scored "
        f"{_score(best)}{against}"
    )


def _score(trial: Trial) -> str:
    if trial.outcome is None:
        return "nothing"
    summary = trial.outcome.summary
    return f"{short(summary.objective)} at a reference KL of {short(summary.kl)} nats/token"


def _after(setting: Setting) -> tuple[str, str]:
    if setting.after == setting.before:
        return "unchanged", ""
    return _value(setting.after), setting.after_origin


def _value(value: object) -> str:
    return "" if value is None else short(value) if isinstance(value, float) else str(value)
