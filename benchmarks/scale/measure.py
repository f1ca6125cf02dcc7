"""Step time, start and KL of the CPU preset on 1, 2, 4 and 8 virtual nodes of this machine.

The global batch is the same everywhere, so that only the nodes differ; every number of nodes runs
once with the same seed. Takes a lock for each run where one is given: ``measure.py [LOCK]``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NODES, STEPS, ROWS = (1, 2, 4, 8), 6, 64
KLTUNE = str(Path(sys.executable).parent / "kltune")


def settings(nodes: int) -> dict[str, object]:
    """Return settings whose micro batches divide over the nodes."""
    rows = ROWS // nodes
    return {
        "preset": "cpu-tiny",
        "cluster": {"nodes": nodes},
        "search": {"trials": 0, "confirmations": 0, "steps": STEPS},
        "verl": {
            "overrides": {
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": rows // 2,
                "critic.ppo_micro_batch_size_per_gpu": rows // 2,
                "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": rows,
                "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": rows,
            }
        },
    }


def run(nodes: int, lock: str | None) -> dict[str, object]:
    """Run the reference trial on so many nodes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kltune.yaml").write_text(json.dumps(settings(nodes)))
        words = [KLTUNE, "baseline", "--quiet", "--format", "json"]
        around = ["flock", lock] if lock else []
        with subprocess.Popen(
            [*around, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            attempt = Path(folder) / "kltune-runs/baseline/reference/attempt-1"
            first = None
            while process.poll() is None:
                if first is None and '"step": 1,' in _text(attempt / "metrics.jsonl"):
                    first = time.time()
                time.sleep(0.05)
        lines = [json.loads(line) for line in _text(attempt / "metrics.jsonl").splitlines()]
        planned = json.loads(_text(attempt / "attempt.json"))["planned"]
    steps = [line["data"] for line in lines if line["step"] > 0]
    return {
        "nodes": nodes,
        "start_to_step_1_s": None if first is None else round(first - planned, 1),
        "step_s": round(statistics.median(s["timing_s/step"] for s in steps[1:]), 2),
        "tokens_per_s_per_gpu": round(
            statistics.median(s["perf/throughput"] for s in steps[1:]), 1
        ),
        "reference_kl": [s["actor/reward_kl_penalty"] for s in steps],
    }


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    lock = sys.argv[1] if len(sys.argv) > 1 else None
    result = {
        "cores": len(os.sched_getaffinity(0)),
        "sequences_per_step": ROWS,
        "runs": [run(nodes, lock) for nodes in NODES],
    }
    print(json.dumps(result, indent=2))
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
