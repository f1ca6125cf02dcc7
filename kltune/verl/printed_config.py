"""The configuration that a run really trained with, as verl prints it at its start."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kltune.verl.compose import value_at
from kltune.verl.overrides import bare

#: Sections of every release's configuration; another dictionary in a log is none.
SECTIONS = {"actor_rollout_ref", "algorithm", "trainer"}

#: verl prints with ``pprint``, whose first key is the alphabetically first section, and which
#: indents every line but the first.
_FIRST, _MORE = re.compile(r"\{'\w+': "), re.compile(r" +\S")

#: Lines that look like the end of it and are not, after which there is none to be found.
_TRIES = 60

#: Faults that are spelled out; a run with more of them was started with something else entirely.
_SHOWN = 8

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: Ray names the process that printed a line: ``(TaskRunner pid=7) `` or ``(… pid=7, ip=…) ``.
_PRINTED_BY = re.compile(r"(\([^()]{0,80}pid=\d+[^()]{0,80}\)) ?")


def printed_config(lines: Iterable[bytes]) -> dict[str, Any] | None:
    """Return the configuration in the lines of a console log; None if there is none (yet).

    Lines that other processes, or the driver, have printed in between are left out. So are those
    of the same process that are not indented, unless only all of them make sense: Ray passes a
    line on in pieces when it looks while the line is being written.
    """
    indented: list[str] = []
    pieces: list[str] = []
    printed_by, tries = "", 0
    for line in lines:
        text, who = _whole_text(line)
        if _FIRST.match(text) and (not pieces or _names_a_section(text) or who != printed_by):
            indented, pieces, printed_by, tries = [text], [text], who, 0
        elif pieces and who == printed_by:
            pieces.append(text)
            if _MORE.match(text):
                indented.append(text)
        else:
            continue
        if text.endswith("}"):
            for candidate in (indented, pieces):
                if (found := _parse("\n".join(candidate))) is not None:
                    return found
            tries += 1
            if tries > _TRIES:
                indented, pieces = [], []
    return None


def _names_a_section(text: str) -> bool:
    return any(text.startswith(f"{{'{section}': ") for section in SECTIONS)


def _whole_text(line: bytes) -> tuple[str, str]:
    """Return what a line says, and which process printed it."""
    text = _COLOUR.sub("", line.decode("utf-8", "replace").rstrip())
    found = _PRINTED_BY.match(text)
    return (text, "") if found is None else (text[found.end() :], found[1])


def _parse(text: str) -> dict[str, Any] | None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.keys() >= SECTIONS else None


def not_in_effect(
    wanted: Mapping[str, Any], composed: Mapping[str, Any], printed: Mapping[str, Any]
) -> list[str]:
    """Return one sentence for every override that the run does not have.

    Args:
        wanted: the overrides that were passed.
        composed: the configuration that they should give.
        printed: what the run printed.
    """
    faults = []
    for key in wanted:
        if key.startswith(("~", "hydra.")) or value_at(composed, key, _MISSING) is _MISSING:
            continue
        should, has = value_at(composed, key), value_at(printed, key, _MISSING)
        if has is _MISSING or should != has:
            got = "is missing" if has is _MISSING else f"is {has!r}"
            faults.append(f"{bare(key)}: should be {should!r}, and {got} in the run")
    more = len(faults) - _SHOWN
    return [*faults[:_SHOWN], f"and {more} more"] if more > 0 else faults


_MISSING = object()
