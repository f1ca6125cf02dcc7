"""What a calibration needs of this machine, what of it is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kltune.errors import KltuneError
from kltune.settings import preset_names
from kltune.verl.compose import compose
from kltune.verl.installation import Installation, find_verl, missing_imports
from kltune.verl.releases import Release, release_of
from kltune.workspace import Workspace

_FREE_GB = 5
_SHM_GB = 1


class Health(Enum):
    """Whether something is as it should be."""

    GOOD = "good"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; ``remedy`` is empty where nothing is to be done."""

    name: str
    health: Health
    found: str
    remedy: str = ""

    @property
    def blocks(self) -> bool:
        """Whether no trial can run while this is so."""
        return self.health is Health.MISSING


def examine(workspace: Workspace) -> list[Check]:
    """Look at verl, its packages, GPUs, memory and disk. Starts nothing, imports no verl."""
    return [*_verl(), *_packages(), _gpus(), _disk(workspace.path), _shared_memory(), _presets()]


def _verl() -> Iterator[Check]:
    try:
        verl = find_verl()
        release = release_of(verl.version)
    except KltuneError as error:
        yield Check("verl", Health.MISSING, str(error), "pip install 'kltune[cpu]'")
        return
    health = Health.WARNING if release.note else Health.GOOD
    yield Check("verl", health, f"{verl.version} in {verl.package}", release.note)
    yield _undeclared(release)
    yield _composes(verl)


def _undeclared(release: Release) -> Check:
    missing = missing_imports(release)
    if missing:
        return Check(
            "packages that verl does not declare",
            Health.MISSING,
            f"missing: {', '.join(missing)}",
            "pip install 'kltune[cpu]' brings them",
        )
    return Check("packages that verl does not declare", Health.GOOD, "all here")


def _composes(verl: Installation) -> Check:
    try:
        compose({"actor_rollout_ref.rollout.name": "vllm"}, verl)
    except KltuneError as error:
        return Check("verl's configuration", Health.MISSING, str(error), "reinstall verl")
    return Check("verl's configuration", Health.GOOD, "composes")


def _packages() -> Iterator[Check]:
    for name in ("torch", "ray", "transformers"):
        try:
            yield Check(name, Health.GOOD, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, Health.MISSING, "not installed", "pip install 'kltune[cpu]'")


def _gpus() -> Check:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Check(
            "GPUs",
            Health.WARNING,
            "no nvidia-smi here",
            "without a GPU only presets for the CPU run: kltune run --preset cpu-tiny",
        )
    try:
        done = subprocess.run(  # noqa: S603 - the tool's own path, no input of anybody
            [tool, "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("GPUs", Health.WARNING, f"nvidia-smi failed: {error}", "check the driver")
    gpus = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    if not gpus:
        return Check("GPUs", Health.WARNING, "nvidia-smi lists none", "check the driver")
    return Check("GPUs", Health.GOOD, f"{len(gpus)}: {gpus[0].partition(' (')[0]}")


def _disk(path: Path) -> Check:
    there = next(p for p in (path, *path.resolve().parents) if p.exists())
    free = shutil.disk_usage(there).free / 1e9
    found = f"{free:.0f} GB free, {there}"
    if not os.access(there, os.W_OK):
        return Check(
            "workspace", Health.MISSING, f"{there} is read-only", "name another --workspace"
        )
    if free < _FREE_GB:
        return Check("workspace", Health.WARNING, found, "free some space, checkpoints are large")
    return Check("workspace", Health.GOOD, found)


def _shared_memory() -> Check:
    shm = Path("/dev/shm")  # noqa: S108 - looked at, not written to
    if not shm.is_dir():
        return Check("shared memory", Health.WARNING, "no /dev/shm", "Ray is slow without it")
    free = shutil.disk_usage(shm).free / 1e9
    if free < _SHM_GB:
        return Check(
            "shared memory",
            Health.WARNING,
            f"{free:.2f} GB free in /dev/shm",
            "give the container more, e.g. --shm-size=8g",
        )
    return Check("shared memory", Health.GOOD, f"{free:.0f} GB free in /dev/shm")


def _presets() -> Check:
    names = preset_names()
    if not names:
        return Check("presets", Health.MISSING, "none found", "reinstall kltune")
    return Check("presets", Health.GOOD, ", ".join(names))
