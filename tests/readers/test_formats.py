"""How the format of a source is found out."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from kltune.errors import MetricsError
from kltune.readers import open_reader
from kltune.readers.formats import find_format

from .writers import RecordLogWriter, read, write_console, write_tensorboard

ONE = [(1, {"critic/score/mean": 0.5})]


@pytest.mark.parametrize(
    ("name", "content", "format_"),
    [
        ("x.txt", b'{"step": 1, "data": {"a/b": 1}}\n', "jsonl"),
        ("x.txt", json.dumps({"cells": [], "nbformat": 4}).encode(), "notebook"),
        ("x.txt", b"Step,run - actor/ppo_kl\n1,0.5\n", "csv"),
        ("x.txt", b"SQLite format 3\0....", "mlflow"),
        ("x.txt", bytes(RecordLogWriter().data), "wandb"),
        ("x.txt", b"Started a local Ray instance, with steps\n", "console"),
        ("x.jsonl", b"", "jsonl"),
        ("x.csv", b"", "csv"),
        ("events.out.tfevents.1", b"", "tensorboard"),
        ("x.log", b"", "console"),
        ("x.log", b"\xff\xfe\x00broken", "console"),
        ("x.log", b'"never closed, and step', "console"),
    ],
)
def test_a_file_is_known_by_its_content_else_by_its_name(
    tmp_path: Path, name: str, content: bytes, format_: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert find_format(path) == (format_, str(path))


def test_a_missing_file_is_known_by_its_name(tmp_path: Path) -> None:
    assert find_format(tmp_path / "metrics.jsonl")[0] == "jsonl"
    assert find_format(tmp_path / "train.log")[0] == "console"


def test_directories(tmp_path: Path) -> None:
    events = write_tensorboard(tmp_path / "tb", ONE)
    assert find_format(events)[0] == "tensorboard"
    offline = tmp_path / "wandb" / "offline-run-1"
    offline.mkdir(parents=True)
    (offline / "run-1.wandb").write_bytes(b"")
    assert find_format(tmp_path / "wandb")[0] == "wandb"
    synced = tmp_path / "run-2" / "files"
    synced.mkdir(parents=True)
    log = write_console(synced / "output.log", ONE)
    assert find_format(tmp_path / "run-2") == ("console", str(log))
    store = tmp_path / "mlruns" / "0"
    store.mkdir(parents=True)
    (store / "meta.yaml").write_text("name: x")
    assert find_format(tmp_path / "mlruns")[0] == "mlflow"
    (tmp_path / "empty").mkdir()
    with pytest.raises(MetricsError, match="no metrics recognised"):
        find_format(tmp_path / "empty")


def test_a_given_format_wins(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_console(path, ONE)
    assert [s.step for s in read(path, "console")] == [1]


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(MetricsError, match="unknown format 'yaml'; one of console, csv, jsonl"):
        open_reader("x", "yaml")


def test_a_run_of_a_store_is_chosen_behind_a_hash() -> None:
    assert find_format("sqlite:///x.db#run1") == ("mlflow", "sqlite:///x.db#run1")
    assert find_format("store.db#run1") == ("mlflow", "store.db#run1")


@pytest.mark.parametrize(
    ("format_", "package", "extra"),
    [
        ("tensorboard", "tensorboard", "kltune\\[tensorboard\\]"),
        ("wandb", "wandb", "kltune\\[wandb\\]"),
        ("mlflow", "mlflow", "kltune\\[mlflow\\]"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str, package: str, extra: str
) -> None:
    plain = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    path = tmp_path / "source"
    path.write_bytes(b"")
    with pytest.raises(MetricsError, match=extra):
        open_reader(path, format_)
