"""The directory that holds everything a calibration does, and the only place that joins paths.

    kltune-runs/
      workspace.json              what the workspace was made with
      lock                        held while a kltune works here
      study.db                    Optuna's study
      decisions.jsonl             the decision journal
      calibration.json            the result
      data.json                   fingerprint of the training data
      history.json                earlier calibrations, after `kltune run --since last`
      validation.json             base, reference and calibrated settings compared
      report.html                 what `kltune report` has written
      baseline/<trial>/           one directory a stage and trial; also scale-N/, train/, ...
        trial.json                what is run
        outcome.json              what it came to, once it has ended
        attempt-1/                one directory a verl process; nothing in it is shared
          command.sh  console.log  metrics.jsonl  result.json  checkpoints/  hydra/  traces/

Every file is written aside and moved into place, so that a reader (or the next kltune after a
SIGKILL) finds the old or the new content, never half of one.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kltune.errors import LaunchError


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Put ``text`` into ``path`` atomically and durably.

    Raises:
        LaunchError: the disk is full, read-only or not ours to write on.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.chmod(mode)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True) if part.parent.is_dir() else None
        raise cannot_write(path, error) from error


def write_json(path: Path, value: Any) -> None:
    """Put ``value`` into ``path`` as JSON, atomically; see ``write_text``."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the content of ``path``, or None where there is no such file.

    Raises:
        LaunchError: the file holds no JSON, which our own writing never leaves behind.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise LaunchError(
            f"{path}: cannot be read ({error}); remove the file, or start over with --fresh"
        ) from error


def cannot_write(path: Path, error: OSError) -> LaunchError:
    """Return the error to raise when ``path`` could not be written."""
    why = error.strerror or str(error)
    return LaunchError(
        f"{path}: cannot be written ({why}); free some space, or name another --workspace"
    )


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """Every path of one attempt."""

    path: Path

    @property
    def plan(self) -> Path:
        """What is launched, and the job's handle; written before the job exists."""
        return self.path / "attempt.json"

    @property
    def command(self) -> Path:
        """The exact command as a script that can be run by hand."""
        return self.path / "command.sh"

    @property
    def console(self) -> Path:
        """Standard output and error of the job."""
        return self.path / "console.log"

    @property
    def metrics(self) -> Path:
        """verl's own metrics file."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """verl's ``default_local_dir``."""
        return self.path / "checkpoints"

    @property
    def hydra(self) -> Path:
        """Hydra's own output directory."""
        return self.path / "hydra"

    @property
    def validation(self) -> Path:
        """verl's ``validation_data_dir``: every answer of every validation."""
        return self.path / "validation"

    @property
    def traces(self) -> Path:
        """Where verl's profiler writes."""
        return self.path / "traces"

    @property
    def rewards(self) -> Path:
        """What each reward source gave, by step; numbers only."""
        return self.path / "rewards"

    @property
    def result(self) -> Path:
        """How the attempt ended."""
        return self.path / "result.json"


@dataclass(frozen=True, slots=True)
class TrialDir:
    """Every path of one trial."""

    path: Path

    @property
    def trial(self) -> Path:
        """What the trial runs."""
        return self.path / "trial.json"

    @property
    def outcome(self) -> Path:
        """What it came to; there once it has ended."""
        return self.path / "outcome.json"

    def attempt(self, number: int) -> AttemptDir:
        """Return the directory of attempt ``number``, counted from 1."""
        return AttemptDir(self.path / f"attempt-{number}")

    def attempts(self) -> list[AttemptDir]:
        """Return the attempts that were planned so far, in order."""
        found: list[AttemptDir] = []
        while (attempt := self.attempt(len(found) + 1)).plan.exists():
            found.append(attempt)
        return found


