"""Wall time of a trial under kltune against the same bare ``main_ppo`` command.

Asked for: at most 1.05. The bare command is the ``command.sh`` that a trial leaves behind, run
again in fresh directories; under kltune it is submitted, followed, judged at every step, verified
and cleaned up after.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from paired import paired

from kltune.calibration import Baseline, prepare
from kltune.domain.trials import Role, Trial
from kltune.launchers import open_launcher
from kltune.settings import load
from kltune.trial import run_trial
from kltune.workspace import Workspace

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
PAIRS = int(sys.argv[2]) if len(sys.argv) > 2 else 3

folder = Path(tempfile.mkdtemp())
workspace = Workspace(folder / "runs")
setup = prepare(load("cpu-tiny", options={"search.steps": STEPS}))
baseline = Baseline(setup, workspace, lambda event: None)
count = 0


def under_kltune() -> float:
    """Run one trial as ``kltune baseline`` does."""
    global count
    count += 1
    trial = Trial(f"trial-{count}", Role.SEARCH, setup.reference, 1)
    # The rules of a reference: the trial must run to its end.
    spec = baseline.spec(Trial(trial.name, Role.CONFIRM_REFERENCE, trial.settings, trial.seed))
    directory = workspace.trial("baseline", trial.name)
    began = time.perf_counter()
    outcome = run_trial(
        spec,
        directory,
        workspace,
        open_launcher(setup.settings.content.cluster),
        lambda event: None,
    )
    assert outcome.ending.value == "completed", outcome.reason
    return time.perf_counter() - began


def bare() -> float:
    """Run the script that such a trial leaves behind, by hand."""
    global count
    count += 1
    made = workspace.trial("baseline", "trial-1").attempt(1).path
    mine = folder / f"bare-{count}"
    mine.mkdir()
    script = mine / "command.sh"
    script.write_text((made / "command.sh").read_text().replace(str(made), str(mine)))
    began = time.perf_counter()
    with (mine / "console.log").open("w") as console:
        subprocess.run(["bash", str(script)], check=True, stdout=console, stderr=console)
    return time.perf_counter() - began


under_kltune()  # makes the script, and warms the caches
result = {"steps": STEPS, **paired(under_kltune, bare, PAIRS)}
print(json.dumps(result, indent=2))
Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
