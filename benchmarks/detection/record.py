"""Keeps the runs of workspaces as small logs, for the rules to be tried on.

    python -m benchmarks.detection.record WORKSPACE... TARGET

Of each trial's metrics those are kept that a rule looks at, to five significant digits. Names say
learning rate, coefficient and seed; ``labels.csv`` beside them is written by hand.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from kltune.readers import drain, open_reader
from kltune.trial.records import read_trial
from kltune.workspace import Workspace, read_json

LEARNING_RATE = "actor_rollout_ref.actor.optim.lr"


def record(workspace: Workspace, target: Path) -> None:
    """Write one log for each trial of a workspace."""
    overrides = read_json(workspace.identity)["made_with"]["verl.overrides"]
    for stage in workspace.stages():
        for directory in workspace.trials(stage):
            trial = read_trial(directory)
            name = f"lr{float(overrides[LEARNING_RATE]):g}-kl{trial.settings.kl_coef:.3g}"
            path = target / f"{name}-seed{trial.seed}.jsonl"
            path.write_text("".join(lines(directory.attempts()[-1].metrics)), encoding="utf-8")
            print(path)


def lines(metrics: Path) -> list[str]:
    """Return the records of a metrics file as lines of verl's own format."""
    found = []
    for step in drain(open_reader(metrics)):
        kept = set(step.names.values()) | set(step.validation)
        kept |= {"actor/reward_kl_penalty_coeff"} & step.raw.keys()
        data = {key: shortened(value) for key, value in step.raw.items() if key in kept}
        found.append(json.dumps({"step": step.step, "data": data}) + "\n")
    return found


def shortened(value: float) -> float | None:
    """Return a number to five significant digits; null for what is not finite, as verl does."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


if __name__ == "__main__":
    *workspaces, where = (Path(argument) for argument in sys.argv[1:])
    where.mkdir(parents=True, exist_ok=True)
    for path in workspaces:
        record(Workspace(path), where)
