"""verl's configuration without verl: known defaults of a release, with overrides laid over them.

Complete for the keys that kltune looks at and for no others, so that it can say nothing about
keys that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from kltune.errors import SettingsError
from kltune.verl.overrides import bare
from kltune.verl.releases import Release, numbers

_ABSENT = "<absent>"


def default_config(release: Release) -> dict[str, Any]:
    """Return the unresolved defaults of a release, as a tree."""
    tree: dict[str, Any] = {}
    for path, history in _histories().items():
        known = [value for since, value in history.items() if numbers(since) <= release.numbers]
        if known and known[-1] != _ABSENT:
            *parents, name = path.split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = known[-1]
    return tree


def offline_config(overrides: Mapping[str, Any], release: Release) -> dict[str, Any]:
    """Return the resolved defaults of a release with overrides laid over them.

    References that lead out of the known keys stay as they are written.

    Raises:
        SettingsError: a value cannot stand where its key puts it, e.g. a list below a number.
    """
    # OmegaConf costs a tenth of a second to import.
    from omegaconf import DictConfig, ListConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config = OmegaConf.create(default_config(release))
    faults: list[str] = []
    for key, value in overrides.items():
        if not key.startswith("~") and "@" not in key and "/" not in key:
            try:
                OmegaConf.update(config, bare(key), value, force_add=True)
            except OmegaConfBaseException as error:
                faults.append(f"{key}: {value!r} cannot stand here: {str(error).splitlines()[0]}")
    if faults:
        raise SettingsError(faults)

    def resolved(node: Any) -> Any:
        if isinstance(node, DictConfig):
            return {str(name): item(node, name) for name in node}
        if isinstance(node, ListConfig):
            return [item(node, index) for index in range(len(node))]
        return node

    def item(node: Any, name: Any) -> Any:
        if OmegaConf.is_missing(node, name):
            return "???"
        try:
            return resolved(node[name])
        except OmegaConfBaseException:
            return OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[index]

    found: dict[str, Any] = resolved(config)
    return found


@cache
def _histories() -> Mapping[str, Mapping[str, Any]]:
    text = (files("kltune.verl") / "defaults.yaml").read_text(encoding="utf-8")
    loaded: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    return loaded
