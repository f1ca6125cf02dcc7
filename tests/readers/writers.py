"""Writes one series of metrics in every format, with the formats' own libraries."""

from __future__ import annotations

import json
import math
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from kltune.domain.steps import Step
from kltune.readers import drain, open_reader

Record = tuple[int, Mapping[str, float]]

_ANSI_PREFIX = "\x1b[36m(TaskRunner pid=4711)\x1b[0m "


def console_line(step: int, data: Mapping[str, object]) -> str:
    return " - ".join([f"step:{step}", *(f"{name}:{value}" for name, value in data.items())])


def write_console(path: Path, records: Iterable[Record]) -> Path:
    lines = ["Training from scratch"]
    for step, data in records:
        lines += [f"Training Progress: {step}%|# | {step}/9 [00:01<00:02,  1.00s/it]"]
        lines += [_ANSI_PREFIX + console_line(step, data)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_jsonl(path: Path, records: Iterable[Record]) -> Path:
    rows = (
        {"step": step, "data": {n: v if math.isfinite(v) else None for n, v in data.items()}}
        for step, data in records
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_notebook(path: Path, records: Iterable[Record]) -> Path:
    text = "".join(_ANSI_PREFIX + console_line(step, data) + "\n" for step, data in records)
    output = {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
    cells = [
        {"cell_type": "markdown", "source": ["# step:9 - a/b:1"]},
        {"cell_type": "code", "source": [], "outputs": [output]},
    ]
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}))
    return path


def write_csv(path: Path, records: Iterable[Record]) -> Path:
    rows = list(records)
    names = list(rows[0][1])
    lines = [",".join(["Step", *(f'"run-a - {n}"' for n in names)])]
    lines += [",".join([str(step), *(str(data[n]) for n in names)]) for step, data in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_tensorboard(path: Path, records: Iterable[Record]) -> Path:
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(path))
    for step, data in records:
        for name, value in data.items():
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            writer.add_event(Event(step=step, summary=summary))
    writer.close()
    return path


def write_wandb(path: Path, records: Iterable[Record]) -> Path:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record as WandbRecord

    log = RecordLogWriter()
    for step, data in records:
        record = WandbRecord()
        record.history.step.num = step
        for name, value in data.items():
            text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            shown = value if math.isfinite(value) else text
            record.history.item.add(nested_key=[name], value_json=json.dumps(shown))
        record.history.item.add(nested_key=["_step"], value_json=str(step))
        log.write(record.SerializeToString())
    path.write_bytes(bytes(log.data))
    return path


def write_mlflow(path: Path, records: Iterable[Record]) -> Path:
    pytest.importorskip("mlflow")
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own, of the SQLAlchemy that it finds
        client = MlflowClient(tracking_uri=f"sqlite:///{path}")
        run = client.create_run(client.create_experiment("runs")).info.run_id
        for step, data in records:
            metrics = [Metric(n.replace("@", "_at_"), v, 0, step) for n, v in data.items()]
            client.log_batch(run, metrics=metrics)
    return path


class RecordLogWriter:
    """Writes the framing of ``.wandb`` files, as wandb's core does."""

    BLOCK = 32768

    def __init__(self) -> None:
        self.data = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))

    def write(self, record: bytes) -> None:
        first = True
        while True:
            left = self.BLOCK - len(self.data) % self.BLOCK
            if left < 7:
                self.data += bytes(left)
                left = self.BLOCK
            part, record = record[: left - 7], record[left - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            checksum = zlib.crc32(part, zlib.crc32(bytes([kind])))
            self.data += struct.pack("<IHB", checksum, len(part), kind) + part
            first = False
            if not record:
                return


#: Format, file name, writer.
WRITERS: list[tuple[str, str, Callable[[Path, Iterable[Record]], Path]]] = [
    ("console", "train.log", write_console),
    ("csv", "export.csv", write_csv),
    ("jsonl", "metrics.jsonl", write_jsonl),
    ("mlflow", "store.db", write_mlflow),
    ("notebook", "run.ipynb", write_notebook),
    ("tensorboard", "events", write_tensorboard),
    ("wandb", "run-x.wandb", write_wandb),
]


def read(source: Path | str, name: str | None = None) -> list[Step]:
    """Return all records of a source."""
    reader = open_reader(source, name)
    try:
        return list(drain(reader))
    finally:
        reader.close()
