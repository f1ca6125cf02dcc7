"""An over-driven training on real verl: caught, restarted, brought into the band.

    python benchmarks/restart/measure.py [KL_COEF] [STEPS] [SEED]

trains the CPU preset with a coefficient that is far too small, under the rules and limits of
``kltune train``. A second training is killed from outside once and has to go on unchanged.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from kltune.calibration import Training, prepare
from kltune.domain.events import Event, FindingSeen, Note, StepSeen
from kltune.domain.kl import KlSettings
from kltune.domain.trials import Role, Trial
from kltune.launchers import open_launcher
from kltune.settings import load
from kltune.trial import run_trial
from kltune.trial.run import read_steps
from kltune.workspace import Workspace

KL_COEF = float(sys.argv[1]) if len(sys.argv) > 1 else 0.02
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1

workspace = Workspace(Path(tempfile.mkdtemp()) / "runs")
settings = load(
    "cpu-tiny",
    overrides={"trainer.save_freq": 2},
    options={"watch.restarts": 5, "watch.cooldown": 8},
)
setup = prepare(settings)


def train(name: str, point: KlSettings, watch) -> dict[str, object]:
    """Train with these settings to the end and return the story."""
    training = Training(setup, workspace, watch, STEPS)
    trial = Trial(name, Role.TRAINING, point, SEED)
    directory = workspace.trial("train", name)
    outcome = run_trial(
        training.spec(trial),
        directory,
        workspace,
        open_launcher(setup.settings.content.cluster),
        watch,
    )
    story = [
        {"what": d["what"], **{k: d[k] for k in ("reason", "ending", "last_step") if k in d}}
        for d in workspace.decisions()
        if d.get("trial") == name and d["what"] in ("attempt-again", "attempt-ended")
    ]
    return {
        "settings": point.describe(),
        "ending": outcome.ending.value,
        "attempts": outcome.attempts,
        "reference_kl_last_half": outcome.summary.kl,
        "inside_the_band": settings.band.holds(outcome.summary.kl or 0.0),
        "reference_kl": [[s.step, s.reference_kl] for s in read_steps(directory)],
        "story": story,
    }


def tell(event: Event) -> None:
    """Print what a person would want to see."""
    match event:
        case StepSeen(_, step):
            print(step.step, step.reference_kl, step.coefficient, step.score, flush=True)
        case FindingSeen(_, finding):
            print(finding.severity.value, finding.message, flush=True)
        case Note(text):
            print(text, flush=True)


class KillOnce:
    """Kills the training's process group at its sixth step, once, as a machine might."""

    def __init__(self) -> None:
        self.done = False

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        tell(event)
        if isinstance(event, StepSeen) and event.step.step == 6 and not self.done:
            self.done = True
            directory = workspace.trial("train", event.trial.name).attempt(1).path
            os.killpg(int((directory / "pid").read_text()), signal.SIGKILL)


reference = setup.reference
over_driven = KlSettings(
    KL_COEF, 0.02, reference.horizon, reference.estimator, reference.clip_ratio
)
result = {
    "steps": STEPS,
    "over-driven": train("over-driven", over_driven, tell),
    "killed from outside": train("killed", over_driven, KillOnce()),
}
Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
print(json.dumps(result, indent=2))
