"""Which reader reads a source: the list of formats, and how a format is found out."""

from __future__ import annotations

import csv
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

from kltune.errors import MetricsError
from kltune.readers.base import Reader
from kltune.readers.jsonl import parse_record
from kltune.readers.record_log import HEADER
from kltune.readers.sources import find_in_directory, step_column

#: Format to the reader's class, imported when one is opened.
FORMATS: dict[str, str] = {
    "console": "kltune.readers.console:ConsoleReader",
    "csv": "kltune.readers.csv_export:CsvReader",
    "jsonl": "kltune.readers.jsonl:JsonlReader",
    "mlflow": "kltune.readers.mlflow_store:MlflowReader",
    "notebook": "kltune.readers.notebook:NotebookReader",
    "tensorboard": "kltune.readers.tensorboard:TensorboardReader",
    "wandb": "kltune.readers.wandb_offline:WandbReader",
}

_BY_SUFFIX = {
    ".csv": "csv",
    ".db": "mlflow",
    ".ipynb": "notebook",
    ".jsonl": "jsonl",
    ".sqlite": "mlflow",
    ".wandb": "wandb",
}

_SNIFFED_BYTES = 1 << 16


def open_reader(source: str | Path, format: str | None = None) -> Reader:  # noqa: A002
    """Return the reader of a source; nothing has been read from it yet.

    Args:
        source: a file or directory, which may not exist yet; ``-`` for standard input; for
            MLflow also a store's URI (``sqlite:///…``), and ``#RUN_ID`` behind it where the
            store holds several runs.
        format: a key of ``FORMATS``; None to find it out from the source.

    Raises:
        MetricsError: no such format, no format that fits, or a library is missing.
    """
    name, path = (format, str(source)) if format else find_format(source)
    if name not in FORMATS:
        raise MetricsError(f"{source}: unknown format {name!r}; one of {', '.join(FORMATS)}")
    module, _, cls = FORMATS[name].partition(":")
    return cast(Callable[[str], Reader], getattr(import_module(module), cls))(path)


def find_format(source: str | Path) -> tuple[str, str]:
    """Return the format of a source, and what to open.

    A file is known by its content, or by its name while it holds nothing.

    Raises:
        MetricsError: a directory in which no format is recognised, or a file that cannot be read.
    """
    text = str(source)
    if text == "-":
        return "console", text
    if text.startswith(("sqlite:", "http:", "https:")):
        return "mlflow", text
    base, mark, run = text.partition("#")
    if mark and not Path(text).exists():
        name, found = find_format(base)
        return name, f"{found}#{run}"
    path = Path(text)
    if path.is_dir():
        name, inside = find_in_directory(path)
        return name, str(inside)
    try:
        with path.open("rb") as file:
            head = file.read(_SNIFFED_BYTES)
    except FileNotFoundError:
        head = b""
    except OSError as error:
        raise MetricsError(f"{path}: cannot be read: {error.strerror}") from error
    return _by_content(head) or _by_name(path), text


def _by_content(head: bytes) -> str | None:
    if head.startswith(b"SQLite format 3\0"):
        return "mlflow"
    if head.startswith(HEADER):
        return "wandb"
    if b"brain.Event:" in head[:64]:
        return "tensorboard"
    first = next((line for line in head.splitlines() if line.strip()), b"")
    if first.lstrip().startswith(b"{"):
        if parse_record(first) is not None:
            return "jsonl"
        return "notebook" if b'"cells"' in head or b'"nbformat"' in head else None
    try:
        header = next(csv.reader([first.decode("utf-8-sig", "replace")]), [])
    except csv.Error:
        return None
    return "csv" if len(header) > 1 and step_column(header) is not None else None


def _by_name(path: Path) -> str:
    if "tfevents" in path.name:
        return "tensorboard"
    return _BY_SUFFIX.get(path.suffix.lower(), "console")
