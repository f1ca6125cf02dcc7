import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from kltune.cli.app import main

TRACES = [str(Path(__file__).parents[1] / f"traces/gloo-rank{n}.json.gz") for n in (0, 1)]


@pytest.mark.skipif(find_spec("verl") is None, reason="composes with verl's own files")
def test_shares_and_the_advice_for_a_preset(capsys):
    assert main(["comm", *TRACES, "--preset", "cpu-tiny", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in found["ranks"]] == ["0", "1"]
    key = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    assert found["advice"]["overrides"] == {key: 16}


@pytest.mark.skipif(find_spec("verl") is None, reason="composes with verl's own files")
def test_the_advice_where_micro_batches_are_filled_up_to_a_number_of_tokens(capsys):
    files = ["--set", "data.train_files=/a.parquet", "--set", "data.val_files=/b.parquet"]
    assert main(["comm", *TRACES, "--preset", "dapo-7b-8gpu", *files, "--format", "json"]) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    # 2048 tokens of a prompt and 8192 of a response have to fit.
    assert advice["overrides"] == {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 10240}


def test_a_table_without_a_configuration(capsys):
    assert main(["comm", *TRACES]) == 0
    out = capsys.readouterr().out
    assert "all-gather" in out
    assert "name the run's configuration" in out


def test_a_file_that_is_no_trace(tmp_path, capsys):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert main(["comm", str(path)]) == 5
    assert "no trace that is known" in capsys.readouterr().err
