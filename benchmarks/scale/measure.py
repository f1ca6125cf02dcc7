"""From one node to several virtual ones on this machine: the start, the steps, the KL.

    python benchmarks/scale/measure.py start
    python benchmarks/scale/measure.py train NODES [STEPS] [SEED]

Real verl on the preset ``cpu-tiny``, at the same global batch on every number of nodes. Each call
adds what it measured to ``result.json`` and sums that up again. ``start`` takes one pair: the
command ``kltune scale`` with two nodes and with one, from the command to the end of step 1 of its
first trial. ``train`` runs one trial as a calibration runs it, and takes down its steps, what its
processes did meanwhile, and its reference KL.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from kltune.calibration import Baseline, prepare
from kltune.calibration.batches import batch_of, batch_overrides
from kltune.domain.events import Event, StepSeen
from kltune.domain.scaling import fit
from kltune.domain.trials import Role, Trial
from kltune.launchers import open_launcher
from kltune.settings import load
from kltune.trial import run_trial
from kltune.trial.run import read_steps
from kltune.workspace import Workspace

RESULT = Path(__file__).with_name("result.json")

#: The first steps still warm caches up.
SKIPPED = 2

#: Any reference KL will do: what is measured here is not the calibration.
ANY_BAND = {"low": 0.0, "high": 1000.0}
PROJECT = {
    "preset": "cpu-tiny",
    "band": ANY_BAND,
    "search": {"trials": 0, "confirmations": 0, "steps": 2},
    "scale": {"trials": 1},
}


def start() -> list[dict[str, object]]:
    """Time ``kltune scale`` on one and on two nodes, each after the same baseline."""
    folder = Path(tempfile.mkdtemp())
    (folder / "kltune.yaml").write_text(json.dumps(PROJECT))
    _kltune("baseline", folder).wait()
    # Who goes first alternates: the second finds warmer caches.
    order = (1, 2) if len(_result()["start"]) % 4 == 0 else (2, 1)
    try:
        return [_started(nodes, folder) for nodes in order]
    finally:
        shutil.rmtree(folder)


def _started(nodes: int, folder: Path) -> dict[str, object]:
    load_before = os.getloadavg()[0]
    began = time.time()
    process = _kltune("scale", folder, "--nodes", str(nodes))
    while '"step":1,' not in "".join(map(_text, _attempts(folder, nodes, "metrics.jsonl"))):
        assert process.poll() is None, [*map(_text, _attempts(folder, nodes, "console.log"))]
        time.sleep(0.05)
    stepped = time.time()
    process.terminate()
    process.wait()
    (plan,) = _attempts(folder, nodes, "attempt.json")
    planned = json.loads(_text(plan))["planned"]
    return {
        "nodes": nodes,
        "command_to_launch_s": round(planned - began, 2),
        "launch_to_step_1_s": round(stepped - planned, 2),
        "command_to_step_1_s": round(stepped - began, 2),
        "load_before": round(load_before, 2),
    }


def _attempts(folder: Path, nodes: int, name: str) -> list[Path]:
    return list(folder.glob(f"kltune-runs/scale-{nodes}/*/attempt-1/{name}"))


def _kltune(command: str, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kltune", command, "--quiet", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


class Processes:
    """Takes down what a job's processes have used of the CPUs, from step to step."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.used: dict[int, dict[tuple[str, int], float]] = {}
        self.times: dict[int, float] = {}
        self.memory_gb = 0.0
        self.count = 0

    def __call__(self, event: Event) -> None:
        """Take in one event of the trial."""
        if not isinstance(event, StepSeen):
            return
        step = event.step.step
        attempt = self.workspace.trial("baseline", event.trial.name).attempt(1)
        processes = psutil.Process(int((attempt.path / "pid").read_text())).children(True)
        if step == 1:
            self.count = len(processes)
            # Pages that forked workers share count once.
            self.memory_gb = sum(_asked(p, lambda p: p.memory_full_info().pss) for p in processes)
        self.times[step] = time.monotonic()
        self.used[step] = {(_kind(p), p.pid): _asked(p, _cpu_s) for p in processes}

    def per_step(self, first: int, last: int) -> tuple[float, dict[str, float]]:
        """Return the cores that were busy on average, and CPU seconds a step by kind."""
        spent: Counter[str] = Counter()
        for (kind, pid), seconds in self.used[last].items():
            spent[kind] += seconds - self.used[first].get((kind, pid), 0.0)
        busy = sum(spent.values()) / (self.times[last] - self.times[first])
        steps = last - first
        return busy, {kind: round(s / steps, 3) for kind, s in spent.most_common() if s > 0}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _asked(process: psutil.Process, question) -> float:
    try:
        return question(process)
    except psutil.Error:
        return 0.0


