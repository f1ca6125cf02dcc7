"""What a trial needs to know to build the command of any of its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kltune.domain.attempts import Change, Limits
from kltune.domain.profiles import Profile
from kltune.domain.trials import Trial
from kltune.launchers.base import JobSpec
from kltune.verl.command import (
    ATTEMPT_ENV,
    RunControl,
    control_overrides,
    kl_overrides,
    without_size,
)
from kltune.verl.compose import compose
from kltune.verl.installation import Installation
from kltune.verl.keys import Key
from kltune.verl.overrides import lay_over, render
from kltune.verl.releases import Release
from kltune.workspace import AttemptDir


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """A trial, and everything around it that stays the same from attempt to attempt.

    Attributes:
        trial: name, role, KL settings, seed.
        command: words that start verl.
        base: the user's verl overrides.
        env: the user's environment variables.
        loggers: loggers that the user asked for besides kltune's own.
        verl, release: the installed verl and what is known of it.
        steps: training steps to make.
        nodes, gpus_per_node: size of each attempt.
        test_freq: steps between validations.
        validate_first: whether to validate before training.
        save_freq: steps between checkpoints; -1 for none.
        rows: sequences of a step.
        profile: rules that judge the trial.
        limits: of its restarts and retries.
        cooldown: steps after a restart in which only non-finite values count.
        keep_answers: whether verl writes every answer of every validation down.
        note_rewards: whether kltune's reward function notes what each source gave.
        keep_traces: whether the attempt has a directory for verl's profiler.
        slot: which of the places for trials side by side this one has, from 0.
        pending_s: seconds that an attempt may wait for its machines.
        joins_cluster: whether verl joins a Ray cluster that is up, and starts none itself.
        shared: whether the machines of the job see the workspace; else verl's metrics are read
            from what it prints.
    """

    trial: Trial
    command: tuple[str, ...]
    base: Mapping[str, Any]
    env: Mapping[str, str]
    loggers: tuple[str, ...]
    verl: Installation
    release: Release
    steps: int
    nodes: int
    gpus_per_node: int
    test_freq: int
    validate_first: bool
    save_freq: int
    rows: int
    profile: Profile
    limits: Limits
    cooldown: int
    pending_s: float = 3600.0
    joins_cluster: bool = False
    shared: bool = True
    keep_answers: bool = False
    note_rewards: bool = False
    keep_traces: bool = False
    slot: int = 0

    @property
    def gpus(self) -> int:
        """GPUs that an attempt holds."""
        return self.nodes * self.gpus_per_node

    def overrides(
        self, directory: AttemptDir, change: Change, resume_from: str | None
    ) -> dict[str, Any]:
        """Return all overrides of an attempt: the user's, the trial's, kltune's."""
        path = directory.path.resolve()
        absolute = AttemptDir(path)
        control = RunControl(
            steps=self.steps,
            seed=self.trial.seed,
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            experiment=f"{path.parent.name}-{path.name}",
            checkpoints=absolute.checkpoints,
            hydra=absolute.hydra,
            test_freq=self.test_freq,
            validate_first=self.validate_first,
            metrics_file=self.shared,
            save_freq=self.save_freq,
            validation_dump=absolute.validation if self.keep_answers else None,
            reward_notes=absolute.rewards if self.note_rewards else None,
            traces=absolute.traces if self.keep_traces else None,
        )
        if resume_from is not None:
            control = replace(control, resume_from=Path(resume_from), validate_first=False)
        layers = [
            kl_overrides(change.settings, self.release),
            control_overrides(control, self.loggers, self.release),
        ]
        if change.remove_padding:
            layers.append({self.release.path(Key.REMOVE_PADDING) or "": True})
        # Ray refuses to be told the size of a cluster that is up.
        base = without_size(self.base, self.release) if self.joins_cluster else self.base
        return lay_over(base, *layers)

    def composed(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration that the overrides give in the installed verl.

        Raises:
            SettingsError: verl does not know a key, or cannot read a value.
        """
        known = {k: v for k, v in overrides.items() if not k.startswith("hydra.")}
        return compose(known, self.verl)

    def job(self, directory: AttemptDir, overrides: Mapping[str, Any]) -> JobSpec:
        """Return the job of an attempt."""
        path = directory.path.resolve()
        metrics = {self.release.metrics_env: str(AttemptDir(path).metrics)} if self.shared else {}
        return JobSpec(
            name=f"kltune {path.parent.name} {path.name}",
            argv=(*self.command, *render(overrides)),
            env={**ATTEMPT_ENV, **self.env, **metrics},
            directory=path,
            cwd=Path.cwd(),
            console=AttemptDir(path).console,
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            slot=self.slot,
        )
