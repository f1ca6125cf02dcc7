"""Tables exported from dashboards, and notebooks."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kltune.errors import MetricsError
from kltune.readers import drain, open_reader
from kltune.readers.csv_export import parse_table
from kltune.readers.notebook import output_lines


def test_a_wandb_export_loses_its_run_names_and_extremes() -> None:
    text = '"Step","run - actor/ppo_kl","run - actor/ppo_kl__MIN","run - actor/ppo_kl__MAX"\n'
    assert parse_table(text + '"2","0.5","0.1","0.9"\n"1","NaN","",""\n')[1] == (
        2,
        {"actor/ppo_kl": 0.5},
    )


def test_a_row_per_number() -> None:
    text = "run_id,key,value,step,timestamp\nr,actor/ppo_kl,0.5,1,9\nr,critic/score/mean,1,1,9\n"
    assert parse_table(text) == [(1, {"actor/ppo_kl": 0.5, "critic/score/mean": 1.0})]


def test_empty_cells_are_missing_and_nan_is_not() -> None:
    ((_, first), (_, second)) = parse_table("_step,a/b,c/d\n1,,0.5\n2,nan,0.5\n")
    assert first == {"c/d": 0.5}
    assert math.isnan(second["a/b"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "no column step"),
        ("", "no column step"),
        ("Step,a - x/y,b - x/y\n1,2,3\n", "columns of 2 runs \\(a, b\\)"),
        ("Wall time,Step,Value\n9,1,0.5\n", "no column key, metric or tag"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_table(text)
    if text:
        path = tmp_path / "export.csv"
        path.write_text(text)
        with pytest.raises(MetricsError, match=words):
            open_reader(path, "csv").poll()


@given(st.text(), st.sampled_from(["", "step,a/b\n", "step,key,value\n"]))
def test_any_text_is_a_table_or_refused(text: str, header: str) -> None:
    try:
        table = parse_table(header + text)
    except ValueError:
        return
    assert [step for step, _ in table] == sorted({step for step, _ in table})


@given(st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["cells", "outputs", "text", "data", "text/plain"]), inner),
    max_leaves=15,
))  # fmt: skip
def test_any_json_is_a_notebook_or_refused(value: object) -> None:
    with contextlib.suppress(ValueError):
        assert all(isinstance(line, bytes) for line in output_lines(json.dumps(value)))


def test_a_notebook_that_was_run_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "run.ipynb"

    def save(*steps: int) -> None:
        text = "".join(f"step:{step} - a/b:nan\n" for step in steps)
        path.write_text(json.dumps({"cells": [{"outputs": [{"text": text}]}]}))

    reader = open_reader(path)
    save(1, 2)
    assert [s.step for s in drain(reader)] == [1, 2]
    save(1, 2, 3)
    assert [s.step for s in drain(reader)] == [3]
    save(1)
    assert [s.step for s in drain(reader)] == [1]
    path.write_text('{"cells": [')
    assert reader.poll() == []


def test_what_is_no_notebook_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.ipynb"
    path.write_text("{broken")
    with pytest.raises(MetricsError, match="is no notebook file"):
        open_reader(path, "notebook").poll()
