"""The verdict, and the record of a replay."""

from __future__ import annotations

import json

import pytest

from kltune.domain.crashes import Crash, CrashClass
from kltune.domain.verdict import Replay, Verdict
from tests.rules.series import steps


def replayed(series: dict[str, str], crash: Crash | None = None) -> Replay:
    replay = Replay()
    for step in steps(series) if series else []:
        replay.see(step)
    if crash is not None:
        replay.crashed(crash)
    return replay


OOM = Crash(CrashClass.OUT_OF_MEMORY, "CUDA out of memory")
GOOD = {"reference_kl": "0.01+0.001@30", "score": "0.1+0.01@30"}
EXPLODES = {"reference_kl": "0.15@20 0.2*1.6@8", "score": "0.6@20 0.5 0.4 0.2 0.1@5"}


@pytest.mark.parametrize(
    ("series", "crash", "verdict"),
    [
        (GOOD, None, "healthy"),
        ({"score": "0.1@30"}, None, "suspect"),
        ({"score": "0.1+0.01@30", "reference_kl": "0@30"}, None, "suspect"),
        ({**GOOD, "clip_ratio": "0.5"}, None, "suspect"),
        (EXPLODES, None, "collapsed"),
        (EXPLODES, OOM, "collapsed"),
        ({"grad_norm": "0@9", "score": "0@9"}, None, "broken"),
        ({"mismatch_kl": "9", "score": "0"}, None, "broken"),
        ({**GOOD, "entropy": "0.3@9 nan"}, None, "broken"),
        (GOOD, OOM, "crashed"),
        ({}, OOM, "crashed"),
        ({}, Crash(CrashClass.CONFIGURATION), "crashed"),
        ({}, None, "no-metrics"),
        ({"grad_norm": "1@9"}, None, "not-rl"),
    ],
)
def test_verdict(series: dict[str, str], crash: Crash | None, verdict: str) -> None:
    assert replayed(series, crash).verdict("robust") is Verdict(verdict)


def test_a_run_without_reference_kl_says_so() -> None:
    (finding,) = replayed({"score": "0.1+0.01@30"}).findings["robust"]
    assert finding.rule == "no-reference-kl"
    assert "cannot be judged" in finding.message


def test_the_record_is_what_the_interface_promises() -> None:
    replay = replayed({"reference_kl": "0.01 nan 0.08 inf", "score": "0.5"})
    record = json.loads(json.dumps(replay.record("run.log", "console"), allow_nan=False))
    assert set(record) == {
        "source", "format", "steps", "first_step", "last_step", "kl", "profiles",
    }  # fmt: skip
    assert (record["steps"], record["first_step"], record["last_step"]) == (4, 1, 4)
    assert record["kl"] == {
        "metric": "reference_kl",
        "mean": pytest.approx(0.045),
        "max": 0.08,
        "last": None,
    }
    assert set(record["profiles"]) == {"protocol", "robust"}
    first = record["profiles"]["robust"]["findings"][0]
    assert set(first) == {
        "rule", "severity", "step", "metric", "value", "threshold", "action", "message",
    }  # fmt: skip
    assert (first["rule"], first["step"], first["value"]) == ("non-finite", 2, None)


def test_an_empty_run_has_a_record() -> None:
    record = replayed({}).record("x", "jsonl")
    assert (record["steps"], record["first_step"]) == (0, None)
    assert record["kl"] == {"metric": None, "mean": None, "max": None, "last": None}
