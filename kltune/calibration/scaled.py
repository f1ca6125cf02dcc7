"""What the scale stage found, and the calibrated settings of each number of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kltune.calibration.record import Calibration
from kltune.domain.kl import KlSettings
from kltune.domain.scaling import ScaledSettings
from kltune.domain.trials import Trial
from kltune.trial.records import read
from kltune.verl.overrides import bare, lay_over
from kltune.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Transfer:
    """A trial on many nodes against what one node said about it.

    Attributes:
        trial: its name.
        predicted_kl, measured_kl: mean reference KL of the last half of the steps, nats/token.
    """

    trial: str
    predicted_kl: float | None
    measured_kl: float | None

    @property
    def error(self) -> float | None:
        """Measured over predicted, less one."""
        if not self.predicted_kl or self.measured_kl is None:
            return None
        return self.measured_kl / self.predicted_kl - 1


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What was found on one number of nodes.

    Attributes:
        nodes: how many.
        calibrated, reason: the verdict.
        gate: rule of the consistency gate that failed; None where it passed.
        settings, winner: calibrated KL settings, and the trial that they come from.
        proposals: what the rules proposed.
        batch: what was changed to divide the batch over the ranks.
        overrides: the same as verl overrides, with the number of nodes.
        transfers: predicted against measured KL of every trial.
        throughput, throughput_one_node: tokens per second and GPU, mean of the last half.
        trials: all trials with their outcomes.
        held_fixed: what the settings do not carry over without.
    """

    nodes: int
    calibrated: bool
    reason: str
    gate: str | None
    settings: KlSettings | None
    winner: str | None
    proposals: tuple[ScaledSettings, ...]
    batch: tuple[str, ...]
    overrides: Mapping[str, Any]
    transfers: tuple[Transfer, ...]
    throughput: float | None
    throughput_one_node: float | None
    trials: tuple[Trial, ...]
    held_fixed: Mapping[str, Any]


#: Of every number of nodes; the number follows.
STAGE = "scale-"


def stage_of(nodes: int) -> str:
    """Return the name of the stage of a number of nodes."""
    return f"{STAGE}{nodes}"


def begun_from(workspace: Workspace, nodes: int) -> Path:
    """Return where the stage of a number of nodes keeps the settings of one that it scales."""
    return workspace.stage(stage_of(nodes)) / "begun-from.json"


def is_of_others(workspace: Workspace, nodes: int, settings: KlSettings | None) -> bool:
    """Whether a stage was begun from other settings of one node: the baseline went on since."""
    begun = read(begun_from(workspace, nodes), KlSettings)
    return begun is not None and (settings is None or begun.key() != settings.key())


def at_nodes(calibration: Calibration, result: NodeResult) -> Calibration:
    """Return the calibration of a number of nodes: the baseline's with what was found there."""
    origin = f"scale to {result.nodes} nodes"
    return replace(
        calibration,
        stage=stage_of(result.nodes),
        calibrated=result.calibrated,
        reason=result.reason,
        settings=result.settings,
        winner=result.winner,
        best_outside=None,
        trials=result.trials,
        nodes=result.nodes,
        held_fixed=result.held_fixed,
        overrides=lay_over(calibration.overrides, result.overrides),
        scaled=result.overrides,
        origins={**calibration.origins, **{bare(key): origin for key in result.overrides}},
    )


def read_scaled(workspace: Workspace, calibration: Calibration) -> dict[int, Calibration]:
    """Return the calibrations of all numbers of nodes that settings were found for.

    What was scaled from an earlier winner of the baseline is not among them.
    """
    found = {}
    for stage in workspace.stages():
        if not stage.startswith(STAGE):
            continue
        result = read(workspace.stage_result(stage), NodeResult)
        if result is None or result.settings is None:
            continue
        if not is_of_others(workspace, result.nodes, calibration.settings):
            found[result.nodes] = at_nodes(calibration, result)
    return dict(sorted(found.items()))
