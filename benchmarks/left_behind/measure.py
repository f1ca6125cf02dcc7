"""Do processes stay behind when a real training is killed at a random moment? Asked for: none.

    python benchmarks/left_behind/measure.py [STARTS] [SEED]

Each start is ``kltune baseline`` on the preset ``cpu-tiny``, in turn on one node and on two
virtual ones. At a moment drawn evenly from its first seconds, in turn, kltune is sent SIGTERM or
SIGINT, or is killed and run again to take the job up and be interrupted, or verl's driver is
killed, and kltune interrupted once it has seen to that. Nothing here relies on how kltune finds
its processes: they are those that inherited a mark from this script, whatever shares a session
with one of them (Ray's agents overwrite their environment), and whatever was seen to belong to
them before the signal. Each call adds its starts to ``result.json``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

RESULT = Path(__file__).with_name("result.json")
MARK = "LEFT_BEHIND"

#: Seconds within which the signal comes, by nodes. On two cores step 1 is done after 16 s on one
#: node, and after 40 s on two.
WITHIN_S = {1: 25.0, 2: 35.0}

#: Seconds for which something that should end is waited for.
PATIENCE_S = 60.0

KINDS = ("SIGTERM kltune", "SIGINT kltune", "SIGKILL kltune, run again", "SIGKILL driver")


class Start:
    """One kltune and everything that descends from it.

    Attributes:
        mark: value of the variable that all of them inherit.
        known: what was seen of them so far, by process and time of creation.
        sessions: the sessions that they were seen in.
    """

    def __init__(self, nodes: int, folder: Path) -> None:
        self.folder = folder
        self.mark = folder.name
        self.known: set[psutil.Process] = set()
        self.sessions: set[int] = set()
        content = {
            "preset": "cpu-tiny",
            "cluster": {"nodes": nodes},
            "search": {"trials": 0, "confirmations": 0, "steps": 500},
        }
        (folder / "kltune.yaml").write_text(json.dumps(content))
        self.run()

    def run(self) -> None:
        """Run kltune, for the first time or again."""
        with (self.folder / "kltune.log").open("wb") as log:
            self.kltune = subprocess.Popen(
                [sys.executable, "-m", "kltune", "baseline"],
                cwd=self.folder,
                env={**os.environ, MARK: self.mark},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def words(self) -> str:
        """Return what this kltune has said."""
        return (self.folder / "kltune.log").read_text()

    def interrupt(self) -> None:
        """Send it what Ctrl-C sends."""
        if not self.ended():
            self.kltune.send_signal(signal.SIGINT)

    def alive(self) -> set[psutil.Process]:
        """Return its processes, and remember them."""
        everybody = {p: session for p in psutil.process_iter() if (session := _session(p))}
        mine = {p for p in everybody if p in self.known or self._marked(p)}
        self.sessions |= {everybody[p] for p in mine}
        mine |= {p for p, session in everybody.items() if session in self.sessions}
        self.known |= mine
        return mine

    def _marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark
        except (psutil.Error, OSError):
            return False

    def driver(self) -> psutil.Process | None:
        """Return verl's driver."""
        return _driver_of(self.alive())

    def reached(self) -> str:
        """Return how far the training has come."""
        metrics = list(self.folder.glob("kltune-runs/baseline/*/attempt-1/metrics.jsonl"))
        if metrics and '"step"' in metrics[0].read_text():
            return "steps"
        first = [words[0] for process in self.alive() if (words := _words(process))]
        if any(word.startswith("ray::") or word.endswith("/raylet") for word in first):
            return "Ray"
        return "driver" if self.driver() else "kltune"

    def attempt_ended(self) -> bool:
        """Whether kltune has written down how its first attempt ended."""
        return bool(list(self.folder.glob("kltune-runs/baseline/*/attempt-1/result.json")))

    def ended(self) -> bool:
        """Whether kltune has ended."""
        return self.kltune.poll() is not None


