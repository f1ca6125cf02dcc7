"""What a calibration would launch, without launching it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kltune.calibration.baseline import STAGE, Baseline
from kltune.calibration.preflight import Setup
from kltune.domain.attempts import Change as AttemptChange
from kltune.domain.events import Event
from kltune.domain.trials import Role, Trial
from kltune.launchers import open_launcher
from kltune.verl.command import reasons
from kltune.verl.difference import Change, difference
from kltune.verl.secrets import redact_values
from kltune.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Preview:
    """What a baseline would do.

    Attributes:
        script: the reference trial's exact script.
        environment: variables that it sets.
        changed: what kltune adds to the user's overrides, or changes in them, and why.
        trials: number of trials in all, confirmations included.
        steps: training steps of each.
        gpus: GPUs of each.
        bounds: limits of time and GPU hours in words.
    """

    script: str
    environment: Mapping[str, str]
    changed: tuple[Change, ...]
    trials: int
    steps: int
    gpus: int
    bounds: str


def preview(setup: Setup, workspace: Workspace) -> Preview:
    """Return what ``kltune run`` would do in this workspace, from its beginning."""
    baseline = Baseline(setup, workspace, _nobody)
    plan = baseline.plan()
    trial = Trial("reference", Role.REFERENCE, plan.reference, plan.seed)
    spec = baseline.spec(trial)
    directory = workspace.trial(STAGE, trial.name).attempt(1)
    overrides = spec.overrides(directory, AttemptChange(trial.settings), None)
    spec.composed(overrides)
    job = spec.job(directory, overrides)
    changed = difference(spec.base, overrides, reasons(setup.release))
    search = setup.settings.content.search
    limits = [
        f"no search trial after {search.timeout_minutes:g} minutes"
        if search.timeout_minutes
        else "",
        f"no search trial after {search.max_gpu_hours:g} GPU hours"
        if search.max_gpu_hours
        else "",
    ]
    launcher = open_launcher(setup.settings.content.cluster)
    return Preview(
        script=launcher.plan(job).text,
        environment=redact_values(job.env),
        changed=tuple(changed),
        trials=1 + search.trials + 2 * search.confirmations,
        steps=setup.steps,
        gpus=spec.gpus,
        bounds="; ".join(text for text in limits if text) or "none",
    )


def _nobody(event: Event) -> None:
    """Nothing happens in a preview that anybody could see."""
