"""Overrides: verl's configuration as ``key=value`` words of a command line.

kltune keeps them as a mapping from key to value. A key may carry Hydra's ``+``, ``++`` or ``~``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from kltune.errors import SettingsError

# What Hydra's grammar reads as one bare word; anything else is quoted.
_BARE = re.compile(r"[A-Za-z0-9_./@+\-]+(?::[A-Za-z0-9_./@+\-]+)*|\$\{[\w.:,]+\}")


def render_value(value: Any) -> str:
    """Return a value as Hydra's command line wants it.

    A string is written as one would type it, so that ``1e-6`` (a string in YAML 1.1) stays the
    number that it is for Hydra; it is quoted only where the grammar asks for it.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ",".join(f"{render_value(k)}:{render_value(v)}" for k, v in value.items())
        return "{" + inner + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(render_value(v) for v in value) + "]"
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    escaped = re.sub(r"(\\*)'", lambda m: m.group(1) * 2 + "\\'", text)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return "'" + escaped + "\\" * trailing + "'"


def render(overrides: Mapping[str, Any]) -> list[str]:
    """Return the overrides as words of a command line, in order."""
    return [
        key if key.startswith("~") else f"{key}={render_value(v)}" for key, v in overrides.items()
    ]


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Return the overrides of words such as ``data.train_batch_size=64``; the last one wins.

    Raises:
        SettingsError: words without ``=``.
    """
    faults = [f"--set {w}: an override is key=value" for w in words if not _is_override(w)]
    if faults:
        raise SettingsError(faults)
    found: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        found[key.strip()] = parse_value(value)
    return found


def parse_value(text: str) -> Any:
    """Return the value of a word's right-hand side; what YAML cannot read stays a string."""
    try:
        return yaml.safe_load(text) if text.strip() else ""
    except yaml.YAMLError:
        return text


def _is_override(word: str) -> bool:
    return word.startswith("~") or bool(re.match(r"[+]{0,2}[\w@./\-]+=", word))


def bare(key: str) -> str:
    """Return an override's key without Hydra's ``+``, ``++`` or ``~``."""
    return key.lstrip("+~")


def lay_over(base: Mapping[str, Any], *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with each layer laid over it.

    A key of a layer replaces the same key of what is below, whichever of ``+``, ``++`` or nothing
    stands before it; the prefix that was there first is kept, since it is the one that composes.
    """
    result = dict(base)
    for layer in layers:
        for key, value in layer.items():
            same = next((k for k in result if bare(k) == bare(key)), None)
            if same is not None and same[0] in "+" and not key.startswith(("+", "~")):
                result[same] = value
                continue
            if same is not None:
                del result[same]
            result[key] = value
    return result