def _session(process: psutil.Process) -> int | None:
    try:
        ended = process.status() == psutil.STATUS_ZOMBIE
        return None if ended else os.getsid(process.pid)
    except (psutil.Error, OSError):
        return None


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _driver_of(processes: set[psutil.Process]) -> psutil.Process | None:
    """Return the one whose own words, not those of a shell around it, start verl."""
    module = ["-m", "verl.trainer.main_ppo"]
    return next((p for p in processes if _words(p)[1:3] == module), None)


def _until(what: Callable[[], object], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _must(what: Callable[[], object], start: Start) -> None:
    assert _until(what, PATIENCE_S), start.words()


def kill_once(nodes: int, kind: str, moment_s: float) -> dict[str, object]:
    """Start kltune, kill it so after so many seconds, and return what was left."""
    start = Start(nodes, Path(tempfile.mkdtemp(prefix="left-behind-")))
    try:
        if kind == "SIGKILL driver":
            _must(start.driver, start)
        time.sleep(moment_s)
        found: dict[str, object] = {
            "nodes": nodes,
            "kind": kind,
            "moment_s": round(moment_s, 2),
            "processes": len(start.alive()),
            "reached": start.reached(),
        }
        assert not start.ended(), start.words()
        found |= _kill(start, kind)
        began = time.monotonic()
        _must(start.ended, start)
        found["exit_code"] = start.kltune.returncode
        clean = _until(lambda: not start.alive(), PATIENCE_S)
        found["seconds_until_clean"] = round(time.monotonic() - began, 2)
        found["left_behind"] = sorted(process.name() for process in start.alive())
    finally:
        for process in start.alive():
            with suppress(psutil.Error):
                process.kill()
    if clean:
        shutil.rmtree(start.folder)
    return found


def _kill(start: Start, kind: str) -> dict[str, object]:
    """Send the signals of a kind, up to the one that ends kltune."""
    if kind == "SIGTERM kltune":
        start.kltune.terminate()
        return {}
    if kind == "SIGKILL driver":
        began, attempt = time.monotonic(), start.alive()
        _driver_of(attempt).kill()
        # kltune sees it and clears up; then it tries the same again, or ends with the reason.
        _must(lambda: start.attempt_ended() or start.ended(), start)
        seconds = time.monotonic() - began
        left = [p for p in attempt & start.alive() if p.pid != start.kltune.pid]
        start.interrupt()
        return {"seconds_until_retry": round(seconds, 2), "left_of_the_attempt": len(left)}
    if kind == "SIGKILL kltune, run again":
        start.kltune.kill()
        start.kltune.wait()
        start.run()
        # A job outlives its kltune, so one that is interrupted while it imports ends nothing.
        _must(lambda: "reference/attempt-1/console.log" in start.words(), start)
    start.interrupt()
    return {}


def summary(starts: list[dict[str, object]]) -> dict[str, object]:
    """Return the figures that were asked for."""
    seconds = [run["seconds_until_clean"] for run in starts]
    return {
        "starts": len(starts),
        "by_kind": dict(Counter(f"{run['kind']}, {run['nodes']} nodes" for run in starts)),
        "reached": dict(Counter(run["reached"] for run in starts)),
        "processes_at_the_kill": {"max": max(run["processes"] for run in starts)},
        "processes_left_behind": sum(len(run["left_behind"]) for run in starts),
        "left_of_an_attempt_when_it_was_tried_again": sum(
            run.get("left_of_the_attempt", 0) for run in starts
        ),
        "seconds_until_clean": {
            "median": round(statistics.median(seconds), 1),
            "max": round(max(seconds), 1),
        },
    }


if __name__ == "__main__":
    # A shell's background job ignores Ctrl-C, and so would every kltune started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    seed = sys.argv[2] if len(sys.argv) > 2 else "1"
    starts = json.loads(RESULT.read_text())["each"] if RESULT.exists() else []
    for _ in range(count):
        number = len(starts)
        nodes = 1 + number // len(KINDS) % 2
        moment_s = random.Random(f"{seed} {number}").uniform(0, WITHIN_S[nodes])  # noqa: S311
        run = kill_once(nodes, KINDS[number % len(KINDS)], moment_s)
        starts.append(run)
        print(json.dumps(run), flush=True)
        result = {"summary": summary(starts), "each": starts}
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(summary(starts), indent=1))
