"""The labelled logs of real runs, where they are present."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kltune.domain.findings import Action, Kind, Severity
from kltune.domain.verdict import Replay
from kltune.readers import drain, open_reader
from kltune.readers.console import ConsoleReader

LOGS = Path(__file__).parents[2] / ".." / "shared" / "data" / "logs"
LABELS = LOGS / "labels.csv"

pytestmark = pytest.mark.skipif(not LABELS.is_file(), reason="the labelled logs are not here")


def labels() -> list[dict[str, str]]:
    if not LABELS.is_file():
        return []
    with LABELS.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("label", labels(), ids=lambda label: label["file"])
def test_a_recorded_run_is_judged_as_it_is_labelled(label: dict[str, str]) -> None:
    reader = open_reader(LOGS / label["file"])
    replay = Replay()
    records = list(drain(reader))
    for step in records:
        replay.see(step)
    if isinstance(reader, ConsoleReader) and (crash := reader.evidence.crash()):
        replay.crashed(crash)
    reader.close()
    record = replay.record(label["file"], reader.format)
    assert record["steps"] == int(label["steps"])
    sources = {s.kl_source.metric for s in records if s.kl_source}
    assert sources == ({label["kl_metric"]} - {"none"})
    findings = replay.findings["robust"]
    critical = [f for f in findings if f.severity is Severity.CRITICAL]
    verdict = replay.verdict("robust").value
    if label["verdict"] in {"collapsed", "broken"}:
        assert critical
        step = critical[0].step
        assert step is not None
        assert int(label["onset_step"]) - 2 <= step <= int(label["fire_by_step"])
        assert verdict == label["verdict"]
    elif label["verdict"] == "crashed":
        assert verdict == "crashed"
        assert {f.kind for f in critical} == {Kind.INFRASTRUCTURE}
        assert not {f.action for f in findings} & {Action.RAISE_COEFFICIENT, Action.FALL_BACK}
    else:
        assert critical == []
        assert verdict == ("healthy" if label["verdict"] == "healthy" else "suspect")
        if label["verdict"] == "no-kl":
            assert any(f.rule == "no-reference-kl" for f in findings)
