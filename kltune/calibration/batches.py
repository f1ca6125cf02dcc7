"""Batch sizes between verl's configuration and ``kltune.domain.scaling``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kltune.domain.communication import MicroBatch
from kltune.domain.scaling import Batch, MiniBatch
from kltune.settings import Settings
from kltune.verl.compose import compose, value_at
from kltune.verl.installation import find_verl
from kltune.verl.keys import Key
from kltune.verl.releases import Release, release_of


def batch_of(config: Mapping[str, Any], release: Release) -> Batch:
    """Return the batch sizes of a composed configuration."""

    def size(key: Key) -> int | None:
        path = release.path(key)
        value = value_at(config, path) if path else None
        return int(value) if value else None

    dynamic = value_at(config, release.path(Key.DYNAMIC_BATCH_SIZE) or "")
    prompts = size(Key.TRAIN_BATCH_SIZE) or 1
    critic_mini = size(Key.CRITIC_MINI_BATCH_SIZE)
    has_critic = value_at(config, release.path(Key.ADV_ESTIMATOR) or "") == "gae"

    def micro(key: Key) -> int | None:
        return None if dynamic else size(key)

    return Batch(
        prompts=prompts,
        responses=size(Key.ROLLOUTS_PER_PROMPT) or 1,
        actor=MiniBatch(size(Key.MINI_BATCH_SIZE) or prompts, micro(Key.MICRO_BATCH_SIZE)),
        critic=MiniBatch(critic_mini, micro(Key.CRITIC_MICRO_BATCH_SIZE))
        if has_critic and critic_mini
        else None,
        rollout_micro=micro(Key.ROLLOUT_LOG_PROB_MICRO_BATCH_SIZE),
        reference_micro=micro(Key.REF_LOG_PROB_MICRO_BATCH_SIZE),
    )


def batch_overrides(before: Batch, after: Batch, release: Release) -> dict[str, int]:
    """Return the overrides that turn one batch into the other."""
    sizes: dict[Key, tuple[int | None, int | None]] = {
        Key.TRAIN_BATCH_SIZE: (before.prompts, after.prompts),
        Key.MINI_BATCH_SIZE: (before.actor.prompts, after.actor.prompts),
        Key.MICRO_BATCH_SIZE: (before.actor.micro, after.actor.micro),
        Key.ROLLOUT_LOG_PROB_MICRO_BATCH_SIZE: (before.rollout_micro, after.rollout_micro),
        Key.REF_LOG_PROB_MICRO_BATCH_SIZE: (before.reference_micro, after.reference_micro),
    }
    if before.critic is not None and after.critic is not None:
        sizes[Key.CRITIC_MINI_BATCH_SIZE] = (before.critic.prompts, after.critic.prompts)
        sizes[Key.CRITIC_MICRO_BATCH_SIZE] = (before.critic.micro, after.critic.micro)
    return {
        name: new
        for key, (old, new) in sizes.items()
        if new is not None and new != old and (name := release.key(key)) is not None
    }


def micro_batch(settings: Settings) -> MicroBatch | None:
    """Return the actor's micro batch in these settings; None where they name none.

    Raises:
        LaunchError: verl is not installed.
        SettingsError: verl does not know an override.
    """
    verl = find_verl()
    release = release_of(verl.version)
    cluster, overrides = settings.content.cluster, settings.content.verl.overrides
    config = compose({k: v for k, v in overrides.items() if not k.startswith("hydra.")}, verl)

    def number(key: Key) -> int:
        return int(value_at(config, release.path(key) or "") or 0)

    if value_at(config, release.path(Key.DYNAMIC_BATCH_SIZE) or ""):
        longest = number(Key.MAX_PROMPT_LENGTH) + number(Key.MAX_RESPONSE_LENGTH)
        return MicroBatch.of_tokens(
            release.key(Key.MAX_TOKENS) or "", number(Key.MAX_TOKENS), longest
        )
    batch = batch_of(config, release)
    key = release.key(Key.MICRO_BATCH_SIZE)
    if batch.actor.micro is None or key is None:
        return None
    ranks = cluster.nodes * cluster.gpus_per_node
    return MicroBatch.of_rows(
        key, batch.actor.micro, batch.actor.prompts * batch.responses // ranks
    )
