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


def run_directory_format(path: Path) -> str:
    """Return the format of a directory.

    Raises:
        MetricsError: nothing in it is recognised.
    """
    if any(path.rglob("*tfevents*")):
        return "tensorboard"
    if any(path.glob("*.wandb")) or any(path.glob("run-*/*.wandb")) or wandb_console(path):
        return "wandb"
    if any(path.rglob("meta.yaml")) or (path / "mlruns").is_dir():
        return "mlflow"
    raise MetricsError(
        f"{path}: no metrics recognised in this directory; expected TensorBoard event files, an "
        "offline run of wandb, or an MLflow file store. Name the log file itself, or the format"
    )


def wandb_console(path: Path) -> Path | None:
    """Return the console log that wandb keeps in a run's directory, if it is there."""
    log = path / "files" / "output.log"
    return log if log.is_file() else None
