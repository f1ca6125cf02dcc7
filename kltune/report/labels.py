"""Names beside lines and points, placed so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Where the end of a line is, what is written there, and in which colour.
Label = tuple[float, float, str, str]

_SIZE = 8  # points
_HEIGHT, _LETTER = 11.0, 4.9  # of a line, and of a letter on average; points

#: More names than this are left out from the least important on.
_MOST = 16

#: Where a name may stand beside its point: right, left, above, below; points.
_SIDES = ((7, 0, "left"), (-7, 0, "right"), (0, 11, "center"), (0, -11, "center"))


def place_beside(axes: Any, labels: Sequence[Label]) -> None:
    """Write names at the right of the axes, each with a thin line to its place.

    Args:
        axes: with their limits set.
        labels: the most important last.
    """
    kept = labels[-_MOST:]
    to_axes = axes.transData + axes.transAxes.inverted()
    at = {label: float(to_axes.transform(label[:2])[1]) for label in kept}
    step = _HEIGHT / 72 / (axes.get_figure().get_figheight() / len(axes.get_figure().axes) * 0.8)
    order = sorted(kept, key=lambda label: at[label])
    heights: list[float] = []
    for label in order:
        heights.append(max(at[label], heights[-1] + step) if heights else max(0.0, at[label]))
    # Too far up: push down again from the top.
    ceiling = max(1.0, step * (len(order) - 1))
    for n in reversed(range(len(heights))):
        heights[n] = min(heights[n], ceiling)
        ceiling = heights[n] - step
    for label, height in zip(order, heights, strict=True):
        x, y, text, colour = label
        axes.annotate(
            text, (x, y), xytext=(1.02, height), textcoords="axes fraction", va="center",
            size=_SIZE, color=colour, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": colour, "alpha": 0.5},
        )  # fmt: skip


def place_at_points(axes: Any, labels: Sequence[Label]) -> None:
    """Write names beside points, where there is room; one that finds none is left out.

    Args:
        axes: with everything drawn.
        labels: the most important last; an empty name only keeps others away.
    """
    figure = axes.get_figure()
    axes.get_xlim(), axes.get_ylim()  # matplotlib settles the limits when it is asked for them
    wide, high = figure.get_figwidth() * 0.85 * 72, figure.get_figheight() * 0.75 * 72
    to_axes = axes.transData + axes.transAxes.inverted()

    def spot(label: Label) -> tuple[float, float]:
        x, y = to_axes.transform(label[:2])
        return float(x) * wide, float(y) * high

    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in map(spot, labels)]
    for label in reversed(labels):
        x, y = spot(label)
        _, _, text, colour = label
        if not text:
            continue
        length = _LETTER * len(text)
        for dx, dy, side in (
            (7, 0, "left"),
            (-7, 0, "right"),
            (0, 11, "center"),
            (0, -11, "center"),
        ):
            left = x + dx - {"left": 0.0, "right": length, "center": length / 2}[side]
            box = (left, y + dy - _HEIGHT / 2, left + length, y + dy + _HEIGHT / 2)
            if box[0] >= 0 and box[2] <= wide and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                axes.annotate(
                    text, label[:2], xytext=(dx, dy), textcoords="offset points", ha=side,
                    va="center", size=_SIZE, color=colour,
                )  # fmt: skip
                break


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
