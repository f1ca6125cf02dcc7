"""From a checked configuration to everything that a trial is run with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kltune.calibration.preflight import Setup
from kltune.domain.attempts import Limits
from kltune.domain.profiles import PROFILES, Profile, profile
from kltune.domain.trials import Trial
from kltune.settings import Cluster
from kltune.trial import TrialSpec
from kltune.verl.command import logged_to
from kltune.verl.compose import value_at
from kltune.verl.keys import Key
from kltune.verl.overrides import lay_over


def trial_spec(
    setup: Setup,
    trial: Trial,
    rules: Profile,
    limits: Limits,
    *,
    steps: int,
    validate_first: bool,
    save_freq: int = -1,
    cooldown: int = 0,
    overrides: Mapping[str, Any] | None = None,
    test_freq: int | None = None,
    keep_answers: bool = False,
) -> TrialSpec:
    """Return the spec of a trial; see ``TrialSpec`` for the arguments.

    Args:
        overrides: of verl, laid over the user's own.
        test_freq: steps between validations; None takes the user's, else the last step only.
    """
    content = setup.settings.content
    if test_freq is None:
        test_freq = verl_value(setup, Key.TEST_FREQ)
    return TrialSpec(
        trial=trial,
        command=tuple(content.verl.command),
        base=lay_over(content.verl.overrides, overrides or {}),
        env=content.verl.env,
        loggers=tuple(logged_to(setup.config, content.verl.overrides, setup.release)),
        verl=setup.verl,
        release=setup.release,
        steps=steps,
        nodes=content.cluster.nodes,
        gpus_per_node=content.cluster.gpus_per_node,
        test_freq=test_freq if test_freq and test_freq > 0 else steps,
        validate_first=validate_first,
        save_freq=save_freq,
        rows=setup.rows,
        profile=rules,
        limits=limits,
        cooldown=cooldown,
        keep_answers=keep_answers,
        # Where the trials do not see the workspace, neither would anybody see the notes.
        note_rewards=bool(content.rewards) and content.cluster.shared,
        pending_s=content.cluster.pending_minutes * 60,
        joins_cluster=joins_cluster(content.cluster),
        shared=content.cluster.shared,
    )


def joins_cluster(cluster: Cluster) -> bool:
    """Whether verl finds a Ray cluster up, and starts none of its own."""
    # Under SLURM one node needs none: verl starts its own on it.
    return cluster.launcher == "ray" or cluster.nodes > 1


def rules_of(setup: Setup, name: str) -> Profile:
    """Return a profile with the band and the thresholds of the settings, as far as it has them."""
    wanted = {"band_high": setup.settings.band.high}
    wanted |= setup.settings.content.watch.thresholds
    known = PROFILES[name].thresholds
    return profile(name, {key: value for key, value in wanted.items() if key in known})


def verl_value(setup: Setup, key: Key) -> Any:
    """Return the value of one of verl's settings in the user's configuration."""
    return value_at(setup.config, setup.release.path(key) or "")
