"""Nsight Systems' SQLite export (``nsys export --type sqlite``).

Schema: docs.nvidia.com/nsight-systems, "SQLite Schema Reference": times in nanoseconds, names as
ids into ``StringIds``, ``globalPid`` with the process in bits 24 to 47.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from kltune.domain.communication import RankShare, RankTrace
from kltune.errors import MetricsError

_NANOSECOND = 1e-9

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def read_nsight_sqlite(path: Path) -> list[RankShare]:
    """Return the communication of every GPU of every process in the export.

    Raises:
        MetricsError: the database is broken, or holds no GPU kernels.
    """
    ranks: dict[tuple[int, int], RankTrace] = {}
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            for process, device, name, start, end in _rows(database, path):
                rank = ranks.get((process, device))
                if rank is None:
                    pid = process >> 24 & 0xFFFFFF
                    rank = RankTrace(f"GPU {device}" + (f" of process {pid}" if pid else ""))
                    ranks[process, device] = rank
                rank.add(name, start * _NANOSECOND, end * _NANOSECOND)
    except sqlite3.Error as error:
        raise MetricsError(f"{path}: cannot be read as an export of Nsight ({error})") from None
    return [ranks[key].share() for key in sorted(ranks)]


def _rows(
    database: sqlite3.Connection, path: Path
) -> Iterator[tuple[int, int, str, float, float]]:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if _KERNELS not in tables:
        raise MetricsError(
            f"{path}: holds no GPU kernels ({_KERNELS}); record with nsys profile --trace=cuda"
        )
    process = "globalPid" if "globalPid" in _columns(database, _KERNELS) else "0"
    yield from database.execute(
        f"SELECT {process}, deviceId, value, start, end FROM {_KERNELS} "  # noqa: S608 - constants
        "LEFT JOIN StringIds ON StringIds.id = shortName"
    )
    for table in _COPIES:
        if table in tables:
            process = "globalPid" if "globalPid" in _columns(database, table) else "0"
            yield from database.execute(
                f"SELECT {process}, deviceId, 'copy', start, end FROM {table}"  # noqa: S608
            )


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
