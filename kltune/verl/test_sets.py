"""Test sets by name, in verl's schema, for verl's own scorers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kltune.errors import LaunchError, SettingsError


@dataclass(frozen=True, slots=True)
class TestSet:
    """Where a data set comes from, and how verl wants to see it.

    Attributes:
        repository, config: on the hub, for ``datasets.load_dataset``.
        splits: what it is divided into; the last one is for tests.
        data_source: by which verl chooses its scorer.
        question, truth: of a row.
        instruction: what the prompt asks for; the scorer looks for it in the answer.
    """

    __test__ = False  # pytest would take the name for a test

    repository: str
    config: str
    splits: tuple[str, ...]
    data_source: str
    question: Callable[[Mapping[str, Any]], str]
    truth: Callable[[Mapping[str, Any]], str]
    instruction: str

    def row(self, found: Mapping[str, Any], number: int, split: str) -> dict[str, Any]:
        """Return a row in verl's schema."""
        question = self.question(found).strip()
        return {
            "data_source": self.data_source,
            "prompt": [{"role": "user", "content": self.instruction.format(question)}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": self.truth(found)},
            "extra_info": {"split": split, "index": number, "question": question},
        }


def _gsm8k_truth(row: Mapping[str, Any]) -> str:
    match = re.search(r"#### (-?[0-9.,]+)", row["answer"])
    if match is None:
        raise SettingsError(f"gsm8k: an answer without its result after ####: {row['answer']!r}")
    return match.group(1).replace(",", "")


_AIME = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{}"
    '\n\nRemember to put your answer on its own line after "Answer:".'
)

#: By name. Instructions are those that verl's examples and DAPO train and test with.
TEST_SETS: Mapping[str, TestSet] = {
    "gsm8k": TestSet(
        repository="openai/gsm8k",
        config="main",
        splits=("train", "test"),
        data_source="openai/gsm8k",
        question=lambda row: str(row["question"]),
        truth=_gsm8k_truth,
        instruction='{} Let\'s think step by step and output the final answer after "####".',
    ),
    "aime24": TestSet(
        repository="HuggingFaceH4/aime_2024",
        config="default",
        splits=("train",),
        data_source="aime24",
        question=lambda row: str(row["problem"]),
        truth=lambda row: str(int(row["answer"])),
        instruction=_AIME,
    ),
    "aime25": TestSet(
        repository="yentinglin/aime_2025",
        config="default",
        splits=("train",),
        data_source="aime25",
        question=lambda row: str(row["problem"]),
        truth=lambda row: str(int(row["answer"])),
        instruction=_AIME,
    ),
}


def prepare(name: str, path: Path, split: str | None = None) -> int:
    """Write a data set by name as parquet in verl's schema; return its rows.

    Taken from the cache of ``datasets`` where it is there, else from the hub.

    Raises:
        SettingsError: there is no such name or split.
        LaunchError: neither hub nor cache has it here, or ``path`` cannot be written.
    """
    if name not in TEST_SETS:
        raise SettingsError(
            f"{name}: no data set of this name; there are {', '.join(TEST_SETS)}, or give a "
            "parquet file in verl's schema"
        )
    known = TEST_SETS[name]
    split = split or known.splits[-1]
    if split not in known.splits:
        raise SettingsError(f"--split {split}: {name} has {', '.join(known.splits)}")
    try:
        import datasets
        import pyarrow.parquet
    except ImportError as error:
        raise LaunchError(f"{name}: {error.name} is missing: pip install 'kltune[data]'") from None
    try:
        found = datasets.load_dataset(known.repository, known.config, split=split)
    except Exception as error:  # datasets, its hub client and their transports raise many kinds
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise LaunchError(
            f"{name}: {known.repository} is neither in the cache of datasets nor to be had from "
            f"the hub here ({first}); fetch it where there is a network and copy the cache, set "
            "HF_ENDPOINT to a mirror, or give a parquet file in verl's schema"
        ) from None
    rows = [known.row(row, number, split) for number, row in enumerate(found)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), part)
        part.replace(path)
    except OSError as error:
        raise LaunchError(f"{path}: cannot be written ({error})") from None
    return len(rows)
