"""Everything that can be known to be wrong before a trial is started, all of it at once."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kltune.calibration.rewards import with_rewards
from kltune.domain.kl import KlSettings, Placement, smallest_horizon
from kltune.domain.profiles import PROFILES
from kltune.errors import SettingsError
from kltune.settings import Settings
from kltune.verl.command import kl_settings, rows_per_step
from kltune.verl.compose import compose, value_at
from kltune.verl.installation import Installation, find_verl
from kltune.verl.keys import Key
from kltune.verl.overrides import lay_over, render_value
from kltune.verl.releases import Release, release_of


@dataclass(frozen=True, slots=True)
class Setup:
    """A checked configuration, ready to be calibrated.

    Attributes:
        settings: kltune's own settings.
        verl, release: the installed verl and what is known of it.
        overrides: the user's verl overrides and the size of the cluster.
        config: the user's configuration, composed and resolved by verl's own files.
        reference: the user's KL settings in it.
        rows: sequences of a training step.
        steps: training steps of a trial.
    """

    settings: Settings
    verl: Installation
    release: Release
    overrides: Mapping[str, Any]
    config: Mapping[str, Any]
    reference: KlSettings
    rows: int
    steps: int


def prepare(settings: Settings) -> Setup:
    """Check the settings against the installed verl and this machine's files.

    Raises:
        LaunchError: verl is not installed.
        SettingsError: every fault found.
    """
    verl = find_verl()
    release = release_of(verl.version)
    if not release.launchable:
        raise SettingsError(f"verl {verl.version}: kltune reads its logs, but cannot launch it")
    settings = with_rewards(settings, release)
    content = settings.content
    size = {
        release.key(Key.NODES): content.cluster.nodes,
        release.key(Key.GPUS_PER_NODE): content.cluster.gpus_per_node,
    }
    overrides = lay_over(content.verl.overrides, {k: v for k, v in size.items() if k})
    overrides = {k: v for k, v in overrides.items() if not k.startswith("hydra.")}
    config = compose(overrides, verl)
    try:
        rows = rows_per_step(config, release)
        reference = kl_settings(config, release)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"verl's configuration: a number is expected ({error})") from None

    faults = [
        *_choice_faults(config, release, settings),
        *_kl_faults(reference, rows, release, settings),
        *_space_faults(rows, settings),
        *_watch_faults(settings),
        *_file_faults(config, release, settings),
        *_cluster_faults(config, release, settings),
    ]
    steps, step_fault = (0, None) if rows < 1 else _steps(settings, config, release)
    if step_fault:
        faults.append(step_fault)
    if faults:
        raise SettingsError(faults)
    return Setup(settings, verl, release, overrides, config, reference, rows, steps)


def _where(key: Key, release: Release, settings: Settings) -> str:
    """Return verl's name of a setting, and where its value came from."""
    path = release.path(key) or key.name.lower()
    origin = settings.origins.get(f"verl.overrides[{path}]", "verl's default")
    return f"{path} ({origin})"


def _choice_faults(
    config: Mapping[str, Any], release: Release, settings: Settings
) -> Iterator[str]:
    """What verl itself would say only after it has loaded its models."""

    def value_of(key: Key) -> Any:
        return value_at(config, release.path(key) or "")

    def where(key: Key) -> str:
        return _where(key, release, settings)

    choices: dict[Key, tuple[Any, ...]] = {
        Key.USE_KL_IN_REWARD: (True, False),
        Key.USE_KL_LOSS: (True, False),
        Key.KL_CONTROLLER: ("fixed", "adaptive"),
        Key.KL_PENALTY: release.estimators,
    }
    for key, known in choices.items():
        if release.path(key) and value_of(key) not in known:
            names = ", ".join(map(render_value, known))
            yield f"{where(key)}: must be one of {names}; got {render_value(value_of(key))}"
    for key in (Key.TRAIN_BATCH_SIZE, Key.ROLLOUTS_PER_PROMPT):
        value = value_of(key)
        if value is not None and int(value) < 1:
            yield f"{where(key)}: must be at least 1, got {value}"
    for key in (Key.TEST_FREQ, Key.SAVE_FREQ):
        if not isinstance(value_of(key), int | None):
            yield f"{where(key)}: must be a number of steps, got {render_value(value_of(key))}"
    loggers = value_of(Key.LOGGER)
    if not isinstance(loggers, str | list | None):
        yield f"{where(Key.LOGGER)}: must be a list of names, got {render_value(loggers)}"
    for key in (Key.TRAIN_FILES, Key.VAL_FILES):
        if not value_of(key):
            yield f"{where(key)}: names no file"


