"""The plots of a report, as SVG that goes into a page as it is.

Text stays text and takes the page's own colour, so a plot reads on light and on dark paper. The
colours are Okabe and Ito's, which people with any colour vision tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from io import StringIO
from math import isfinite
from typing import Any

from kltune.calibration.report import Run
from kltune.calibration.validation import REFERENCE, TaskReport
from kltune.domain.curve import CurvePoint
from kltune.domain.outcome import Band, Ending
from kltune.domain.trials import Trial
from kltune.report.labels import Label, place_at_points, place_beside
from kltune.report.looks import BAND, BLUE, INK, ORANGE, Look, look_of

_WIDTH, _PANEL = 8.2, 2.3  # inches

_STYLE = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so that a plot is the same anywhere
    "font.size": 9,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}

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

    def draw(figure: Any) -> None:
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (what, title) in zip(axes, panels, strict=True):
            panel.set_ylabel(title)
            if what == "reference_kl":
                _shade(panel, band)
                panel.set_ylim(*_limits(drawn, band))
            if what == "coefficient":
                panel.set_yscale("log")
                panel.yaxis.set_major_formatter(_plain)
            ends = [_draw_run(panel, run, what, looks[id(run)]) for run in drawn]
            if what == "reference_kl":
                place_beside(panel, [end for end in ends if end is not None])
        axes[-1].set_xlabel("training step")
        _legend(figure, [run.trial for run in drawn], winner)

    return _svg(name, label, _PANEL * max(1, len(panels)) + 0.4, draw)


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
    points = [(t, x, kl) for t, x, kl in shown if kl is not None and kl > 0 and x > 0]

    def draw(figure: Any) -> None:
        from matplotlib.ticker import LogLocator

        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_yscale("log")
        _shade(axes, band)
        axes.plot(
            [p.coefficient for p in curve], [p.kl for p in curve], "--", color="#8a8a8a", lw=1
        )
        labels = []
        for trial, x, kl in sorted(points, key=lambda p: look_of(p[0], winner).rank):
            look = look_of(trial, winner)
            axes.plot([x], [kl], **look.marker(_cut(trial)), ls="none")
            labels.append((x, kl, trial.name, look.ink))
        axes.set_xlabel("coefficient β (reward units/nat)")
        axes.set_ylabel("reference KL (nats/token)")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(_plain)
            axis.set_minor_formatter(lambda *_: "")
        axes.margins(0.12)
        place_at_points(axes, labels)
        _legend(figure, [trial for trial, _, _ in points], winner, points=True)

    return _svg(name, label, 3.6, draw)


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
        place_at_points(top, list(_steps_of(found)))
        handles, names = top.get_legend_handles_labels()
        figure.legend(handles, names, ncols=len(names), **_LEGEND)

    return _svg(name, label, 2 * _PANEL + 0.5, draw)


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


def _draw_run(panel: Any, run: Run, what: str, look: Look) -> Any:
    """Draw one trial; return where its line ends, with what is to be said there."""
    series = _series(run, what)
    if not series:
        return None
    xs, ys = zip(*series, strict=True)
    dots = {"marker": "o", "ms": 3} if what == "held_out" else {}
    panel.plot(xs, ys, **look.line(), **dots)
    x, y, text = xs[-1], ys[-1], run.trial.name
    outcome = run.trial.outcome
    if outcome is not None and _cut(run.trial):
        rule = outcome.critical[0] if outcome.critical else outcome.ending.value
        top = panel.get_ylim()[1]
        if what == "reference_kl" and y > top:
            y, text = top, f"{text} ({y:.3g})"
        panel.plot([x], [y], **look.marker(True), clip_on=False)
        text = f"{text}: {rule}"
    return x, y, text, look.ink


def _limits(runs: Sequence[Run], band: Band) -> tuple[float, float]:
    """Return the ends of the axis of KL: what was stopped may leave the picture."""
    everything = [value for run in runs for _, value in _series(run, "reference_kl")]
    done = [
        value for run in runs for _, value in _series(run, "reference_kl") if not _cut(run.trial)
    ]
    top = 1.06 * min(max([*everything, band.high]), max([*done, 4 * band.high]))
    return max(min([0.0, *done]), -top / 4), top


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


def _svg(name: str, label: str, height: float, draw: Callable[[Any], None]) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    # Ids are made from the salt, and there is no date: the same numbers give the same text.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure)
        text = StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _inline(text.getvalue(), name, label)


def _inline(svg: str, name: str, label: str) -> str:
    """Return a picture as part of a page: its own names for ids, the page's colour for text."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # it would hold for the page
    svg = re.sub(r'\b(id="|(?:xlink:)?href="#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace(INK, "currentColor")
    svg = re.sub(r'^<svg ((?:xmlns|viewBox|version|width|height)\S*="[^"]*"\s*)+', _head, svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def _head(match: re.Match[str]) -> str:
    """The size is the page's to say."""
    return re.sub(r'\b(?:width|height)="[^"]*"\s*', "", match[0])
