"""A picture as SVG that goes into a page as it is.

Text stays text and takes the page's own colour, so a picture reads on light and on dark paper.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from io import StringIO
from typing import Any

from kltune.report.looks import INK

_WIDTH = 8.2  # inches

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


def picture(name: str, label: str, height: float, draw: Callable[[Any], None]) -> str:
    """Return what ``draw`` draws as SVG.

    Args:
        name: unique on the page.
        label: a description for who does not see it.
        height: inches.
        draw: is given matplotlib's figure.
    """
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
