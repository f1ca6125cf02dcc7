"""verl's defaults, and overrides laid over them: of an installed verl, or as kltune knows them.

What kltune knows by itself is complete for the keys that it looks at and for no others, so that it
can say nothing about keys that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from kltune.errors import SettingsError
from kltune.verl.installation import Installation
from kltune.verl.overrides import bare
from kltune.verl.releases import Release, numbers

if TYPE_CHECKING:
    from omegaconf import DictConfig

_ABSENT = "<absent>"
# Seconds that an installer may take to write the files of one package.
_INSTALLING = 60.0


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


def installed_defaults(verl: Installation, config_name: str = "ppo_trainer") -> DictConfig:
    """Return the unresolved defaults of an installed verl.

    Raises:
        SettingsError: there is no configuration of that name, or it does not compose.
    """
    return _generated(verl.config_dir, config_name) or _composed(verl, config_name)


def _generated(config_dir: Path, config_name: str) -> DictConfig | None:
    """Return what verl composed for its reviewers: 40 times as fast to read as to compose.

    verl from 0.5 on ships its own configuration in one file beside the parts (tests compare
    them). None if there is no such file, or if a part was edited after it.
    """
    from omegaconf import OmegaConf

    path = config_dir / f"_generated_{config_name}.yaml"
    if not path.is_file():
        return None
    newest = max(part.stat().st_mtime for part in config_dir.rglob("*.yaml"))
    if path.stat().st_mtime + _INSTALLING < newest:
        return None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    tree = yaml.load(path.read_text(encoding="utf-8"), loader)  # noqa: S506 (a safe one)
    return cast("DictConfig", OmegaConf.create(tree))


def _composed(verl: Installation, config_name: str) -> DictConfig:
    # Hydra costs a fifth of a second to import.
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    try:
        with initialize_config_dir(config_dir=str(verl.config_dir), version_base=None):
            return cast("DictConfig", compose(config_name))
    except HydraException as error:
        fault = f"{config_name}: verl {verl.version} has no such configuration"
        raise SettingsError(fault) from error


def offline_config(overrides: Mapping[str, Any], release: Release) -> dict[str, Any]:
    """Return the resolved defaults of a release with overrides laid over them."""
    from omegaconf import OmegaConf

    return laid_over(OmegaConf.create(default_config(release)), overrides)


def laid_over(config: DictConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return unresolved defaults with overrides laid over them, resolved; ``config`` is changed.

    Choices of files (``model_engine``, ``group@package``) are left out: they need Hydra.
    References that lead out of the tree stay as they are written.

    Raises:
        SettingsError: a value cannot stand where its key puts it, e.g. a list below a number.
    """
    # OmegaConf costs a tenth of a second to import.
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    faults: list[str] = []
    for key, value in overrides.items():
        if key.startswith("~") or "@" in key or "/" in key or bare(key) == "model_engine":
            continue
        try:
            OmegaConf.update(config, bare(key), value, force_add=True)
        except OmegaConfBaseException as error:
            faults.append(f"{key}: {value!r} cannot stand here: {str(error).splitlines()[0]}")
    if faults:
        raise SettingsError(faults)
    try:
        return cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException:
        return cast("dict[str, Any]", _resolved(config))


def _resolved(node: Any) -> Any:
    from omegaconf import DictConfig, ListConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def item(name: Any) -> Any:
        if OmegaConf.is_missing(node, name):
            return "???"
        try:
            return _resolved(node[name])
        except OmegaConfBaseException:
            return OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[index]

    if isinstance(node, DictConfig):
        return {str(name): item(name) for name in node}
    if isinstance(node, ListConfig):
        return [item(index) for index in range(len(node))]
    return node


@cache
def _histories() -> Mapping[str, Mapping[str, Any]]:
    text = (files("kltune.verl") / "defaults.yaml").read_text(encoding="utf-8")
    loaded: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    return loaded
