"""What a workspace holds, read without disturbing whoever works in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kltune.calibration.record import BASELINE, Calibration
from kltune.domain.outcome import Band
from kltune.domain.trials import Trial
from kltune.errors import NotCalibratedError
from kltune.trial.records import read, read_trial
from kltune.workspace import Workspace, read_json


@dataclass(frozen=True, slots=True)
class Status:
    """State of a workspace.

    Attributes:
        workspace: its path.
        band: wanted average reference KL, nats per token.
        trials: all trials, in the order in which they were started.
        running: names of the trials that have not ended.
        seconds, gpu_hours: spent on trials that have ended.
        verdict: the verdict's sentence; None while there is none.
        calibrated: None while there is no verdict.
        story: the journal's decisions that a person wants to read, oldest first.
    """

    workspace: str
    band: Band
    trials: tuple[Trial, ...]
    running: tuple[str, ...]
    seconds: float
    gpu_hours: float
    verdict: str | None
    calibrated: bool | None
    story: tuple[str, ...]


def read_status(workspace: Workspace) -> Status:
    """Return the state of a workspace.

    Raises:
        NotCalibratedError: nothing was ever started in it.
    """
    identity = read_json(workspace.identity)
    if identity is None:
        raise NotCalibratedError(
            f"{workspace.path}: nothing was started here yet; `kltune run` starts"
        )
    band = identity["made_with"]["band"]
    trials = [read_trial(d) for stage in workspace.stages() for d in workspace.trials(stage)]
    outcomes = [t.outcome for t in trials if t.outcome is not None]
    calibration = read(workspace.calibration, Calibration)
    return Status(
        workspace=str(workspace.path),
        band=Band(band["low"], band["high"]),
        trials=tuple(trials),
        running=tuple(t.name for t in trials if t.outcome is None),
        seconds=sum(o.seconds for o in outcomes),
        gpu_hours=sum(o.gpu_hours for o in outcomes),
        verdict=calibration.reason if calibration else None,
        calibrated=calibration.calibrated if calibration else None,
        story=tuple(s for entry in workspace.decisions() if (s := sentence(entry))),
    )


def sentence(entry: Mapping[str, Any]) -> str | None:
    """Return a journal entry as a sentence; None for what the table of trials says already."""
    name, stage = entry.get("trial", ""), entry.get("stage", BASELINE)
    if stage != BASELINE:
        name = f"{stage}/{name}"
    match entry["what"]:
        case "finding":
            finding = entry["finding"]
            return f"{name}: {finding['severity']} {finding['rule']}: {finding['message']}"
        case "attempt-again":
            return f"{name}: another attempt, {entry['reason']}"
        case "attempt-ended" if entry["ending"] == "interrupted":
            return f"{name}: attempt {entry['attempt']} was interrupted"
        case "trial-ended" if entry["outcome"]["ending"] != "completed":
            return f"{name}: {entry['outcome']['ending']}, {entry['outcome']['reason']}"
        case "trial-set-aside":
            return f"{name}: was set aside, to be run again"
        case "validation":
            return f"validation: {entry['finding']}: {entry['reason']}"
        case "recalibration":
            return f"calibrated again; before: {entry['since']['reason']}"
        case "stage-set-aside":
            return f"{entry['stage']}: an earlier one was set aside"
        case "scale-verdict":
            return f"{stage}: {entry['reason']}"
        case "profile":
            return f"{name}: {entry['advice']}"
        case "verdict":
            return f"verdict: {entry['reason']}"
        case _:
            return None