def _kind(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return "ended"
    line = " ".join(words)
    if line.startswith("ray::"):
        return line.removeprefix("ray::").partition(".")[0].partition(" ")[0]
    for part, kind in (
        ("kltune.launchers.virtual_nodes", "virtual_nodes"),
        ("main_ppo", "driver"),
        ("nursery", "nursery"),
        ("/raylet ", "raylet"),
        ("/gcs_server", "gcs_server"),
    ):
        if part in line:
            return kind
    return "Ray's agents"


def train(nodes: int, steps: int, seed: int) -> dict[str, object]:
    """Run one trial on so many nodes and return what it took and what it made."""
    one = prepare(load("cpu-tiny"))
    before = batch_of(one.config, one.release)
    after, changes = fit(before, nodes)
    assert after.rows == before.rows, "the global batch must be the same everywhere"
    setup = prepare(
        load(
            "cpu-tiny",
            overrides=batch_overrides(before, after, one.release),
            options={"cluster.nodes": nodes, "search.steps": steps},
        )
    )
    folder = Path(tempfile.mkdtemp())
    workspace = Workspace(folder)
    watch = Processes(workspace)
    spec = Baseline(setup, workspace, watch).spec(
        Trial("trial", Role.CONFIRM_REFERENCE, setup.reference, seed)
    )
    directory = workspace.trial("baseline", "trial")
    launcher = open_launcher(setup.settings.content.cluster)
    load_before = os.getloadavg()[0]
    began = time.time()
    outcome = run_trial(spec, directory, workspace, launcher, watch)
    assert outcome.ending.value == "completed", (outcome.reason, folder)
    steps_made = [step for step in read_steps(directory) if step.step > 0]
    warm = [step.raw for step in steps_made[SKIPPED:]]
    busy, cpu_s = watch.per_step(SKIPPED, steps_made[-1].step)
    shutil.rmtree(folder)
    return {
        "nodes": nodes,
        "seed": seed,
        "rows_per_step": after.rows,
        "batch": list(changes),
        "whole_trial_s": round(time.time() - began, 1),
        "step_s": round(statistics.median(raw["timing_s/step"] for raw in warm), 3),
        "step_s_each": [round(step.raw["timing_s/step"], 3) for step in steps_made],
        "parts_s": _parts(warm),
        "busy_cores": round(busy, 2),
        "cpu_s_per_step": cpu_s,
        "processes": watch.count,
        "memory_gb": round(watch.memory_gb / 2**30, 2),
        "load_before": round(load_before, 2),
        "reference_kl": [step.reference_kl for step in steps_made],
        "update_kl": [step.update_kl for step in steps_made],
        "grad_norm": [step.grad_norm for step in steps_made],
        "score": [step.score for step in steps_made],
    }


def _parts(steps) -> dict[str, float]:
    """Return the median seconds of each part of a step, as verl times it, the longest first."""
    prefix = "timing_s/"
    medians = {
        name.removeprefix(prefix): statistics.median(raw.get(name, 0.0) for raw in steps)
        for name in steps[0]
        if name.startswith(prefix) and name != "timing_s/step"
    }
    ranked = sorted(medians.items(), key=lambda item: -item[1])
    return {name: round(seconds, 3) for name, seconds in ranked if seconds >= 0.005}


def _result() -> dict[str, list]:
    return json.loads(_text(RESULT) or '{"start": [], "train": []}')


def summary(result: dict[str, list]) -> dict[str, object]:
    """Return the figures that were asked for."""
    found: dict[str, object] = {}
    times = {n: [r for r in result["start"] if r["nodes"] == n] for n in (1, 2)}
    if times[1]:
        pairs = [
            (one["command_to_step_1_s"], two["command_to_step_1_s"])
            for one, two in zip(times[1], times[2], strict=True)
        ]
        found["command_to_step_1"] = {
            "pairs": len(pairs),
            "one_node_s": round(statistics.median(one for one, _ in pairs), 1),
            "two_nodes_s": round(statistics.median(two for _, two in pairs), 1),
            "ratios": [round(two / one, 2) for one, two in pairs],
        }
    runs = result["train"]
    found["step_s"] = {
        str(n): round(statistics.median(r["step_s"] for r in runs if r["nodes"] == n), 2)
        for n in sorted({r["nodes"] for r in runs})
    }
    one = next((r["reference_kl"] for r in runs if r["nodes"] == 1), [])
    found["reference_kl"] = [_beside(one, run) for run in runs]
    return found


def _beside(one: list[float], run: dict) -> dict[str, object]:
    """Return the KL of a run, and how far it is from that of the first run on one node."""
    kl = run["reference_kl"]
    differences = [abs(b - a) / a for a, b in zip(one, kl, strict=False) if a]
    return {
        "nodes": run["nodes"],
        "seed": run["seed"],
        "by_step": [float(f"{value:.3g}") for value in kl],
        "mean_of_last_half": float(f"{statistics.fmean(kl[len(kl) // 2 :]):.3g}"),
        "largest_relative_difference": round(max(differences), 2) if differences else None,
    }


def _one_line(found: re.Match[str]) -> str:
    return " ".join(found[0].split())


if __name__ == "__main__":
    result = _result()
    if sys.argv[1] == "start":
        result["start"] += start()
    else:
        size = [int(word) for word in sys.argv[2:]]
        result["train"].append(train(*size, *(10, 1)[len(size) - 1 :]))
    result = {
        "summary": summary(result),
        "cores": len(os.sched_getaffinity(0)),
        "start": result["start"],
        "train": result["train"],
    }
    # A list of numbers on one line, so that two curves stand side by side.
    text = re.sub(r"\[[-\d.,e\s]+\]", _one_line, json.dumps(result, indent=1))
    RESULT.write_text(text + "\n")
    print(json.dumps(result["summary"]))
