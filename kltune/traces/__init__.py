"""Profiler traces: what ran when, on which rank. Formats are told apart by content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kltune.domain.communication import RankShare
from kltune.errors import MetricsError
from kltune.traces.nsight_csv import read_nsight_csv
from kltune.traces.nsight_report import ENDING, read_nsight_report
from kltune.traces.nsight_sqlite import read_nsight_sqlite
from kltune.traces.torch_profiler import read_torch_profiler

_SQLITE, _GZIP = b"SQLite format 3\x00", b"\x1f\x8b"


def read_shares(paths: Sequence[Path]) -> list[RankShare]:
    """Return the communication of every rank in the traces.

    Args:
        paths: traces, or directories that hold them.

    Raises:
        MetricsError: a file is no trace that can be read, or holds no work.
    """
    shares = [share for path in _files(paths) for share in _reader(path)(path)]
    if not shares:
        raise MetricsError("no trace was found: name a torch profiler or Nsight Systems export")
    return shares


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(
            p
            for p in path.rglob("*")
            if p.name.endswith(_ENDINGS)
            # A report that was exported beside itself counts once.
            and not (p.suffix == ENDING and p.with_suffix(".sqlite").exists())
        )
        if not inside:
            raise MetricsError(f"{path}: holds no {', '.join(_ENDINGS)}")
        found.extend(inside)
    return found


_ENDINGS = (".json", ".json.gz", ".sqlite", ".csv", ENDING)


def _reader(path: Path) -> Callable[[Path], list[RankShare]]:
    try:
        with path.open("rb") as stream:
            head = stream.read(16)
    except OSError as error:
        why = error.strerror or str(error)
        raise MetricsError(f"{path}: cannot be read ({why})") from None
    if head == _SQLITE:
        return read_nsight_sqlite
    if head.startswith(_GZIP) or head.lstrip()[:1] in (b"{", b"["):
        return read_torch_profiler
    if path.suffix == ENDING:
        return read_nsight_report
    return read_nsight_csv
