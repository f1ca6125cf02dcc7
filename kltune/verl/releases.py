"""The releases of verl that kltune knows, and what differs between them, as data.

Keys of the configuration stand in ``keys.py``, metric names in ``metrics.py``; here is the rest:
loggers, KL estimators, trainers, what is imported without being declared. What a release has by
default is not repeated, since its own configuration is composed instead; ``defaults.yaml`` serves
where no verl is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from kltune.errors import SettingsError
from kltune.verl.keys import BEFORE, SINCE, Key


class LegacyReward(Enum):
    """What becomes of ``custom_reward_function.*`` and ``reward_model.*``."""

    CURRENT = "current"  # these are the keys
    MIGRATED = "migrated"  # copied to ``reward.*`` by verl itself
    IGNORED = "ignored"  # still in the YAML as null, and without any effect


_ESTIMATORS = ("kl", "abs", "mse", "low_var_kl")
_ALIASES = ("k1", "k2", "k3")
_LOGGERS_04 = (
    "console", "wandb", "mlflow", "swanlab", "vemlp_wandb", "tensorboard", "clearml"
)  # fmt: skip
_LOGGERS_06 = (*_LOGGERS_04, "trackio", "file")


@dataclass(frozen=True, slots=True)
class Release:
    """One release of verl.

    Attributes:
        version: the release that these facts were read in.
        launchable: False where kltune only reads logs.
        loggers: what ``trainer.logger`` accepts.
        file_logger: True where the ``file`` logger can be read while training goes on: it
            crashes or writes nothing until the end before 0.7.1.
        reward_kl_switch: False where KL in the reward is on exactly when the KL loss is off.
        estimators: what ``kl_penalty`` and ``kl_loss_type`` accept.
        legacy_reward: see the enum.
        fsdp2: False where ``strategy`` knows only ``fsdp`` and ``megatron``.
        equal_chunks: rows of a step must be a multiple of ``rollout.agent.num_workers``.
        rows_must_fit_micro_batch: rows per rank must be a multiple of each micro batch; checked
            by the workers only, after the first rollout.
        sync_rollout: False where ``rollout.mode=sync`` raises.
        undeclared: modules that training imports although the wheel does not ask for them.
        note: what to tell the user about this release; ``""`` if nothing.
    """

    version: str
    launchable: bool = True
    loggers: tuple[str, ...] = _LOGGERS_06
    file_logger: bool = True
    reward_kl_switch: bool = True
    estimators: tuple[str, ...] = _ESTIMATORS + _ALIASES
    legacy_reward: LegacyReward = LegacyReward.CURRENT
    fsdp2: bool = True
    equal_chunks: bool = False
    rows_must_fit_micro_batch: bool = False
    sync_rollout: bool = True
    undeclared: tuple[str, ...] = ()
    note: str = ""

    def key(self, key: Key) -> str | None:
        """Return the override key, with ``+`` where Hydra needs it; None if verl has no such."""
        history = {**BEFORE.get(key, {}), SINCE.get(key, "0.3"): key.value}
        known = [name for since, name in history.items() if numbers(since) <= self.numbers]
        return known[-1] if known else None

    def path(self, key: Key) -> str | None:
        """Return the path in the composed configuration; None if verl has no such setting."""
        found = self.key(key)
        return found.lstrip("+") if found else None

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as numbers, to compare with."""
        return numbers(self.version)

    @property
    def metrics_logger(self) -> str:
        """The logger that kltune reads: ``file`` where it works, else ``tensorboard``."""
        return "file" if self.file_logger else "tensorboard"

    @property
    def metrics_env(self) -> str:
        """The environment variable that tells that logger where to write."""
        return "VERL_FILE_LOGGER_PATH" if self.file_logger else "TENSORBOARD_DIR"


#: Oldest first. Source: the wheels themselves.
RELEASES: tuple[Release, ...] = (
    Release(
        "0.3.0",
        launchable=False,
        loggers=("console", "wandb", "mlflow", "swanlab", "vemlp_wandb", "tensorboard"),
        file_logger=False,
        reward_kl_switch=False,
        estimators=_ESTIMATORS,
        fsdp2=False,
    ),
    Release("0.4.1", loggers=_LOGGERS_04, file_logger=False),
    Release("0.5.0", loggers=_LOGGERS_04, file_logger=False),
    Release("0.6.1", file_logger=False, equal_chunks=True),
    Release(
        "0.7.1", legacy_reward=LegacyReward.MIGRATED, equal_chunks=True, sync_rollout=False
    ),
    Release(
        "0.8.0",
        estimators=(*_ESTIMATORS, *_ALIASES, *(f"{e}+" for e in (*_ESTIMATORS, *_ALIASES))),
        legacy_reward=LegacyReward.MIGRATED,
        equal_chunks=True,
        rows_must_fit_micro_batch=True,
        sync_rollout=False,
        undeclared=("cachetools", "fastapi", "uvicorn"),
    ),
    Release(
        "0.9.1",
        loggers=(*_LOGGERS_06, "rl_insight"),
        estimators=(*_ESTIMATORS, *_ALIASES, *(f"{e}+" for e in (*_ESTIMATORS, *_ALIASES))),
        legacy_reward=LegacyReward.IGNORED,
        rows_must_fit_micro_batch=True,
        sync_rollout=False,
        undeclared=(
            "PIL", "cachetools", "fastapi", "msgspec", "transfer_queue", "uvicorn", "zmq"
        ),
    ),
)  # fmt: skip

NEWEST = RELEASES[-1]

#: Releases that differ from the next one in keys or loggers, so that neither's facts hold.
UNSUPPORTED = ("0.4.0", "0.6.0", "0.7.0")


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``0.3.0.post1`` gives (0, 3, 0), ``0.4`` (0, 4, 0).

    Raises:
        SettingsError: the text does not begin with a version.
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version.strip())
    if match is None:
        raise SettingsError(f"verl version: expected something like 0.9.1, got {version!r}")
    return tuple(int(part or 0) for part in match.groups())


def release_of(version: str) -> Release:
    """Return what is known of this version of verl.

    Another patch of a known minor version works as that one, a newer version as the newest
    known; ``note`` then says so.

    Raises:
        SettingsError: the version is older than the oldest release or known not to work.
    """
    wanted = numbers(version)
    if wanted < RELEASES[0].numbers or ".".join(map(str, wanted)) in UNSUPPORTED:
        known = ", ".join(release.version for release in RELEASES if release.launchable)
        raise SettingsError(f"verl {version} is not supported; install one of {known}")
    release = next((r for r in RELEASES if r.numbers[:2] == wanted[:2]), NEWEST)
    if release.numbers == wanted and "dev" not in version:
        return release
    return replace(release, note=f"verl {version} is treated as {release.version}")
