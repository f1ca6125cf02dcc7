"""Names beside lines and points, placed so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Where the end of a line is, what is written there, and in which colour.
Label = tuple[float, float, str, str]

_SIZE = 8  # points
_HEIGHT, _LETTER = 11.0, 4.9  # of a line, and of a letter on average; points

#: Where a name may stand beside its point, best first, and how it is aligned there; points.
#: A curve of KL over the coefficient falls, so there is room above on the right.
_SIDES = (
    (6, 8, "left"),
    (-6, -8, "right"),
    (0, 12, "center"),
    (0, -12, "center"),
    (8, 0, "left"),
    (-8, 0, "right"),
    (6, -8, "left"),
    (-6, 8, "right"),
)


def place_beside(axes: Any, labels: Sequence[Label]) -> None:
    """Write names at the right of the axes, each with a thin line to its place.

    Args:
        axes: with everything else drawn.
        labels: the most important last; the first are left out where there are too many.
    """
    points, height = _geometry(axes)
    kept = labels[-max(1, int(height / _HEIGHT)) :]
    at = {label: points(label)[1] for label in kept}
    order = sorted(kept, key=lambda label: at[label])
    heights: list[float] = []
    for label in order:
        heights.append(max(0.0, at[label], *(h + _HEIGHT for h in heights[-1:])))
    # Too far up: push down again from the top.
    ceiling = height
    for n in reversed(range(len(heights))):
        heights[n] = min(heights[n], ceiling)
        ceiling = heights[n] - _HEIGHT
    for label, place in zip(order, heights, strict=True):
        x, y, text, colour = label
        axes.annotate(
            text, (x, y), xytext=(1.02, place / height), textcoords="axes fraction",
            va="center", size=_SIZE, color=colour, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": colour, "alpha": 0.5},
        )  # fmt: skip


def place_at_points(axes: Any, labels: Sequence[Label]) -> None:
    """Write names beside points, where there is room; one that finds none is left out.

    Args:
        axes: with everything else drawn.
        labels: the most important last; an empty name only keeps others away.
    """
    points, _ = _geometry(axes)
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in map(points, labels)]
    for label in reversed(labels):
        x, y = points(label)
        text, colour = label[2:]
        length = _LETTER * len(text)
        for dx, dy, side in _SIDES if text else ():
            left = x + dx - {"left": 0.0, "right": length, "center": length / 2}[side]
            box = (left, y + dy - _HEIGHT / 2, left + length, y + dy + _HEIGHT / 2)
            if min(box) >= 0 and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                axes.annotate(
                    text, label[:2], xytext=(dx, dy), textcoords="offset points", ha=side,
                    va="center", size=_SIZE, color=colour,
                )  # fmt: skip
                break


def _geometry(axes: Any) -> Any:
    """Return what puts a label into points from the axes' lower left corner, and their height.

    A layout and limits are settled only when a figure is drawn.
    """
    figure = axes.get_figure()
    figure.draw_without_rendering()
    box, unit = axes.get_window_extent(), 72 / figure.dpi
    to_pixels = axes.transData.transform

    def points(label: Label) -> tuple[float, float]:
        x, y = to_pixels(label[:2])
        return float(x - box.x0) * unit, float(y - box.y0) * unit

    return points, float(box.height) * unit


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
