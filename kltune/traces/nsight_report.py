"""Nsight Systems' own reports (``.nsys-rep``), which only its command ``nsys`` can open."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from kltune.domain.communication import RankShare
from kltune.errors import MetricsError
from kltune.traces.nsight_sqlite import read_nsight_sqlite

ENDING = ".nsys-rep"


def read_nsight_report(path: Path) -> list[RankShare]:
    """Return the communication in a report, which ``nsys`` exports to SQLite for it.

    Raises:
        MetricsError: there is no ``nsys`` here, it cannot read the report, or the report holds no
            GPU kernels.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise MetricsError(
            f"{path}: is Nsight's own format; export it where nsys is installed: "
            f"nsys export --type sqlite {path.name}"
        )
    with tempfile.TemporaryDirectory(prefix="kltune-") as scratch:
        exported = Path(scratch) / f"{path.stem}.sqlite"
        words = [nsys, "export", "--type", "sqlite", "--output", str(exported), str(path)]
        done = subprocess.run(words, capture_output=True, text=True)  # noqa: S603 - no shell text
        if done.returncode != 0 or not exported.exists():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise MetricsError(f"{path}: nsys cannot export it ({said[-1] if said else 'silent'})")
        return read_nsight_sqlite(exported)
