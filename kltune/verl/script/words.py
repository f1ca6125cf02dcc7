"""What the shell makes of the text of words: splitting, braces, escapes, trimming."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from typing import TYPE_CHECKING

from kltune.verl.script.text import Text, Unknown, join, plain

if TYPE_CHECKING:
    from tree_sitter import Node

_ANSI = {"n": "\n", "t": "\t", "r": "\r", "e": "\x1b", "0": "\0"}


class Fields:
    """Collects pieces into words, splitting at blanks where the shell would."""

    def __init__(self) -> None:
        self.texts: list[Text] = []
        self._open = False

    def add(self, text: Text, split: bool) -> None:
        """Add a piece; an unquoted one is split at blanks."""
        if not split:
            self._append(text)
            return
        for piece in text:
            if not isinstance(piece, str):
                self._append((piece,))
                continue
            for part in re.split(r"([ \t\n]+)", piece):
                if part.strip(" \t\n"):
                    self._append((part,))
                elif part:
                    self._open = False

    def _append(self, text: Text) -> None:
        if self._open:
            self.texts[-1] = join([self.texts[-1], text])
        else:
            self.texts.append(text)
        self._open = True


def braces(text: Text, node: Node) -> list[Text]:
    """Return the words that unquoted braces make: ``k={a,b}`` is ``k=a k=b`` for the shell."""
    only = plain(text)
    if only is None or node.type not in ("word", "concatenation"):
        return [text]
    if any(child.type not in ("word", "{", "}", "number") for child in node.children):
        return [text]
    match = re.fullmatch(r"([^{}]*)\{([^{}]*,[^{}]*)\}([^{}]*)", only)
    if match is None:
        return [text]
    return [(match[1] + choice + match[3],) for choice in match[2].split(",")]


def has_unknown(text: Text) -> bool:
    """Tell whether a piece of the text is not known."""
    return any(isinstance(piece, Unknown) for piece in text)


def unescape(text: str, quoted: bool) -> str:
    """Return the text without the backslashes that the shell takes away."""
    text = text.replace("\\\n", "")
    return re.sub(r'\\([$`"\\])' if quoted else r"\\(.)", r"\1", text, flags=re.DOTALL)


def ansi(text: str) -> str:
    """Return the text between ``$'`` and ``'``."""
    return re.sub(r"\\(.)", lambda match: _ANSI.get(match[1], match[1]), text, flags=re.DOTALL)


def trimmed(value: str, pattern: str, operation: str) -> str:
    """Return what ``${value#pattern}`` and its kin leave."""
    matches = re.compile(fnmatch.translate(pattern)).match
    ends = range(len(value) + 1)
    if operation in ("#", "##"):
        cuts = [end for end in ends if matches(value[:end])]
        return value[cuts[-1 if operation == "##" else 0] :] if cuts else value
    cuts = [end for end in ends if matches(value[end:])]
    return value[: cuts[0 if operation == "%%" else -1]] if cuts else value


def output_of(argv: list[str]) -> str | None:
    """Return what a command would print, for those whose output is in their arguments."""
    match argv:
        case ["echo", *words] if not any(word.startswith("-") for word in words):
            return " ".join(words)
        case ["basename", path]:
            return posixpath.basename(path.rstrip("/"))
        case ["basename", path, suffix]:
            return posixpath.basename(path.rstrip("/")).removesuffix(suffix)
        case ["dirname", path]:
            return posixpath.dirname(path) or "."
    return None