def _kl_faults(
    reference: KlSettings, rows: int, release: Release, settings: Settings
) -> Iterator[str]:
    def where(key: Key) -> str:
        return _where(key, release, settings)

    loss = reference.placement is Placement.LOSS
    coefficient = Key.KL_LOSS_COEF if loss else Key.KL_COEF
    if not (math.isfinite(reference.kl_coef) and reference.kl_coef >= 0):
        yield f"{where(coefficient)}: must be >= 0, got {reference.kl_coef:g}"
    if not reference.adaptive:
        return
    target, horizon = reference.target_kl or 0.0, reference.horizon or 0.0
    if not target > 0:
        yield f"{where(Key.TARGET_KL)}: must be > 0 (the controller divides by it), got {target:g}"
    if reference.kl_coef == 0:
        yield (
            f"{where(Key.KL_COEF)}: an adaptive controller never leaves 0; give it a positive "
            "start, or set algorithm.kl_ctrl.type=fixed"
        )
    limit = smallest_horizon(rows)
    if not horizon > limit:
        yield (
            f"{where(Key.HORIZON)}: must be above {limit:g}, a fifth of the {rows} sequences of a "
            f"step, or the coefficient changes its sign; got {horizon:g}"
        )


def _space_faults(rows: int, settings: Settings) -> Iterator[str]:
    horizon = settings.content.search.space.horizon
    if horizon is not None and not horizon[0] > smallest_horizon(rows):
        yield (
            f"search.space.horizon ({settings.origin('search.space.horizon')}): must begin above "
            f"{smallest_horizon(rows):g}, a fifth of the {rows} sequences of a step; got "
            f"{horizon[0]:g}"
        )


def _watch_faults(settings: Settings) -> Iterator[str]:
    watch = settings.content.watch
    if watch.profile not in PROFILES:
        near = _near(watch.profile, PROFILES)
        yield f"watch.profile: there is no profile {watch.profile!r}{near}"
    known = {name for p in PROFILES.values() for name in p.thresholds}
    for name, value in watch.thresholds.items():
        if name not in known:
            yield f"watch.thresholds.{name}: no rule has such a threshold{_near(name, known)}"
        elif math.isnan(value):
            yield f"watch.thresholds.{name}: must be a number, got nan"


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=2)
    return (
        f"; did you mean {' or '.join(near)}?" if near else f"; one of {', '.join(sorted(known))}"
    )


def _cluster_faults(
    config: Mapping[str, Any], release: Release, settings: Settings
) -> Iterator[str]:
    cluster = settings.content.cluster
    on_cpu = value_at(config, release.path(Key.DEVICE) or "") == "cpu"
    if cluster.launcher == "local" and cluster.nodes > 1 and not on_cpu:
        yield (
            f"cluster.nodes ({settings.origin('cluster.nodes')}): {cluster.nodes} nodes need "
            "cluster.launcher ray or slurm; on one machine only a CPU can stand in for several"
        )


def _file_faults(config: Mapping[str, Any], release: Release, settings: Settings) -> Iterator[str]:
    for key in (Key.TRAIN_FILES, Key.VAL_FILES, Key.MODEL_PATH):
        path = release.path(key) or ""
        for name in _names(value_at(config, path)):
            local = Path(os.path.expanduser(name))  # noqa: PTH111 - pathlib's raises
            is_data = key is not Key.MODEL_PATH
            if "://" in name or (not is_data and not name.startswith(("/", ".", "~"))):
                continue  # a remote file, or a model's name on a hub
            if not local.exists():
                what = "file" if is_data else "directory"
                yield f"{_where(key, release, settings)}: there is no such {what}: {name}"


def _names(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _steps(
    settings: Settings, config: Mapping[str, Any], release: Release
) -> tuple[int, str | None]:
    """Return the steps of a trial, or what keeps them from being known."""
    search = settings.content.search
    if search.steps is not None:
        return search.steps, None
    steps, fault = steps_of_epochs(search.epochs, config, release)
    return steps, f"search.epochs: {fault}; give search.steps (--steps) instead" if fault else None


def steps_of_epochs(
    epochs: float, config: Mapping[str, Any], release: Release
) -> tuple[int, str | None]:
    """Return the training steps of so many epochs, or what keeps them from being known."""
    prompts = int(value_at(config, release.path(Key.TRAIN_BATCH_SIZE) or ""))
    files = value_at(config, release.path(Key.TRAIN_FILES) or "")
    try:
        rows = sum(_parquet_rows(name) for name in _names(files))
    except (OSError, ValueError, ImportError) as error:
        return 0, f"the length of the training data cannot be read ({error})"
    steps = round(rows // prompts * epochs)
    if steps < 2:
        return 0, f"{epochs:g} epochs of {rows} rows make {steps} steps of {prompts} prompts"
    return steps, None


def _parquet_rows(name: str) -> int:
    import pyarrow.parquet

    return int(pyarrow.parquet.ParquetFile(Path(name).expanduser()).metadata.num_rows)
