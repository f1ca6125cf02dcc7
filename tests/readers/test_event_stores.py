"""TensorBoard, wandb and MLflow: what their files look like in the wild."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kltune.errors import MetricsError
from kltune.readers import drain, open_reader
from kltune.readers.record_log import RecordLog

from .writers import RecordLogWriter, read, write_mlflow, write_tensorboard, write_wandb

ONE = [(1, {"critic/score/mean": 0.5}), (2, {"critic/score/mean": 0.75})]


def test_several_runs_in_one_event_directory_are_named(tmp_path: Path) -> None:
    write_tensorboard(tmp_path / "tb" / "a", ONE)
    write_tensorboard(tmp_path / "tb" / "b", ONE)
    with pytest.raises(MetricsError, match=r"holds 2 runs; name one of them: .*a, .*b"):
        open_reader(tmp_path / "tb").poll()
    assert [s.step for s in read(tmp_path / "tb" / "a")] == [1, 2]


def test_a_resumed_run_repeats_steps_in_a_second_event_file(tmp_path: Path) -> None:
    write_tensorboard(tmp_path / "tb", ONE)
    write_tensorboard(tmp_path / "tb", [(2, {"critic/score/mean": 0.25})])
    steps = read(tmp_path / "tb")
    assert [(s.step, s.score) for s in steps] == [(1, 0.5), (2, 0.75), (2, 0.25)]


@pytest.mark.parametrize("content", [b"", bytes(4000), b"no events at all" * 400])
def test_an_event_file_without_events_is_empty(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("tensorboard")
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(content)
    assert (read(path)) == []


def test_an_event_file_of_a_header_only_is_empty(tmp_path: Path) -> None:
    assert (read(write_tensorboard(tmp_path / "tb", []))) == []


def test_an_event_file_cut_in_a_record_keeps_the_rest(tmp_path: Path) -> None:
    (path,) = write_tensorboard(tmp_path / "tb", ONE).iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    reader = open_reader(path)
    assert [s.step for s in drain(reader)] == [1]
    path.write_bytes(whole)
    assert [s.step for s in drain(reader)] == [2]


def test_several_runs_of_wandb_are_named(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for run in ("1", "2"):
        (tmp_path / f"offline-run-{run}").mkdir()
        write_wandb(tmp_path / f"offline-run-{run}" / f"run-{run}.wandb", ONE)
    with pytest.raises(MetricsError, match=r"holds 2 runs of wandb, name one: .*1\.wandb"):
        open_reader(tmp_path)
    assert [s.step for s in read(tmp_path / "offline-run-1")] == [1, 2]


def test_what_is_no_wandb_file_says_so(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    path = tmp_path / "run-1.wandb"
    path.write_bytes(b"something else")
    with pytest.raises(MetricsError, match="does not begin as"):
        read(path, "wandb")


def test_wandb_writes_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb itself writes the run, so that a change of its format is seen here."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="p")
    for step in (1, 2):
        pad = {f"pad/{i}": 0.123456 * i for i in range(500)}  # records of more than one block
        run.log({"critic/score/mean": float("nan") if step == 2 else 0.5, **pad}, step=step)
    run.finish()
    wandb.teardown()
    first, second = read(tmp_path)
    assert (first.step, first.score, len(first.raw)) == (1, 0.5, 501)
    assert second.score != second.score


@given(st.lists(st.binary(max_size=200) | st.just(bytes(70_000)), max_size=8), st.randoms())
def test_records_come_back_whole_in_pieces_of_any_size(
    records: list[bytes], rng: random.Random
) -> None:
    writer = RecordLogWriter()
    for record in records:
        writer.write(record)
    log, found, at = RecordLog(), [], 0
    while at < len(writer.data):
        size = rng.choice((1, 6, 7, 500, 33_000))
        found += log.feed(bytes(writer.data[at : at + size]))
        at += size
    assert found == records


def test_a_damaged_record_costs_its_block() -> None:
    writer = RecordLogWriter()
    for i in range(40):
        writer.write(bytes([i]) * 2000)
    writer.data[100] ^= 0xFF
    found = RecordLog().feed(bytes(writer.data))
    assert found
    assert found == [bytes([i]) * 2000 for i in range(40)][-len(found) :]


@given(st.binary(max_size=400))
def test_any_bytes_are_a_log_or_refused(data: bytes) -> None:
    RecordLog().feed(b":W&B\xe1\xbe\0" + data)


@pytest.mark.filterwarnings("ignore:.*deprecated")  # MLflow's own, of SQLAlchemy 2.1
def test_several_runs_of_mlflow_are_named(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    path = write_mlflow(tmp_path / "store.db", ONE)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{path}")
    (experiment,) = (e for e in client.search_experiments() if e.name == "runs")
    (first,) = client.search_runs([experiment.experiment_id])
    client.create_run(experiment.experiment_id)
    with pytest.raises(MetricsError, match="holds 2 runs, name one"):
        open_reader(path).poll()
    chosen = open_reader(f"{path}#{first.info.run_id}")
    assert [s.step for s in drain(chosen)] == [1, 2]


def test_what_is_no_mlflow_store_says_so(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    path = tmp_path / "store.db"
    path.write_bytes(b"SQLite format 3\0" + bytes(2000))
    with pytest.raises(MetricsError, match="MLflow cannot"):
        open_reader(path).poll()
