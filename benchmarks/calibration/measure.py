"""The calibrated config against the reference config on the CPU task, on fresh seeds.

    python benchmarks/calibration/measure.py WORKSPACE [SEEDS]

takes the calibration of a workspace and trains both settings with seeds that neither the search
nor its confirmation has used. Seeds are paired: the two runs of a seed see the same data order.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean

import numpy
from scipy import stats

from kltune.calibration import Baseline, prepare, read_calibration
from kltune.domain.trials import Role, Trial
from kltune.launchers import open_launcher
from kltune.settings import load
from kltune.trial import run_trial
from kltune.workspace import Workspace

calibration = read_calibration(Workspace(Path(sys.argv[1])))
seeds = range(5001, 5001 + (int(sys.argv[2]) if len(sys.argv) > 2 else 5))
setup = prepare(load("cpu-tiny", options={"search.steps": calibration.steps}))
workspace = Workspace(Path(tempfile.mkdtemp()) / "runs")
baseline = Baseline(setup, workspace, lambda event: None)
arms = {"reference": calibration.reference, "calibrated": calibration.settings}


def train(arm: str, seed: int) -> dict[str, float | str | None]:
    """Train one arm with one seed; both under the same rules, to the end."""
    trial = Trial(f"{arm}-{seed}", Role.CONFIRM_REFERENCE, arms[arm], seed)
    directory = workspace.trial("baseline", trial.name)
    outcome = run_trial(
        baseline.spec(trial),
        directory,
        workspace,
        open_launcher(setup.settings.content.cluster),
        lambda event: None,
    )
    summary = outcome.summary
    row = {
        "arm": arm,
        "seed": seed,
        "ending": outcome.ending.value,
        "reference_kl": summary.kl,
        "validation": summary.validation,
        "score": summary.score,
    }
    print(json.dumps(row), flush=True)
    return row


def interval(values: list[float]) -> list[float]:
    """Return the 95 % t interval of a mean."""
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=fmean(values), scale=stats.sem(values) or 1e-12
    )
    return [round(float(low), 4), round(float(high), 4)]


rows = [train(arm, seed) for seed in seeds for arm in arms]
result: dict[str, object] = {
    "settings": {arm: settings.describe() for arm, settings in arms.items()},
    "steps": calibration.steps,
    "rows": rows,
}
# A run that was stopped has no validation score: its last training score stands for it.
scores = {
    arm: [
        r["validation"] if r["validation"] is not None else r["score"]
        for r in rows
        if r["arm"] == arm
    ]
    for arm in arms
}
for arm, values in scores.items():
    result[arm] = {"mean": round(fmean(values), 4), "interval_95": interval(values)}
differences = [b - a for a, b in zip(scores["reference"], scores["calibrated"], strict=True)]
result["difference"] = {
    "mean": round(float(numpy.mean(differences)), 4),
    "interval_95": interval(differences),
    "paired_t_p": round(
        float(stats.ttest_rel(scores["calibrated"], scores["reference"]).pvalue), 5
    ),
}
print(json.dumps(result, indent=2))
Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
