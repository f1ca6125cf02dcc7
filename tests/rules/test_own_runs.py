"""Runs of the tiny task on real verl, recorded by ``benchmarks.detection.record``."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kltune.domain.findings import Severity
from kltune.domain.verdict import Replay
from kltune.readers import drain, open_reader

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"


def labels() -> list[dict[str, str]]:
    with (RUNS / "labels.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("label", labels(), ids=lambda label: label["file"])
def test_an_own_run_is_judged_as_it_is_labelled(label: dict[str, str]) -> None:
    reader, replay = open_reader(RUNS / label["file"]), Replay()
    for step in drain(reader):
        replay.see(step)
    reader.close()
    critical = [f for f in replay.findings["robust"] if f.severity is Severity.CRITICAL]
    if label["verdict"] == "healthy":
        assert critical == []
        return
    assert critical[0].step is not None
    assert int(label["onset_step"]) - 2 <= critical[0].step <= int(label["fire_by_step"])


def test_every_recorded_run_has_a_label() -> None:
    assert {path.name for path in RUNS.glob("*.jsonl")} == {label["file"] for label in labels()}
