"""A report as text, tables and plots in order, whatever it is written as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kltune.verl.secrets import redact


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, and a command that it names."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under their columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture, drawn when it is needed.

    Attributes:
        name: unique in a document.
        caption: what it shows, and how to read it.
        draw: returns it as SVG, given its name and a description for who does not see it.
    """

    name: str
    caption: str
    draw: Callable[[str, str], str]


Block = Text | Table | Plot


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; ``name`` is unique in a document."""

    name: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report.

    Attributes:
        title: its first line.
        verdict: one sentence with its numbers.
        good: whether the goal was met; None while that is not known.
        sections: in the order in which they are read.
    """

    title: str
    verdict: str
    good: bool | None
    sections: tuple[Section, ...]


def without_secrets(document: Document) -> Document:
    """Return a document with every secret in its texts hidden."""
    sections = tuple(
        replace(section, blocks=tuple(_clean(block) for block in section.blocks))
        for section in document.sections
    )
    return replace(
        document,
        title=redact(document.title),
        verdict=redact(document.verdict),
        sections=sections,
    )


def _clean(block: Block) -> Block:
    match block:
        case Text(text, command):
            return Text(redact(text), redact(command))
        case Table(columns, rows, caption):
            return Table(columns, tuple(tuple(map(redact, row)) for row in rows), redact(caption))
        case Plot():
            return replace(block, caption=redact(block.caption))
