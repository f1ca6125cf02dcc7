"""verl's own configuration files, of every supported release, out of its wheels.

Downloaded without dependencies once and kept in the user's cache directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

VERSIONS = ("0.3.0.post1", "0.4.1", "0.5.0", "0.6.1", "0.7.1", "0.8.0", "0.9.1")
LAUNCHABLE = VERSIONS[1:]

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kltune-tests"


@cache
def package(version: str) -> Path:
    """Return the directory of the package ``verl``, holding its configuration files only."""
    home = _CACHE / f"verl-{version}"
    if not home.exists():
        _download(version, home)
    return home / "verl"


def _download(version: str, home: Path) -> None:
    _CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
        command = [sys.executable, "-m", "pip", "download", f"verl=={version}", "--no-deps"]
        command += ["--ignore-requires-python", "--only-binary=:all:", "--quiet", "-d", scratch]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if result.returncode != 0:
            pytest.skip(f"verl {version} could not be downloaded: {result.stderr[-300:]}")
        (wheel,) = Path(scratch).glob("*.whl")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            wanted = ("verl/trainer/config/", "verl/version/")
            archive.extractall(unpacked, [n for n in archive.namelist() if n.startswith(wanted)])
        try:
            unpacked.replace(home)
        except OSError:  # another test process was faster
            if not home.exists():
                raise


def compose(version: str, *overrides: str, config_dir: Path | None = None, name: str = "") -> Any:
    """Return what Hydra composes; with ``config_dir``, a configuration that lies there."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    own = package(version) / "trainer" / "config"
    given = list(overrides)
    if config_dir is not None:
        given.append(f"hydra.searchpath=[file://{own}]")
    with initialize_config_dir(str(config_dir or own), version_base=None):
        return hydra_compose(name or "ppo_trainer", overrides=given)
