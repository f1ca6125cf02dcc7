"""Composes the installed verl's own configuration with overrides, without importing verl."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kltune.errors import SettingsError
from kltune.verl.installation import Installation
from kltune.verl.overrides import bare, render


def compose(
    overrides: Mapping[str, Any], verl: Installation, config_name: str = "ppo_trainer"
) -> dict[str, Any]:
    """Return verl's resolved configuration under the overrides, as plain dictionaries.

    The same question gets the same object, which is only to be read: composing reads thirty YAML
    files, and a trial asks several times.

    Raises:
        SettingsError: verl does not know a key, or Hydra cannot read a value; all of them at once,
            with the nearest keys that verl does know.
    """
    known = _compose(verl.config_dir, config_name, ())
    faults = list(_unknown_keys(overrides, known))
    if faults:
        raise SettingsError(faults)
    return _compose(verl.config_dir, config_name, tuple(render(overrides)))


def _unknown_keys(overrides: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    names = list(_paths(known))
    for key in overrides:
        if key.startswith(("+", "~")) or "@" in key or "/" in key or _is_group(key):
            continue
        if _has(known, key):
            continue
        # verl hides many keys from search engines; a near miss saves a look into its source.
        near = difflib.get_close_matches(key, names, n=2, cutoff=0.75)
        hint = f"; near: {', '.join(near)}" if near else f"; to add a new key write +{key}"
        yield f"{key}: verl does not know this key{hint}"


def _is_group(key: str) -> bool:
    return key == "model_engine" or key.startswith("hydra.")


def _has(config: Any, key: str) -> bool:
    node = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def _paths(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")


@lru_cache(maxsize=8)
def _compose(config_dir: Path, config_name: str, words: tuple[str, ...]) -> dict[str, Any]:
    # Hydra and OmegaConf cost a third of a second to import.
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(config_dir=str(config_dir), version_base=None):
            config = hydra_compose(config_name, overrides=list(words))
        container = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        cause = error.__cause__ or error
        first = next((line for line in str(cause).splitlines() if line.strip()), repr(cause))
        raise SettingsError(f"verl's configuration does not compose: {first}") from error
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def value_at(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value at a dotted key (Hydra's prefixes are ignored), else ``default``."""
    node: Any = config
    for part in bare(key).split("."):
        if not isinstance(node, Mapping) or part not in node:
            return default
        node = node[part]
    return node
