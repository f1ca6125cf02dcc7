"""A report as Markdown; plots are the page's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kltune.report.document import Block, Document, Plot, Table, Text


def markdown(document: Document) -> str:
    """Return a document in GitHub's Markdown, without its plots."""
    parts = [f"# {_plain(document.title)}", f"**{_plain(document.verdict)}**"]
    for section in document.sections:
        found = [text for block in section.blocks for text in _block(block)]
        if found:
            parts += [f"## {_plain(section.title)}", *found]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Text(text, command):
            yield f"{_plain(text)} {_code(command)}" if command else _plain(text)
        case Table(columns, rows, caption):
            lines = [columns, ("---",) * len(columns), *rows]
            yield "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
            if caption:
                yield _plain(caption)
        case Plot():
            return


def _cell(text: str) -> str:
    return text if text == "---" else _plain(text)


def _code(command: str) -> str:
    fence = "``" if "`" in command else "`"
    return f"{fence}{' '.join(command.split())}{fence}"


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is: on one line, no HTML, nothing that marks up."""
    one_line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*\[\]|~$]|(?<!\w)_|_(?!\w))", r"\\\1", one_line)
