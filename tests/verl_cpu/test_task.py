"""Problems are right, the tokenizer loses nothing, making them twice gives the same files."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from kltune.verl_cpu import task

PRESET = Path(__file__).parents[2] / "presets" / "cpu-tiny"


def files(directory):
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def drawn():
    return task.problems(500, random.Random(1))


def test_a_right_solution_gets_verls_full_score_and_a_wrong_one_none(drawn):
    gsm8k = pytest.importorskip("verl.utils.reward_score.gsm8k")
    for item in drawn:
        answer = str(item.result)
        assert gsm8k.compute_score(item.solution(adds=item.gains), answer) == 1
        assert gsm8k.compute_score(item.solution(adds=not item.gains), answer) == 0


def test_the_tokenizer_gives_the_text_back_and_knows_every_piece(drawn):
    pytest.importorskip("transformers")
    tokens = task.tokenizer()
    for item in drawn:
        for text in (item.question, item.solution(adds=True), item.solution(adds=False)):
            ids = tokens(text).input_ids
            assert tokens.unk_token_id not in ids
            assert tokens.decode(ids, skip_special_tokens=True) == text
    longest = max(len(tokens(item.question).input_ids) for item in drawn)
    assert longest + 2 <= 24  # the preset's data.max_prompt_length


def test_digits_are_single_tokens():
    pytest.importorskip("transformers")
    tokens = task.tokenizer()
    assert tokens.tokenize("28-9=19\n#### 19") == [*"28-9=19", "\n#### ", "1", "9"]


def test_problems_differ_and_keep_out_of_what_is_excluded():
    test = task.problems(256, random.Random(1))
    train = task.problems(2048, random.Random(2), exclude=test)
    assert len(set(test)) == 256
    assert len(set(train)) == 2048
    assert not set(test) & set(train)


def test_making_it_twice_gives_the_same_files(tmp_path):
    pytest.importorskip("transformers")
    task.make(tmp_path / "a", steps=3)
    task.make(tmp_path / "b", steps=3)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_the_shipped_problems_are_those_that_the_script_makes(tmp_path):
    pytest.importorskip("transformers")
    task.make(tmp_path, steps=1)
    made, shipped = files(tmp_path), files(PRESET)
    del made["model/model.safetensors"]  # one step of the warm-up is not the whole
    assert {name: shipped[name] for name in made} == made


def test_the_shipped_files_are_those_that_the_readme_lists():
    listed = dict(
        reversed(line.split())
        for line in (PRESET / "README.md").read_text().splitlines()
        if len(line.split()) == 2 and len(line.split()[0]) == 64
    )
    shipped = files(PRESET)
    del shipped["README.md"]
    assert shipped == listed
    assert sum(path.stat().st_size for path in PRESET.rglob("*")) < 2 * 2**20
