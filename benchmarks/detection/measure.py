"""Judges labelled runs, and asks how fragile the judgement is.

    python -m benchmarks.detection.measure ../shared/data/logs [MORE_DIRECTORIES]

A directory holds logs of any format and a ``labels.csv`` with the columns file, verdict,
onset_step and fire_by_step. Right is: a critical finding between two steps before the onset and
``fire_by_step`` on a run labelled collapsed or broken, none on a healthy, no-kl or not-rl one, and
a crash told apart.
"""

from __future__ import annotations

import csv
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.detection.made_runs import SHAPES, run
from benchmarks.detection.perturbations import PERTURBATIONS
from kltune.domain.findings import Severity
from kltune.domain.judgement import judge
from kltune.domain.profiles import ROBUST
from kltune.domain.steps import Step, values
from kltune.domain.verdict import Replay
from kltune.readers import drain, open_reader
from kltune.readers.console import ConsoleReader

VARIANTS = 200
SEEDS = 50
GOOD = {"healthy", "no-kl", "not-rl"}
BAD = {"collapsed", "broken"}


def judged(path: Path, label: dict[str, str]) -> tuple[dict[str, object], list[Step]]:
    """Return one row of the table, and the step records."""
    reader = open_reader(path)
    replay = Replay()
    steps = list(drain(reader))
    for step in steps:
        replay.see(step)
    if isinstance(reader, ConsoleReader) and (crash := reader.evidence.crash()):
        replay.crashed(crash)
    reader.close()
    first = {
        name: next((f for f in found if f.severity is Severity.CRITICAL), None)
        for name, found in replay.findings.items()
    }
    robust = first["robust"]
    onset, by = label["onset_step"], label["fire_by_step"]
    if label["verdict"] in BAD:
        step = robust.step if robust else None
        right = step is not None and int(onset) - 2 <= step <= int(by)
    elif label["verdict"] == "crashed":
        right = replay.verdict("robust").value == "crashed"
    else:
        right = robust is None
    return {
        "run": path.name,
        "label": label["verdict"],
        "steps": len(steps),
        "onset": onset,
        "fire by": by,
        "score falls": _score_falls(steps),
        "robust": _when(robust),
        "rule": robust.rule if robust else "",
        "verdict": replay.verdict("robust").value,
        "right": right,
        "protocol": _when(first["protocol"]),
    }, steps


def _when(finding: object) -> str:
    step = getattr(finding, "step", None)
    return "" if finding is None else "start" if step is None else str(step)


def _score_falls(steps: Sequence[Step]) -> str:
    """The first step from which three scores in a row are below every score of the first three."""
    scores = values(steps, "score")
    lowest = min((v for _, v in scores[:3]), default=0.0)
    for i in range(3, len(scores) - 2):
        if all(v < lowest for _, v in scores[i : i + 3]):
            return str(scores[i][0])
    return ""


def fragility(runs: dict[str, list[Step]]) -> list[dict[str, object]]:
    """Return how many variants of good runs have a critical finding."""
    rows = []
    for name in [*PERTURBATIONS, "several at once"]:
        alarms: Counter[str] = Counter()
        total = 0
        for steps in runs.values():
            for seed in range(VARIANTS):
                rng = random.Random(seed)  # noqa: S311
                chosen = [name] if name in PERTURBATIONS else [
                    n for n in PERTURBATIONS if rng.random() < 0.5
                ]  # fmt: skip
                variant = steps
                for one in chosen:
                    variant = PERTURBATIONS[one](variant, rng)
                total += 1
                alarms.update(
                    {f.rule for f in judge(variant, ROBUST) if f.severity is Severity.CRITICAL}
                )
        rows.append({"variant": name, "runs": total, "critical": dict(alarms)})
    return rows


def shapes() -> list[dict[str, object]]:
    """Return when made runs are found, over seeds."""
    rows = []
    for name, shape in SHAPES.items():
        firsts = []
        for seed in range(SEEDS):
            found = judge(run(shape, seed), ROBUST)
            firsts.append(next((f.step for f in found if f.severity is Severity.CRITICAL), None))
        fired = sorted(step for step in firsts if step is not None)
        in_time = sum(
            1 for s in fired if shape.onset and shape.dead and shape.onset - 2 <= s <= shape.dead
        )
        rows.append(
            {
                "shape": name,
                "onset": shape.onset,
                "dead": shape.dead,
                "seeds": SEEDS,
                "critical": len(fired),
                "in time": in_time,
                "median step": fired[len(fired) // 2] if fired else None,
            }
        )
    return rows


def print_table(rows: Sequence[dict[str, object]]) -> None:
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        cells = ("" if v is None else str(v) for v in row.values())
        print("| " + " | ".join(cells) + " |")
    print()


def main(directories: Sequence[str]) -> None:
    rows, good = [], {}
    for directory in map(Path, directories):
        with (directory / "labels.csv").open(encoding="utf-8", newline="") as stream:
            for label in csv.DictReader(stream):
                row, steps = judged(directory / label["file"], label)
                rows.append(row)
                if label["verdict"] in GOOD:
                    good[label["file"]] = steps
    result = {"runs": rows, "variants of good runs": fragility(good), "made runs": shapes()}
    for table in result.values():
        print_table(table)
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or ["../shared/data/logs"])
