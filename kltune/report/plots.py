"""The plots of a report, as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import Any

from kltune.calibration.report import Run
from kltune.calibration.validation import REFERENCE, TaskReport
from kltune.domain.curve import CurvePoint
from kltune.domain.findings import Severity
from kltune.domain.outcome import Band, Ending
from kltune.domain.trials import Trial
from kltune.report.labels import Label, place_at_points, place_beside
from kltune.report.looks import BAND, BLUE, GREY, ORANGE, Look, look_of
from kltune.report.svg import picture

_PANEL = 2.1  # inches
_TALL = 1.7  # panels; reference KL is what it is all about

#: Points of a line beyond which a stretch of it is drawn as its lowest and its highest.
_POINTS = 600

_LEGEND: dict[str, Any] = {
    "loc": "outside upper left",
    "fontsize": 8.5,
    "columnspacing": 1.4,
    "handlelength": 1.6,
}

#: What is drawn of a step: its name, and the axis.
_PANELS = (
    ("reference_kl", "reference KL\n(nats/token)"),
    ("coefficient", "coefficient β\n(reward units/nat)"),
    ("score", "training score\n(reward units)"),
    ("held_out", "validation score"),
)


def course(runs: Sequence[Run], band: Band, winner: str | None, name: str, label: str) -> str:
    """Return what a stage's trials went through, step by step, as SVG.

    Args:
        runs: trials with their steps.
        band: is shaded; nats per token.
        winner: name of the trial to emphasise.
        name: unique on the page.
        label: a description for who does not see it.
    """
    looks = {id(run): look_of(run.trial, winner) for run in runs}
    # What matters most is drawn last.
    drawn = sorted((run for run in runs if run.steps), key=lambda run: looks[id(run)].rank)
    panels = [panel for panel in _PANELS if any(_series(run, panel[0]) for run in drawn)]
    assert panels, "nothing to draw; see has_course"

    def draw(figure: Any) -> None:
        heights = [_TALL if what == "reference_kl" else 1.0 for what, _ in panels]
        axes = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)
        for panel, (what, title) in zip(axes[:, 0], panels, strict=True):
            panel.set_ylabel(title)
            if what == "coefficient":
                panel.set_yscale("log")
                panel.yaxis.set_major_formatter(_plain)
            else:
                panel.set_ylim(*_limits(drawn, what, band))
            ends = [_draw_run(panel, run, what, looks[id(run)]) for run in drawn]
            if panel is axes[0, 0]:
                named = [end for end in ends if end is not None]
            if what == "reference_kl":
                _shade(panel, band)
        axes[-1, 0].set_xlabel("training step")
        _legend(figure, [run.trial for run in drawn], winner)
        place_beside(axes[0, 0], named)

    return picture(name, label, _PANEL * (len(panels) + _TALL - 1) + 0.4, draw)


def has_course(runs: Iterable[Run]) -> bool:
    """Whether a trial has logged a number that can be drawn."""
    return any(_series(run, what) for run in runs for what, _ in _PANELS)


def coefficient_curve(
    trials: Sequence[Trial],
    curve: Sequence[CurvePoint],
    band: Band,
    winner: str | None,
    name: str,
    label: str,
) -> str:
    """Return reference KL over coefficient, log-log, as SVG; see ``course``."""
    shown = [
        (trial, summary.coefficient or trial.settings.kl_coef, summary.kl)
        for trial in trials
        if trial.outcome is not None and (summary := trial.outcome.summary).kl is not None
    ]
    points = [(t, x, kl) for t, x, kl in shown if kl and kl > 0 and isfinite(kl) and x > 0]

    def draw(figure: Any) -> None:
        from matplotlib.ticker import LogLocator

        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_yscale("log")
        _shade(axes, band)
        axes.plot([p.coefficient for p in curve], [p.kl for p in curve], "--", color=GREY, lw=1)
        labels = []
        for trial, x, kl in sorted(points, key=lambda p: look_of(p[0], winner).rank):
            look = look_of(trial, winner)
            axes.plot([x], [kl], **look.marker(_cut(trial)), ls="none")
            # A confirmation lies beside what it confirms.
            labels.append((x, kl, "" if look.dashed else trial.name, look.ink))
        axes.set_xlabel("coefficient β (reward units/nat)")
        axes.set_ylabel("reference KL (nats/token)")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(_plain)
            axis.set_minor_formatter(lambda *_: "")
        axes.margins(0.12)
        _legend(figure, [trial for trial, _, _ in points], winner, points=True)
        place_at_points(axes, labels)

    return picture(name, label, 3.6, draw)


def held_out(found: TaskReport, name: str, label: str) -> str:
    """Return pass@1 and training score over sqrt(KL), both arms, as SVG; see ``course``."""

    def draw(figure: Any) -> None:
        top, bottom = figure.subplots(2, 1, sharex=True)
        for arm, drawn in found.curves.items():
            colour = ORANGE if arm == REFERENCE else BLUE
            x = [point.distance for point in drawn.points]
            line = {"color": colour, "marker": "o", "ms": 3.5, "lw": 1.4, "label": arm}
            top.plot(x, [point.pass_at_1 for point in drawn.points], **line)
            bottom.plot(x, [point.score for point in drawn.points], **line)
            top.plot([drawn.peak.distance], [drawn.peak.pass_at_1], "*", color=colour, ms=13)
            last = found.levels[arm]
            top.vlines(x[-1], *last.interval, color=colour, lw=4, alpha=0.3)
            parted = next((p for p in drawn.points if p.step == drawn.parted), None)
            if parted is not None:
                for panel in (top, bottom):
                    panel.axvline(parted.distance, color=colour, ls=":", lw=1.3)
                bottom.annotate(
                    f"{arm}: part at step {parted.step}", (parted.distance, 0.04),
                    xycoords=("data", "axes fraction"), xytext=(-4, 0),
                    textcoords="offset points", ha="right", color=colour, size=8,
                )  # fmt: skip
        top.set_ylabel("held-out pass@1")
        bottom.set_ylabel("training score\n(reward units)")
        bottom.set_xlabel("sqrt(reference KL in nats/token)")
        _look_at_the_training(top, found)
        handles, names = top.get_legend_handles_labels()
        figure.legend(handles, names, ncols=len(names), **_LEGEND)
        place_at_points(top, list(_steps_of(found)))

    return picture(name, label, 2 * _PANEL + 0.5, draw)


def _look_at_the_training(axes: Any, found: TaskReport) -> None:
    """Leave the base model below the picture: what follows differs by far less."""
    seen = [p.pass_at_1 for drawn in found.curves.values() for p in drawn.points if p.step > 0]
    ends = [end for arm in found.curves for end in found.levels[arm].interval]
    low, high = min(seen + ends), max(seen + ends)
    margin = (high - low) / 10 or 0.01
    axes.set_ylim(low - margin, high + margin)
    base = next((d.points[0] for d in found.curves.values() if d.points[0].step == 0), None)
    if base is not None and base.pass_at_1 < low:
        axes.annotate(
            f"below: {base.pass_at_1:.3f} at step 0",
            (0.01, 0.04),
            xycoords="axes fraction",
            size=8,
        )


def _steps_of(found: TaskReport) -> Iterator[Label]:
    """Yield where the first, best and last step of each arm are; the rest keeps names away."""
    for arm, drawn in found.curves.items():
        colour = ORANGE if arm == REFERENCE else BLUE
        trained = [point for point in drawn.points if point.step > 0]
        named = {trained[0].step, trained[-1].step, drawn.peak.step} if trained else set()
        for point in trained:
            text = f"step {point.step}" if point.step in named else ""
            yield point.distance, point.pass_at_1, text, colour


def _series(run: Run, what: str) -> list[tuple[int, float]]:
    found = ((step.step, getattr(step, what)) for step in run.steps)
    return [
        (step, value)
        for step, value in found
        if value is not None and isfinite(value) and (what != "coefficient" or value > 0)
    ]


def _cut(trial: Trial) -> bool:
    """Whether it ended before its time."""
    return trial.outcome is not None and trial.outcome.ending is not Ending.COMPLETED


def _draw_run(panel: Any, run: Run, what: str, look: Look) -> Label | None:
    """Draw one trial; return where its line ends, with what is to be said there."""
    series = _series(run, what)
    if not series:
        return None
    dots = {"marker": "o", "ms": 3} if what == "held_out" else {}
    panel.plot(*zip(*_thinned(series), strict=True), **look.line(), **dots)
    if not _cut(run.trial):
        x, y = series[-1]
        return x, y, run.trial.name, look.ink
    step, rule = _stopped_by(run)
    before = [point for point in series if step is None or point[0] <= step]
    x, y = (before or series)[-1]
    low, high = panel.get_ylim()
    inside = min(high, max(low, y))
    panel.plot([x], [inside], **look.marker(True), clip_on=False)
    beyond = "" if inside == y else f" ({y:.3g})"
    return x, inside, f"{run.trial.name}{beyond}: {rule}", look.ink


def _stopped_by(run: Run) -> tuple[int | None, str]:
    """Return the step at which a trial was found to go wrong, and by which rule."""
    found = [s.finding for s in run.findings if s.finding.severity is Severity.CRITICAL]
    if found:
        return found[-1].step, found[-1].rule
    outcome = run.trial.outcome
    return None, outcome.ending.value if outcome is not None else ""


def _limits(runs: Sequence[Run], what: str, band: Band) -> tuple[float, float]:
    """Return the ends of an axis; what was stopped may leave the picture."""
    wanted = [0.0, 1.5 * band.high] if what == "reference_kl" else []
    wanted += [value for run in runs if not _cut(run.trial) for _, value in _series(run, what)]
    everything = [value for run in runs for _, value in _series(run, what)]
    low, high = min(wanted or everything), max(wanted or everything)
    reach = (high - low) or 0.1
    low, high = max(min(low, *everything), low - reach), min(max(high, *everything), high + reach)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _thinned(series: Sequence[tuple[int, float]]) -> Iterable[tuple[int, float]]:
    """Return what is seen of a long line at this size: of each stretch its two extremes."""
    if len(series) <= _POINTS:
        return series
    stretch = 2 * len(series) // _POINTS + 1
    parts = (series[n : n + stretch] for n in range(0, len(series), stretch))
    ends = ({min(p, key=lambda q: q[1]), max(p, key=lambda q: q[1])} for p in parts)
    return [point for pair in ends for point in sorted(pair)]


def _shade(axes: Any, band: Band) -> None:
    axes.axhspan(band.low, band.high, color=BAND, alpha=0.18, lw=0)


def _plain(value: float, _: int) -> str:
    return f"{value:g}"


def _legend(
    figure: Any, trials: Sequence[Trial], winner: str | None, points: bool = False
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    looks = sorted((look_of(trial, winner) for trial in trials), key=lambda look: -look.rank)
    handles: list[Any] = [
        Line2D([], [], label=kind, **({"ls": "none", **look.marker()} if points else look.line()))
        for kind, look in {look.kind: look for look in looks}.items()
    ]
    if any(_cut(trial) for trial in trials):
        handles.append(Line2D([], [], ls="none", label="stopped", **looks[-1].marker(True)))
    handles.append(Patch(color=BAND, alpha=0.18, lw=0, label="band"))
    figure.legend(handles=handles, ncols=len(handles), **_LEGEND)
