import json

import pytest

from kltune.errors import MetricsError
from kltune.validation import Tally, tally
from kltune.verl.datasets import Problem, read_problems
from kltune.verl.dumps import dumped_steps, read_dump

from ..drift.data import row, write


def dump(path, *records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def line(text, score, **more):
    return {"input": f"user\n{text}\nassistant\n", "output": "...", "score": score, **more}


PROBLEMS = [Problem("0", "What is 1 + 1?", "2"), Problem("1", "What is 1 + 2?", "3")]


def test_dumps_are_found_by_step_in_their_order(tmp_path):
    for name in ("10.jsonl", "0.jsonl", "5.jsonl", "notes.jsonl"):
        dump(tmp_path / name)
    assert list(dumped_steps(tmp_path)) == [0, 5, 10]


def test_answers_belong_to_the_problem_in_their_prompt(tmp_path):
    path = dump(
        tmp_path / "5.jsonl",
        line("What is 1 + 2?", 1.0, gts="3"),
        line("What is 1 + 1?", 0.0, gts="2"),
        line("What is 1 + 1?", 1.0, gts="2"),
    )
    found = tally(read_dump(path), {"sums": PROBLEMS})["sums"]
    assert found.tallies == {"0": Tally(1, 2), "1": Tally(1, 1)}
    assert found.samples == 1


def test_before_verl_0_6_a_dump_names_no_expected_answer(tmp_path):
    path = dump(tmp_path / "5.jsonl", *(line(p.text, 1.0) for p in PROBLEMS))
    assert tally(read_dump(path), {"sums": PROBLEMS})["sums"].pass_at(1) == 1


def test_the_scorer_of_aime_tells_acc_and_a_score_of_minus_one(tmp_path):
    path = dump(
        tmp_path / "5.jsonl",
        line("What is 1 + 1?", -1.0, acc=False, gts="2"),
        line("What is 1 + 2?", 1.0, acc=True, gts="3"),
    )
    assert [answer.right for answer in read_dump(path)] == [False, True]


def test_a_rollout_that_failed_is_a_wrong_answer(tmp_path):
    path = dump(tmp_path / "5.jsonl", line("a", None, acc=None), line("b", 1.0, acc=1.0))
    assert [answer.right for answer in read_dump(path)] == [False, True]


def test_a_score_between_right_and_wrong_is_refused(tmp_path):
    path = dump(tmp_path / "5.jsonl", line("a", 0.7))
    with pytest.raises(MetricsError, match=r"score 0\.7 does not tell right from wrong"):
        read_dump(path)


def test_a_file_that_is_no_dump_is_refused(tmp_path):
    (tmp_path / "5.jsonl").write_text("{")
    with pytest.raises(MetricsError, match="cannot be read as a validation of verl"):
        read_dump(tmp_path / "5.jsonl")


def test_the_longer_of_two_texts_is_meant(tmp_path):
    problems = [Problem("0", "Add 1 and 1", "2"), Problem("1", "Add 1 and 1 and 0", "2")]
    path = dump(
        tmp_path / "5.jsonl", *(line(p.text, float(p.name), gts=p.truth) for p in problems)
    )
    found = tally(read_dump(path), {"sums": problems})["sums"]
    assert [t.right for t in found.tallies.values()] == [0, 1]


def test_several_test_sets_are_kept_apart(tmp_path):
    path = dump(tmp_path / "5.jsonl", *(line(p.text, 1.0, gts=p.truth) for p in PROBLEMS))
    found = tally(read_dump(path), {"first": PROBLEMS[:1], "second": PROBLEMS[1:]})
    assert {task: list(r.tallies) for task, r in found.items()} == {
        "first": ["0"],
        "second": ["1"],
    }


def test_what_does_not_fit_together_is_said(tmp_path):
    path = dump(tmp_path / "5.jsonl", line("What is 1 + 1?", 1.0, gts="2"))
    with pytest.raises(MetricsError, match="1 of 2 problems of sums have no answer"):
        tally(read_dump(path), {"sums": PROBLEMS})
    with pytest.raises(MetricsError, match=r"belongs to no problem of sums; is data\.max_prompt"):
        tally(read_dump(path), {"sums": PROBLEMS[1:]})


def test_problems_are_read_from_verls_schema(tmp_path):
    path = write(tmp_path / "test.parquet", [row(4), row(9, question=" Nine? ")])
    assert read_problems(path) == [
        Problem("0", "How much is 4 plus one?", "5"),
        Problem("1", "Nine?", "10"),
    ]
