"""What verl writes of a validation: ``<validation_data_dir>/<step>.jsonl``, an answer a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kltune.errors import MetricsError


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a validation.

    Attributes:
        prompt: the prompt as the model saw it, without special tokens.
        text: the answer.
        right: verl's own scorer found it right.
        truth: the expected answer; None before verl 0.6.
    """

    prompt: str
    text: str
    right: bool
    truth: str | None


def dumped_steps(directory: Path) -> dict[int, Path]:
    """Return the dumps of a directory by training step; step 0 is the model before training."""
    found = {int(p.stem): p for p in directory.glob("*.jsonl") if p.stem.isdigit()}
    return dict(sorted(found.items()))


def read_dump(path: Path) -> list[Answer]:
    """Return the answers of a dump.

    An answer is right by ``acc`` where the scorer tells it (AIME's scores are -1 and 1), else by
    its score, which must then be 0 or 1, or -1 or 1.

    Raises:
        MetricsError: the file cannot be read, or its scores do not tell right from wrong.
    """
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise MetricsError(f"{path}: cannot be read as a validation of verl ({error})") from None
    marks = list(_marks(path, records))
    return [
        Answer(
            prompt=str(record.get("input", "")),
            text=str(record.get("output", "")),
            right=mark,
            truth=None if record.get("gts") is None else str(record["gts"]),
        )
        for record, mark in zip(records, marks, strict=True)
    ]


def _marks(path: Path, records: Sequence[dict[str, object]]) -> Iterator[bool]:
    name = "acc" if any(r.get("acc") is not None for r in records) else "score"
    # A rollout that failed has no score; it is a wrong answer.
    values = [record.get(name) for record in records]
    numbers = [float(v) if isinstance(v, (bool, int, float)) else 0.0 for v in values]
    if not set(numbers) <= {-1.0, 0.0, 1.0}:
        other = next(v for v in numbers if v not in (-1.0, 0.0, 1.0))
        raise MetricsError(
            f"{path}: {name} {other:g} does not tell right from wrong; let the reward function "
            "return a dictionary with acc 0 or 1 (see rewards in docs/validation.md)"
        )
    return (number > 0 for number in numbers)