@dataclass(frozen=True, slots=True)
class Workspace:
    """Every path of a workspace, its lock and its journal."""

    path: Path

    @property
    def identity(self) -> Path:
        """What the workspace was made with."""
        return self.path / "workspace.json"

    @property
    def journal(self) -> Path:
        """The decision journal."""
        return self.path / "decisions.jsonl"

    @property
    def calibration(self) -> Path:
        """The result."""
        return self.path / "calibration.json"

    @property
    def data(self) -> Path:
        """Fingerprint of the training data that the calibration was made on."""
        return self.path / "data.json"

    @property
    def history(self) -> Path:
        """Earlier calibrations, of which this one is a continuation."""
        return self.path / "history.json"

    @property
    def validation(self) -> Path:
        """What ``kltune validate`` found."""
        return self.path / "validation.json"

    def test_set(self, name: str) -> Path:
        """Return where a test set that was fetched by name is kept."""
        return self.path / "data" / f"{name}.parquet"

    @property
    def study_url(self) -> str:
        """Storage URL of the study unless the settings name another."""
        path = str((self.path / "study.db").resolve())
        # What a URL keeps for itself ("?"), and Optuna's templates too ("{"), goes in escaped.
        escaped = quote(path)
        return f"sqlite:///{path}" if escaped == path else f"sqlite:///file:{escaped}?uri=true"

    @property
    def calibrated(self) -> Path:
        """Directory of the exported configuration."""
        return self.path / "calibrated"

    def stages(self) -> list[str]:
        """Return the names of the stages that were begun."""
        return sorted({p.parent.parent.name for p in self.path.glob("*/*/trial.json")})

    def stage(self, name: str) -> Path:
        """Return the directory of a stage."""
        return self.path / name

    def stage_result(self, name: str) -> Path:
        """Return where a stage of many keeps what it found."""
        return self.stage(name) / "result.json"

    def trial(self, stage: str, name: str) -> TrialDir:
        """Return the directory of a trial."""
        return TrialDir(self.stage(stage) / name)

    def trials(self, stage: str) -> list[TrialDir]:
        """Return the trials of a stage, in the order in which they were started."""
        found = [TrialDir(p.parent) for p in self.stage(stage).glob("*/trial.json")]
        return sorted(found, key=lambda t: (read_json(t.trial)["started"], t.path.name))

    def set_stage_aside(self, name: str) -> None:
        """Take a whole stage out; it is kept under ``set-aside`` for whoever asks."""
        stage, shelf = self.stage(name), self.path / "set-aside"
        if not stage.exists():
            return
        number = len(list(shelf.glob(f"{name}-*"))) + 1
        try:
            shelf.mkdir(exist_ok=True)
            stage.rename(shelf / f"{name}-{number}")
        except OSError as error:
            raise cannot_write(shelf, error) from error
        self.decide("stage-set-aside", stage=name)

    def set_aside(self, directory: TrialDir) -> None:
        """Take a trial out of its stage; it is kept under ``set-aside`` for whoever asks."""
        shelf = directory.path.parent / "set-aside"
        number = len(list(shelf.glob("*"))) + 1
        try:
            shelf.mkdir(exist_ok=True)
            directory.path.rename(shelf / f"{directory.path.name}-{number}")
        except OSError as error:
            raise cannot_write(shelf, error) from error
        stage, trial = directory.path.parent.name, directory.path.name
        self.decide("trial-set-aside", stage=stage, trial=trial)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the workspace, so that two kltune never work in the same one.

        The lock is the kernel's and is gone with the process, however it ends.

        Raises:
            LaunchError: another kltune holds it, or the directory cannot be written.
        """
        path = self.path / "lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            stream = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise cannot_write(path, error) from error
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.seek(0)
                holder = stream.read().strip() or "unknown"
                raise LaunchError(
                    f"{self.path}: another kltune (process {holder}) is working here; wait for "
                    "it, or name another --workspace"
                ) from None
            stream.truncate(0)
            stream.write(str(os.getpid()))
            stream.flush()
            yield

    def decide(self, what: str, **details: Any) -> None:
        """Append one line to the decision journal.

        Args:
            what: kind of decision, e.g. ``trial-started``.
            details: its evidence; values that JSON can hold.
        """
        entry = {"time": time.time(), "what": what, **details}
        line = json.dumps(entry, ensure_ascii=False) + "\n"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # One write of one line in append mode: a kill leaves a whole line or none.
            with self.journal.open("ab", buffering=0) as stream:
                stream.write(line.encode())
        except OSError as error:
            raise cannot_write(self.journal, error) from error

    def decide_once(self, what: str, *, stage: str, trial: str, **details: Any) -> None:
        """Append a decision about a trial, unless the journal holds it already.

        A kltune that takes a trial up decides again what a killed one may have decided, and may
        not have written down. What a trial of the same name did before it, or its stage, was set
        aside does not count.
        """
        entry = {"what": what, "stage": stage, "trial": trial, **details}
        told: set[str] = set()
        for earlier in self.decisions():
            if earlier.get("stage") == stage and earlier.get("trial", trial) == trial:
                if earlier["what"] in ("trial-set-aside", "stage-set-aside"):
                    told.clear()
                told.add(_same(earlier))
        if _same(entry) not in told:
            self.decide(**entry)

    def decisions(self) -> list[Mapping[str, Any]]:
        """Return the journal, oldest first; a line that is not whole is left out."""
        try:
            lines = self.journal.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found


def _same(entry: Mapping[str, Any]) -> str:
    """Return what makes two journal entries the same decision: all but their times."""
    return json.dumps({k: v for k, v in entry.items() if k != "time"}, sort_keys=True)
