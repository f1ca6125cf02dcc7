"""What each reward source gave to the answers of a training step, from what was noted of them.

verl logs the sources of a validation and, of a training step, the score alone; its dump of the
rollouts (``trainer.rollout_data_dir``) holds the texts and, under the V1 trainer, no source (0.9.1
trainer/ppo/v1/trainer_base.py). So ``kltune.verl.rewards`` notes the values where they are made:
a line an answer, in a file by the version of the policy and the process.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from kltune.domain.steps import Step

#: Beside the notes: means by step, a line each. All that stays of an answer.
_MEANS = "means.jsonl"


class RewardNotes:
    """The notes of one attempt.

    Args:
        directory: where they are; it may not exist.
        rows: answers of a training step.
    """

    def __init__(self, directory: Path, rows: int):
        self._directory = directory
        self._rows = rows
        self._means = dict(_read_means(directory / _MEANS))

    def complete(self, step: Step) -> Step:
        """Return a step record with the mean of each source over the step's answers.

        Notes are replaced by their means once they are read, so that they take the room of one
        step.
        """
        means = self._means.get(step.step) or self._take(step.step)
        return replace(step, sources=means) if means else step

    def _take(self, step: int) -> Mapping[str, float]:
        # The policy of version N answers the validation after step N, and then step N + 1.
        files = sorted(self._directory.glob(f"{step - 1}-*.jsonl"))
        notes = sorted((note for path in files for note in _read_notes(path)), key=lambda n: n[0])
        values: defaultdict[str, list[float]] = defaultdict(list)
        for _, graded in notes[-self._rows :]:
            for name, value in graded.items():
                values[name].append(value)
        if not values:
            return {}
        means = {name: fmean(found) for name, found in values.items()}
        self._means[step] = means
        with (self._directory / _MEANS).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": step, "means": means}) + "\n")
        for path in files:
            path.unlink(missing_ok=True)
        return means


def with_sources(steps: list[Step], directory: Path) -> list[Step]:
    """Return step records with the means that were kept of them."""
    kept = dict(_read_means(directory / _MEANS))
    return [replace(s, sources=kept[s.step]) if s.step in kept else s for s in steps]


def _read_means(path: Path) -> Iterator[tuple[int, Mapping[str, float]]]:
    for record in _records(path):
        yield record["step"], record["means"]


def _read_notes(path: Path) -> Iterator[tuple[float, Mapping[str, float]]]:
    for record in _records(path):
        yield record["at"], record["graded"]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file; a line that a kill has cut is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue
