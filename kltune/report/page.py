"""A report as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from kltune.errors import LaunchError
from kltune.report.document import Document, Plot, Table, Text


def page(document: Document) -> str:
    """Return a document as HTML with its plots.

    Raises:
        LaunchError: a package that draws it is missing.
    """
    try:
        import matplotlib  # noqa: F401
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise LaunchError(
            f"a report with plots needs {error.name}: pip install 'kltune[report]', or take "
            "--as markdown,json"
        ) from error

    def draw(plot: Plot) -> Any:
        # matplotlib escapes what stands in a picture.
        return Markup(plot.draw(plot.name, plot.caption))  # noqa: S704

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests |= {
        "text": lambda block: isinstance(block, Text),
        "table": lambda block: isinstance(block, Table),
    }
    source = (files("kltune.report") / "page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(document=document, draw=draw) + "\n"
