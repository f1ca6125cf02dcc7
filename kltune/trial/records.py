"""What a trial leaves in its directories, as JSON, and how it is read again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from kltune.domain.attempts import Attempt, Change
from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Outcome
from kltune.domain.trials import Role, Trial
from kltune.errors import LaunchError
from kltune.workspace import TrialDir, read_json, write_json

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """``trial.json``: what a trial runs.

    Attributes:
        started: seconds since 1970.
        slot: which of the places for trials side by side it has.
    """

    name: str
    role: Role
    settings: KlSettings
    seed: int
    steps: int
    started: float
    slot: int = 0


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """``attempt.json``: what an attempt runs, written before its job exists."""

    number: int
    handle: str
    change: Change
    resume_from: str | None
    reason: str
    planned: float


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """``result.json``: how an attempt ended, its wall time in seconds, and the step times."""

    attempt: Attempt
    seconds: float
    exit_code: int | None
    last_words: tuple[str, ...] = ()


def save(path: Path, value: Any) -> None:
    """Write a dataclass to ``path`` as JSON, atomically."""
    write_json(path, as_json(value))


def as_json(value: Any) -> Any:
    """Return a dataclass as what JSON can hold; NaN and infinity are kept."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json")


@cache  # it takes as long to make as a hundred records to read
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read(path: Path, kind: type[T]) -> T | None:
    """Return the dataclass in ``path``, or None where there is no such file.

    Raises:
        LaunchError: the file was written by another version of kltune, or by hand.
    """
    content = read_json(path)
    return None if content is None else parse(content, kind, path)


def parse(content: Any, kind: type[T], path: Path) -> T:
    """Return the dataclass that ``content`` of the file ``path`` holds.

    Raises:
        LaunchError: it was written by another version of kltune, or by hand.
    """
    whole: Any = kind
    try:
        found: T = _adapter(whole).validate_python(content, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        raise LaunchError(
            f"{path}: not what this version of kltune writes ({first['msg']} at "
            f"{'.'.join(map(str, first['loc']))}); start over with --fresh"
        ) from None
    return found


def read_trial(directory: TrialDir) -> Trial:
    """Return the trial of a directory, with its outcome if it has ended."""
    record = read(directory.trial, TrialRecord)
    if record is None:
        raise LaunchError(f"{directory.trial}: is missing; start over with --fresh")
    outcome = read(directory.outcome, Outcome)
    return Trial(record.name, record.role, record.settings, record.seed, outcome)


def free_slot(directories: Iterable[TrialDir]) -> int:
    """Return the lowest place for a trial that no unfinished one of these has."""
    taken = {
        record.slot
        for directory in directories
        if (record := read(directory.trial, TrialRecord)) is not None
        and not directory.outcome.exists()
    }
    return next(slot for slot in count() if slot not in taken)
