"""A preset, ``kltune.yaml`` and the command line, laid over each other."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError

from kltune.errors import SettingsError
from kltune.settings.files import read_file, read_preset
from kltune.settings.provenance import Settings
from kltune.settings.sections import Content
from kltune.verl.overrides import bare, lay_over


def load(
    preset: str | None = None,
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings of a command.

    Args:
        preset: name of the preset; None takes that of the file, if any.
        config: a ``kltune.yaml``; None for none.
        overrides: verl overrides of ``--set``.
        options: other values of the command line by dotted path, e.g. ``search.trials``; None
            values are left out.

    A layer that gives a length in epochs takes the place of a length in steps below it.

    Raises:
        SettingsError: everything that is wrong in them, with the file that it stands in.
    """
    file_layer = read_file(config) if config is not None else {}
    name = preset or file_layer.get("preset")
    layers: list[tuple[str, dict[str, Any]]] = []
    if name is not None:
        layers.append((f"preset {name}", read_preset(str(name))))
    if config is not None:
        layers.append((str(config), file_layer))
    if overrides:
        layers.append(("--set", {"verl": {"overrides": dict(overrides)}}))
    given = {path: value for path, value in (options or {}).items() if value is not None}
    if "search.epochs" in given:
        given.setdefault("search.steps", None)
    layers += [(_option(path), _nested(path, value)) for path, value in given.items()]

    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        _lay(merged, layer, origin, origins)
    if name is not None:
        merged["preset"] = str(name)
    try:
        return Settings(Content.model_validate(merged), origins)
    except ValidationError as error:
        raise SettingsError([_fault(e, origins) for e in error.errors()]) from None


def _option(path: str) -> str:
    return "--" + path.rsplit(".", 1)[-1].removesuffix("_minutes").replace("_", "-")


def _nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _lay(
    below: dict[str, Any], layer: Mapping[str, Any], origin: str, origins: dict[str, str]
) -> None:
    """Lay one layer over what is below; mappings are merged, everything else replaces."""

    def merge(target: dict[str, Any], source: Mapping[str, Any], prefix: str) -> None:
        for key, value in source.items():
            path = f"{prefix}{key}"
            if value is None and path in _MAPPINGS:
                continue  # a section whose every line is commented out
            if path == "verl.overrides" and isinstance(value, Mapping):
                named = {str(k): v for k, v in value.items()}
                target[key] = lay_over(target.get(key) or {}, named)
                origins.update({f"verl.overrides[{bare(k)}]": origin for k in named})
            elif isinstance(value, Mapping) and isinstance(target.get(key, {}), dict):
                merge(target.setdefault(key, {}), value, f"{path}.")
            else:
                target[key] = value
                origins[path] = origin

    merge(below, layer, "")


def _mappings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every setting that holds settings, or values by name."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield path
            yield from _mappings(info.annotation, f"{path}.")
        elif get_origin(info.annotation) is dict:
            yield path


_MAPPINGS = frozenset(_mappings(Content))


def _fault(error: Any, origins: Mapping[str, str]) -> str:
    location: Sequence[Any] = error["loc"]
    path = ".".join(str(part) for part in location)
    parent = ".".join(str(part) for part in location[:-1])
    within = {origin for name, origin in origins.items() if name.startswith(f"{path}.")}
    origin = origins.get(path) or ", ".join(sorted(within)) or origins.get(parent)
    where = f" ({origin})" if origin else ""
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), _fields(location[:-1]), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{path}{where}: there is no such setting{hint}"
    message = error["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    received = error.get("input")
    got = f", got {received!r}" if not isinstance(received, dict) else ""
    return f"{path}{where}: {message}{got}"


def _fields(location: Sequence[Any]) -> list[str]:
    model: Any = Content
    for part in location:
        found = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        if found is None:
            return []
        model = found.annotation
    return list(model.model_fields) if hasattr(model, "model_fields") else []
