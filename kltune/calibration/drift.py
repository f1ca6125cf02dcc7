"""What data a calibration was made on, and whether it is still that data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kltune.calibration.preflight import Setup
from kltune.calibration.record import Calibration
from kltune.calibration.specs import verl_value
from kltune.drift import Drift, Fingerprint, compare, compare_files, compare_remembered
from kltune.drift import fingerprint as fingerprint_of
from kltune.errors import LaunchError, NotCalibratedError, SettingsError
from kltune.trial.records import read, save
from kltune.verl.compose import value_at
from kltune.verl.keys import Key
from kltune.verl.overrides import bare
from kltune.workspace import Workspace


def remember_data(setup: Setup, workspace: Workspace) -> str:
    """Write the fingerprint of the training data, once, and describe it.

    A calibration is worth more than its fingerprint: data that cannot be read here (on a remote
    file system, say) is told of and does not stop it.
    """
    known = remembered(workspace)
    if known is None:
        try:
            files = local_files(verl_value(setup, Key.TRAIN_FILES))
            known = fingerprint_of(files, str(verl_value(setup, Key.PROMPT_KEY) or "prompt"))
        except (SettingsError, LaunchError) as error:
            return f"no fingerprint of the training data: {error}"
        save(workspace.data, known)
    return known.describe()


def remembered(workspace: Workspace) -> Fingerprint | None:
    """Return the fingerprint of the data that the workspace was calibrated on, if there is one."""
    return read(workspace.data, Fingerprint)


def drift_since_calibration(workspace: Workspace, new: Sequence[Path], prompt_key: str) -> Drift:
    """Compare training data with what the workspace was calibrated on.

    Raises:
        NotCalibratedError: the workspace knows of no data.
        SettingsError: a file cannot be read.
    """
    stored = remembered(workspace)
    if stored is None:
        raise NotCalibratedError(
            f"{workspace.path}: knows of no training data; calibrate with `kltune run`, or name "
            "the old data with --since"
        )
    return compare_remembered(stored, _old_files(workspace), new, prompt_key)


def drift_since_file(since: Path, new: Sequence[Path], prompt_key: str) -> Drift:
    """Compare training data with an older file, or with the fingerprint of an export.

    Raises:
        SettingsError: a file cannot be read.
    """
    if since.suffix != ".json":
        return compare_files([since], new, prompt_key)
    stored = read(since, Fingerprint)
    if stored is None:
        raise SettingsError(f"--since {since}: there is no such file")
    return compare(stored, fingerprint_of(new, prompt_key))


def local_files(value: object) -> list[Path]:
    """Return the files of ``data.train_files``.

    Raises:
        SettingsError: one of them is not on a local file system.
    """
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []
    remote = [str(name) for name in names if "://" in str(name)]
    if remote:
        raise SettingsError(f"{', '.join(remote)}: not a local file")
    return [Path(str(name)).expanduser() for name in names]


def _old_files(workspace: Workspace) -> list[Path]:
    calibration = read(workspace.calibration, Calibration)
    if calibration is None:
        return []
    plain = {bare(key): value for key, value in calibration.overrides.items()}
    files = plain.get(Key.TRAIN_FILES.value) or value_at(plain, Key.TRAIN_FILES.value)
    try:
        return local_files(files)
    except SettingsError:
        return []
