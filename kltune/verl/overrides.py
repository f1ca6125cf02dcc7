"""Overrides: verl's configuration as ``key=value`` words of a command line.

kltune keeps them as a mapping from key to value. A key may carry Hydra's ``+``, ``++`` or ``~``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

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
        inner = ",".join(f"{_render_key(k)}:{render_value(v)}" for k, v in value.items())
        return "{" + inner + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(render_value(v) for v in value) + "]"
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    escaped = re.sub(r"(\\*)'", lambda m: m.group(1) * 2 + "\\'", text)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return "'" + escaped + "\\" * trailing + "'"


def _render_key(key: Any) -> str:
    # A key cannot be quoted; what the grammar keeps for itself is escaped.
    return (
        re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", key)
        if isinstance(key, str)
        else render_value(key)
    )


def render(overrides: Mapping[str, Any]) -> list[str]:
    """Return the overrides as words of a command line, in order."""
    return [
        key if key.startswith("~") else f"{key}={render_value(v)}" for key, v in overrides.items()
    ]


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Return the overrides of words such as ``data.train_batch_size=64``; the last one wins.

    Values are read as Hydra reads them on verl's command line; what its grammar cannot read is
    text, as it is for a shell.

    Raises:
        SettingsError: every word that is no override, or stands for several values.
    """
    found: dict[str, Any] = {}
    faults = []
    for word in words:
        if not _is_override(word):
            faults.append(f"--set {word}: an override is key=value")
            continue
        key, _, text = word.partition("=")
        try:
            found[key] = _parse_value(text) if text else ""
        except ValueError as error:
            faults.append(f"--set {word}: {error}")
    if faults:
        raise SettingsError(faults)
    return found


def _parse_value(text: str) -> Any:
    # Hydra's parser costs a tenth of a second to import.
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(f"key={text}")
    except HydraException:
        if text.startswith(("[", "{")):
            raise ValueError("the brackets hold what Hydra cannot read") from None
        return text
    if override.is_sweep_override():
        raise ValueError("stands for several values; quote a text that holds commas")
    return override.value()


def _is_override(word: str) -> bool:
    return bool(re.match(r"~\w[\w@./\-]*|[+]{0,2}\w[\w@./\-]*=", word))


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
