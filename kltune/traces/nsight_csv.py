"""Tables of ``nsys stats --format csv``: kernels one by one, or summed up by name."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from kltune.domain.communication import RankShare, RankTrace, family
from kltune.errors import MetricsError

_NANOSECOND = 1e-9
_START, _DURATION, _TOTAL = "Start (ns)", "Duration (ns)", "Total Time (ns)"


def read_nsight_csv(path: Path) -> list[RankShare]:
    """Return the communication in a report of ``nsys stats``.

    ``cuda_gpu_trace`` has every kernel with its GPU. ``cuda_gpu_kern_sum`` has sums of all GPUs
    only: the share is one of the kernels' time then, and overlap cannot be told.

    Raises:
        MetricsError: neither of the two, or a number that is none.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = _table(stream)
            first = next(rows, None)
            if first is None:
                raise MetricsError(
                    f"{path}: no trace that is known; it may be a torch profiler trace, an SQLite "
                    "export of Nsight, or nsys stats --report cuda_gpu_trace --format csv"
                )
            if _TOTAL in first:
                return [_summed(path.name, [first, *rows])]
            return _timed([first, *rows])
    except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
        raise MetricsError(f"{path}: cannot be read ({error})") from None


def _table(lines: Iterator[str]) -> Iterator[Mapping[str, str]]:
    """Yield the rows of the first table; nsys may print notices before it."""
    for line in lines:
        names = next(csv.reader([line]), [])
        if "Name" in names and (_TOTAL in names or {_START, _DURATION} <= set(names)):
            for row in csv.DictReader(lines, names):
                if not row.get("Name"):
                    return  # a blank line ends the table
                yield row
            return


def _summed(name: str, rows: list[Mapping[str, str]]) -> RankShare:
    families: defaultdict[str, float] = defaultdict(float)
    total = 0.0
    for row in rows:
        seconds = float(row[_TOTAL]) * _NANOSECOND
        total += seconds
        if (collective := family(row["Name"])) is not None:
            families[collective] += seconds
    return RankShare(name, total, sum(families.values()), None, dict(sorted(families.items())))


def _timed(rows: list[Mapping[str, str]]) -> list[RankShare]:
    ranks: dict[str, RankTrace] = {}
    for row in rows:
        start = float(row[_START])
        rank = ranks.setdefault(row.get("Device", ""), RankTrace(row.get("Device") or "0"))
        end = start + float(row[_DURATION])
        rank.add(row["Name"], start * _NANOSECOND, end * _NANOSECOND)
    return [rank.share() for _, rank in sorted(ranks.items())]
