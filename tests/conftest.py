from copy import deepcopy
from functools import cache
from importlib.util import find_spec

import pytest

from kltune.verl import compose

from .stand_in.project import Project


@pytest.fixture
def project(tmp_path, monkeypatch, quick_compose):
    """A user's directory whose kltune.yaml starts the stand-in instead of verl."""
    monkeypatch.setattr("kltune.trial.crew.POLL_S", 0.02)
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def quick_compose(monkeypatch):
    """Lay overrides over verl's composed defaults; Hydra takes half a second for every trial."""
    if find_spec("verl") is None:
        pytest.skip("verl's configuration files are needed, and verl is not installed")
    from hydra.core.override_parser.overrides_parser import OverridesParser

    slow = compose._compose
    parser = OverridesParser.create()

    @cache
    def quick(config_dir, config_name, words):
        if not words:
            return slow(config_dir, config_name, words)
        config = deepcopy(slow(config_dir, config_name, ()))
        for override in parser.parse_overrides(list(words)):
            node = config
            *parents, name = override.key_or_group.split(".")
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = override.value()
        return config

    monkeypatch.setattr(compose, "_compose", quick)
