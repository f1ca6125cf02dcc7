"""What the lint looks at: a composed configuration, and which of it the user gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kltune.verl.compose import value_at
from kltune.verl.keys import Key
from kltune.verl.overrides import bare
from kltune.verl.releases import Release

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
KL_CTRL = "algorithm.kl_ctrl"

_CRITIC_FREE = {"grpo", "rloo", "remax", "reinforce_plus_plus", "opo", "gpg", "grpo_passk"}
_CRITIC_FREE |= {"reinforce_plus_plus_baseline", "grpo_vectorized", "gdpo"}


@dataclass(frozen=True, slots=True)
class Subject:
    """A configuration under the lint.

    Attributes:
        config: resolved configuration, composed or put together from known defaults.
        overrides: what the user gave, by override key with Hydra's prefixes.
        release: the verl that it is meant for.
        schema: verl's configuration without overrides, if it could be composed; says which keys
            there are.
        band: wanted reference KL (low, high), nats per token, if kltune was given one.
        script: True if the overrides come from a launch script rather than ``kltune.yaml``:
            kltune then does not set loggers and directories.
    """

    config: Mapping[str, Any]
    overrides: Mapping[str, Any]
    release: Release
    schema: Mapping[str, Any] | None = None
    band: tuple[float, float] | None = None
    script: bool = True

    def value(self, path: str, default: Any = None) -> Any:
        """Return the value at a path of verl's configuration."""
        return value_at(self.config, path, default)

    def number(self, path: str) -> float | None:
        """Return the value as a number; None if it is none, or not told (``1e-6`` is one)."""
        value = self.value(path)
        if isinstance(value, bool) or value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            return None

    def count(self, path: str) -> int | None:
        """Return the value as a whole number, or None."""
        number = self.number(path)
        return int(number) if number is not None and number == int(number) else None

    def at(self, key: Key) -> Any:
        """Return the value of one of kltune's keys, in this release's place."""
        path = self.release.path(key)
        return self.value(path) if path else None

    def given(self, *paths: str) -> dict[str, Any]:
        """Return what the user gave at these paths or below them."""
        return {
            key: value
            for key, value in self.overrides.items()
            if any(bare(key) == path or bare(key).startswith(f"{path}.") for path in paths)
        }

    @property
    def reward_kl(self) -> bool:
        """Whether the KL penalty in the reward is on."""
        if not self.release.reward_kl_switch:
            return not self.loss_kl
        return bool(self.at(Key.USE_KL_IN_REWARD))

    @property
    def loss_kl(self) -> bool:
        """Whether the KL term in the actor's loss is on."""
        return bool(self.at(Key.USE_KL_LOSS))

    @property
    def adaptive(self) -> bool:
        """Whether the adaptive controller is asked for."""
        return bool(self.at(Key.KL_CONTROLLER) == "adaptive")

    @property
    def critic(self) -> bool:
        """Whether a critic is trained."""
        enabled = self.value("critic.enable")
        return bool(self.at(Key.ADV_ESTIMATOR) == "gae" if enabled is None else enabled)

    @property
    def reference(self) -> bool:
        """Whether the reference model is loaded."""
        return self.reward_kl or self.loss_kl

    @property
    def ranks(self) -> int | None:
        """GPUs of the job."""
        nodes = self.count("trainer.nnodes") or 0
        gpus = self.count("trainer.n_gpus_per_node") or 0
        return nodes * gpus if nodes > 0 and gpus > 0 else None

    @property
    def rows(self) -> int | None:
        """Sequences of a training step."""
        prompts = self.count("data.train_batch_size")
        responses = self.count(f"{ROLLOUT}.n") or 1
        return prompts * responses if prompts and prompts > 0 and responses > 0 else None

    @property
    def data_parallel(self) -> int | None:
        """Ranks that hold different rows: GPUs over the sequence parallel size."""
        parallel = self.count(f"{ACTOR}.ulysses_sequence_parallel_size") or 1
        return self.ranks // parallel if self.ranks and self.ranks >= parallel else None

    @property
    def fsdp(self) -> bool:
        """Whether the actor is trained with FSDP; Megatron's divisions are its own."""
        return str(self.value(f"{ACTOR}.strategy")).startswith("fsdp")
