"""What directories and tables of metrics look like, so that their format can be told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kltune.errors import MetricsError

_STEP_COLUMNS = ("step", "_step", "global_step", "training/global_step", "trainer/global_step")


def step_column(header: Sequence[str]) -> int | None:
    """Return the index of the column of a table that holds the step, or None."""
    names = [name.strip().lower() for name in header]
    return next((names.index(name) for name in _STEP_COLUMNS if name in names), None)


def find_in_directory(path: Path) -> tuple[str, Path]:
    """Return the format of a directory, and the path to read.

    Raises:
        MetricsError: nothing in it is recognised.
    """
    if any(path.rglob("*tfevents*")):
        return "tensorboard", path
    if _wandb_files(path):
        return "wandb", path
    # wandb's own copy of the console, for a run that was synchronised and whose file was removed
    log = path / "files" / "output.log"
    if log.is_file():
        return "console", log
    for store in ("mlflow.db", "mlruns.db"):
        if (path / store).is_file():
            return "mlflow", path / store
    if (path / "mlruns").is_dir():
        return "mlflow", path / "mlruns"
    if any(path.glob("*/meta.yaml")):
        return "mlflow", path
    raise MetricsError(
        f"{path}: no metrics recognised in this directory; expected TensorBoard event files, an "
        "offline run of wandb, or an MLflow store. Name the log file itself, or the format"
    )


def wandb_file(path: Path) -> Path:
    """Return the ``.wandb`` file of a run: the path itself, or the one in a directory.

    Raises:
        MetricsError: the directory holds none, or several.
    """
    if not path.is_dir():
        return path
    found = _wandb_files(path)
    if len(found) != 1:
        names = ": " + ", ".join(str(file) for file in found[:8]) if found else ""
        raise MetricsError(f"{path}: holds {len(found)} runs of wandb, name one{names}")
    return found[0]


def _wandb_files(path: Path) -> list[Path]:
    # ``latest-run`` is a link to one of the others.
    return sorted({file.resolve() for file in path.rglob("*.wandb")})
