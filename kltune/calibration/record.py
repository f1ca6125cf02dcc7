"""The calibration: the result of the protocol, with everything that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Band
from kltune.domain.trials import Trial
from kltune.errors import NotCalibratedError
from kltune.trial.records import read
from kltune.workspace import Workspace

#: The first stage, and the only one that every calibration has.
BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a stage found.

    Attributes:
        stage: ``baseline``.
        calibrated: whether its goal was met.
        reason: the verdict in one sentence, with its numbers.
        settings: the calibrated KL settings; None when no trial was feasible.
        winner: name of the trial that they come from.
        reference: the user's own KL settings.
        best_outside: name of a trial that scored better outside the band; what the band costs.
        band: wanted average reference KL, nats per token.
        trials: all trials with their outcomes.
        steps: training steps of a trial.
        held_fixed: what the settings do not carry over without.
        overrides: the user's verl overrides and the size of the cluster, secrets hidden.
        environment: variables that the user's trainings need, secrets hidden.
        command: words that start verl.
        nodes, gpus_per_node: size of a training.
        scaled: those of the overrides that the number of nodes asks for.
        about: what the settings say of themselves, such as the script that they came from.
        origins: where each of them came from, by key.
        seconds, gpu_hours: what it cost.
        verl, kltune: versions.
        finished: seconds since 1970.
    """

    stage: str
    calibrated: bool
    reason: str
    settings: KlSettings | None
    winner: str | None
    reference: KlSettings
    best_outside: str | None
    band: Band
    trials: tuple[Trial, ...]
    steps: int
    held_fixed: Mapping[str, Any]
    overrides: Mapping[str, Any]
    environment: Mapping[str, str]
    command: tuple[str, ...]
    nodes: int
    gpus_per_node: int
    about: Mapping[str, Any]
    origins: Mapping[str, str]
    seconds: float
    gpu_hours: float
    verl: str
    kltune: str
    finished: float
    scaled: Mapping[str, Any] = field(default_factory=dict)


def read_calibration(workspace: Workspace) -> Calibration:
    """Return the calibration of a workspace.

    Raises:
        NotCalibratedError: there is none yet.
    """
    found = read(workspace.calibration, Calibration)
    if found is None:
        raise NotCalibratedError(
            f"{workspace.path}: holds no calibration yet; make one with `kltune run`, or name "
            "another --workspace"
        )
    return found
