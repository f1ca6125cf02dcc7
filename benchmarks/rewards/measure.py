"""A reward that can be gamed, alone and beside a truthful one, on the CPU task with real verl.

    python benchmarks/rewards/measure.py

Twice the same short training without a KL penalty. The length of the answer is rewarded in both;
verl's own scorer is a witness of weight 0 in the first run and a source of weight 1 in the second.
The robust rules watch both.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import yaml

from kltune.calibration import prepare
from kltune.calibration.specs import rules_of, trial_spec
from kltune.domain.attempts import Limits
from kltune.domain.events import FindingSeen
from kltune.domain.kl import KlSettings
from kltune.domain.trials import Role, Trial
from kltune.launchers import open_launcher
from kltune.settings import load
from kltune.trial import run_trial
from kltune.trial.run import read_steps
from kltune.workspace import Workspace

STEPS, TEST_FREQ = 40, 4
LENGTH = {"rule": "length", "per": 20, "cap": 2.0}
RUNS = {
    "length alone": {"length": LENGTH, "truth": {"rule": "verl", "weight": 0.0}},
    "length and truth": {"length": {**LENGTH, "weight": 0.1}, "truth": {"rule": "verl"}},
}
OVERRIDES = {"actor_rollout_ref.actor.optim.lr": 3.0e-4}


def train(name: str, rewards: dict[str, dict[str, object]], place: Path) -> dict[str, object]:
    """Train once under watch; return scores and sources by step, and what the rules said."""
    config = place / f"{name}.yaml"
    config.write_text(yaml.safe_dump({"rewards": rewards, "verl": {"overrides": OVERRIDES}}))
    setup = prepare(load("cpu-tiny", config, options={"search.steps": STEPS}))
    workspace = Workspace(place / name.replace(" ", "-"))
    trial = Trial("training", Role.TRAINING, KlSettings(kl_coef=0.0, estimator="low_var_kl"), 1)
    spec = trial_spec(
        setup,
        trial,
        rules_of(setup, "robust"),
        Limits(restarts=0),
        steps=STEPS,
        validate_first=True,
        test_freq=TEST_FREQ,
    )
    said: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, FindingSeen) and event.finding.severity.value != "info":
            said.append(f"step {event.finding.step}: {event.finding.rule}")
            print(event.finding.message, file=sys.stderr)

    directory = workspace.trial("rewards", trial.name)
    outcome = run_trial(
        spec, directory, workspace, open_launcher(setup.settings.content.cluster), listen
    )
    steps = read_steps(directory)
    return {
        "ending": outcome.ending.value,
        "findings": said,
        "score": {s.step: round(s.score, 3) for s in steps if s.score is not None},
        "sources": {
            s.step: {name: round(value, 3) for name, value in s.sources.items()}
            for s in steps
            if s.sources
        },
        "validation": {
            s.step: {
                key.split("/")[-2]: round(value, 3)
                for key, value in s.raw.items()
                if key.startswith("val-") and key.endswith("/mean@1")
            }
            for s in steps
            if s.held_out is not None
        },
    }


with tempfile.TemporaryDirectory() as temporary:
    result = {name: train(name, rewards, Path(temporary)) for name, rewards in RUNS.items()}
print(json.dumps(result, indent=2))
Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
