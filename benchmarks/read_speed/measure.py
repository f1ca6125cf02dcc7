"""Reading a 100 MB console log, against a bare loop that splits each line. Asked for: at most 4.

Two logs: one as runs write it (a step line, then samples, progress bars, Ray's messages), and one
of step lines alone, the worst case for a reader that must turn each number into a float.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from paired import paired

MEGABYTES = 100
RUNS = 5

_GROUPS = ("actor", "critic", "perf", "timing_s", "response_length")
_NAMES = (
    "mean", "max", "min", "grad_norm", "entropy", "pg_loss", "ppo_kl", "lr", "score/mean",
    "rewards/mean", "clip_ratio", "step", "gen", "update", "throughput",
)  # fmt: skip
_METRICS = [f"{group}/{name}" for group in _GROUPS for name in _NAMES]
_WORDS = ("the", "answer", "is", "42", "Error", "####", "so", "[0,", "x)", "therefore", "12,", "=")

_SPLIT = """
import sys, time
began = time.perf_counter()
for line in open(sys.argv[1], encoding="utf-8", errors="replace"):
    line.split()
print(time.perf_counter() - began)
"""

_READ = """
import resource, sys, time
from kltune.readers import drain, open_reader
began = time.perf_counter()
reader = open_reader(sys.argv[1], "console")
steps = sum(1 for _ in drain(reader))
print(time.perf_counter() - began, steps, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def lines(rng: random.Random, others: int) -> Iterator[str]:
    shape = "np.float64({!r})"  # as numpy 2 prints
    for step in itertools.count(1):
        fields = (f"{name}:{shape.format(rng.random())}" for name in _METRICS)
        yield "\x1b[36m(TaskRunner pid=4711)\x1b[0m " + " - ".join([f"step:{step}", *fields])
        for _ in range(others):
            words = rng.choices(_WORDS, k=14)
            yield "\x1b[36m(AgentLoopWorker pid=4712)\x1b[0m " + " ".join(words)


def write(path: Path, megabytes: int, others: int) -> None:
    rng = random.Random(1)  # noqa: S311
    size = 0
    with path.open("w", encoding="utf-8") as stream:
        for line in lines(rng, others):
            size += stream.write(line + "\n")
            if size >= megabytes << 20:
                return


def answer(code: str, path: Path) -> list[float]:
    argv = [sys.executable, "-c", code, str(path)]
    return [float(n) for n in subprocess.check_output(argv, text=True).split()]


def main(megabytes: int) -> None:
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, others in (("as runs write it", 60), ("step lines alone", 0)):
            path, small = Path(directory) / "large.log", Path(directory) / "small.log"
            write(path, megabytes, others)
            write(small, megabytes // 10, others)
            times = paired(
                lambda path=path: answer(_READ, path)[0],
                lambda path=path: answer(_SPLIT, path)[0],
                runs=RUNS,
            )
            _, steps, peak = answer(_READ, path)
            _, _, peak_small = answer(_READ, small)
            result[name] = {
                "megabytes": megabytes,
                **times,
                "steps": int(steps),
                "megabytes_per_second": round(megabytes / float(str(times["first_s"])), 1),
                "peak_mb": round(peak / 1024, 1),
                "peak_mb_of_a_tenth": round(peak_small / 1024, 1),
            }
    print(json.dumps(result, indent=2))
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MEGABYTES)
