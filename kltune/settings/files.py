"""Presets and ``kltune.yaml``: where they are, and how one is read."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from kltune.errors import SettingsError

#: Preset of a first run without a file of settings.
FIRST_PRESET = "cpu-tiny"


def presets_dir() -> Path:
    """Return the directory that holds the presets, of a wheel or of a source tree."""
    package = Path(str(files("kltune")))
    inside = package / "presets"
    return inside if inside.is_dir() else package.parent / "presets"


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return sorted(path.stem for path in presets_dir().glob("*.yaml"))


def read_preset(name: str) -> dict[str, Any]:
    """Return the content of a preset.

    Raises:
        SettingsError: there is no such preset.
    """
    path = presets_dir() / f"{name}.yaml"
    if name not in preset_names():
        near = difflib.get_close_matches(name, preset_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(
            f"preset {name!r}: there is no such preset; {hint}there are: "
            f"{', '.join(preset_names())}"
        )
    content: dict[str, Any] = _substitute(read_file(path), {"${presets}": str(presets_dir())})
    return content


def _substitute(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, names) for item in value]
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(name, text)
    return value


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a file of settings.

    Raises:
        SettingsError: it is not there, cannot be read, or holds something else.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file; `kltune init` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise SettingsError(f"{path}: is not valid YAML: {where}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: must hold settings by name, got a {type(content).__name__}")
    search = content.get("search")
    if isinstance(search, dict) and "epochs" in search:
        search.setdefault("steps", None)
    return content
