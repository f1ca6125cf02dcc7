"""Text of a shell script that is known in part: strings, and pieces that only a run would know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unknown:
    """A piece that cannot be told without running the script, and is never guessed.

    Attributes:
        source: as the script has it, e.g. ``$(date +%s)``.
        line: where, counted from 1.
        why: what it depends on, to be read after the source.
    """

    source: str
    line: int
    why: str


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """A variable that every login sets, such as HOME; verl's configuration can refer to it."""

    name: str


Piece = str | Unknown | FromEnvironment
Text = tuple[Piece, ...]


def join(texts: Iterable[Text]) -> Text:
    """Return one text, neighbouring strings glued together."""
    pieces: list[Piece] = []
    for text in texts:
        for piece in text:
            if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
                pieces[-1] += piece
            elif piece != "":
                pieces.append(piece)
    return tuple(pieces)


def plain(text: Text) -> str | None:
    """Return the string, or None where a piece is not known."""
    if all(isinstance(piece, str) for piece in text):
        return "".join(piece for piece in text if isinstance(piece, str))
    return None


def unknowns(text: Text) -> tuple[Unknown, ...]:
    """Return the pieces that are not known."""
    return tuple(piece for piece in text if isinstance(piece, Unknown))


def shown(text: Text) -> str:
    """Return the text for people: what is not known stands as in the script."""
    return "".join(
        piece
        if isinstance(piece, str)
        else f"${piece.name}"
        if isinstance(piece, FromEnvironment)
        else piece.source
        for piece in text
    )


def for_hydra(text: Text) -> str:
    """Return the text as verl's configuration would have it: HOME as ``${oc.env:HOME}``."""
    return shown(
        tuple(
            f"${{oc.env:{piece.name}}}" if isinstance(piece, FromEnvironment) else piece
            for piece in text
        )
    )
