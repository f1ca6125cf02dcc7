"""Calibrating again when something has changed, from where the last calibration ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kltune.calibration.drift import local_files, remembered
from kltune.calibration.fresh import start_over
from kltune.calibration.preflight import Setup
from kltune.calibration.record import Calibration, read_calibration
from kltune.calibration.specs import verl_value
from kltune.domain.kl import KlSettings
from kltune.drift import fingerprint
from kltune.errors import LaunchError, NotCalibratedError, SettingsError
from kltune.settings import differences
from kltune.trial.records import as_json, read, save
from kltune.verl.keys import Key
from kltune.verl.secrets import redact_values
from kltune.workspace import Workspace, read_json

#: A search that begins where the last one ended needs so much of its budget.
SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is kept of a calibration when the next one begins.

    Attributes:
        settings: the calibrated ones; None where there were none.
        kl: average reference KL of the winner, nats per token.
        objective: its score.
        data: the training data's fingerprint in one line; empty where it was not taken.
        finished: seconds since 1970.
    """

    calibrated: bool
    reason: str
    settings: KlSettings | None
    winner: str | None
    kl: float | None
    objective: float | None
    data: str
    trials: int
    gpu_hours: float
    verl: str
    kltune: str
    finished: float


@dataclass(frozen=True, slots=True)
class History:
    """Calibrations of a workspace, oldest first."""

    calibrations: tuple[Earlier, ...]


def fewer(trials: int) -> int:
    """Return the search trials of a recalibration, when a first calibration makes ``trials``."""
    return max(1, round(trials * SHARE)) if trials else 0


def begin_again(setup: Setup, workspace: Workspace) -> None:
    """Set the last calibration aside for one that begins with its settings.

    Nothing is done where neither settings nor data have changed, nor while a recalibration is
    under way, so that the same command can be given again.

    Raises:
        NotCalibratedError: there is no calibration to begin from.
        LaunchError: another kltune works here, or the directory cannot be moved.
    """
    last = read(workspace.calibration, Calibration)
    if last is None:
        if not earlier(workspace):
            read_calibration(workspace)  # which says what to do
        return
    if not _changed(setup, workspace):
        return
    history = History((*earlier(workspace), _entry(last, workspace)))
    start_over(workspace)
    save(workspace.history, history)
    workspace.decide("recalibration", since=as_json(history.calibrations[-1]))


def earlier(workspace: Workspace) -> Sequence[Earlier]:
    """Return the calibrations before the one at hand, oldest first."""
    found = read(workspace.history, History)
    return found.calibrations if found is not None else ()


def history(workspace: Workspace) -> Sequence[Earlier]:
    """Return all calibrations of a workspace, oldest first.

    Raises:
        NotCalibratedError: there is none.
    """
    past = earlier(workspace)
    last = read(workspace.calibration, Calibration)
    if last is None and not past:
        raise NotCalibratedError(
            f"{workspace.path}: holds no calibration yet; make one with `kltune run`"
        )
    return [*past, _entry(last, workspace)] if last is not None else list(past)


def _changed(setup: Setup, workspace: Workspace) -> bool:
    made_with = (read_json(workspace.identity) or {}).get("made_with", {})
    if differences(made_with, redact_values(setup.settings.identity())):
        return True
    known = remembered(workspace)
    try:
        files = local_files(verl_value(setup, Key.TRAIN_FILES))
        prompt_key = str(verl_value(setup, Key.PROMPT_KEY) or "prompt")
        return known is not None and fingerprint(files, prompt_key).digest != known.digest
    except (SettingsError, LaunchError):
        return False


def _entry(calibration: Calibration, workspace: Workspace) -> Earlier:
    winner = next((t for t in calibration.trials if t.name == calibration.winner), None)
    summary = winner.outcome.summary if winner is not None and winner.outcome else None
    data = remembered(workspace)
    return Earlier(
        calibrated=calibration.calibrated,
        reason=calibration.reason,
        settings=calibration.settings,
        winner=calibration.winner,
        kl=summary.kl if summary else None,
        objective=summary.objective if summary else None,
        data=data.describe() if data is not None else "",
        trials=len(calibration.trials),
        gpu_hours=calibration.gpu_hours,
        verl=calibration.verl,
        kltune=calibration.kltune,
        finished=calibration.finished,
    )
