"""The configuration that a run really trained with, as verl prints it at its start."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kltune.verl.compose import value_at
from kltune.verl.crash import plain_text
from kltune.verl.overrides import bare

#: verl prints with ``pprint``, whose first key is the alphabetically first section.
_FIRST = re.compile(r"^\{'\w+': ")


def printed_config(lines: Iterable[bytes]) -> dict[str, Any] | None:
    """Return the configuration in the lines of a console log; None if there is none (yet)."""
    collected: list[str] = []
    for line in lines:
        text = plain_text(line)
        if not collected and not _FIRST.match(text):
            continue
        collected.append(text)
        # A nested section never ends with the closing brace of the whole at the line's end and
        # leaves valid Python, so the first text that parses is all of it.
        if text.endswith("}") and (found := _parse("\n".join(collected))) is not None:
            return found
    return None


def _parse(text: str) -> dict[str, Any] | None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) and len(value) > 1 else None


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
    return faults


_MISSING = object()
