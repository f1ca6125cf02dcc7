import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet
import pytest

from kltune.cli.app import main
from kltune.verl.datasets import read_problems
from kltune.verl.test_sets import TEST_SETS

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k" / "test.parquet"

ON_THE_HUB = {
    ("openai/gsm8k", "main", "test"): [
        {"question": "Two and 1,000?", "answer": "2+1000=<<2+1000=1002>>1,002\n#### 1,002"}
    ],
    ("HuggingFaceH4/aime_2024", "default", "train"): [{"problem": "Find $x$.", "answer": "073"}],
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that has some of the data sets, and no network for the others."""

    def load_dataset(repository, config, split):
        try:
            return ON_THE_HUB[repository, config, split]
        except KeyError:
            raise ConnectionError("Name or service not known\nmore of it") from None

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.chdir(tmp_path)


def rows(path):
    return pyarrow.parquet.read_table(path).to_pylist()


def test_gsm8k_is_prepared_for_verls_scorer(hub, capsys):
    assert main(["data", "gsm8k"]) == 0
    assert capsys.readouterr().out == "gsm8k-test.parquet: 1 rows\n"
    (row,) = rows("gsm8k-test.parquet")
    assert row["data_source"] == "openai/gsm8k"
    assert row["reward_model"] == {"style": "rule", "ground_truth": "1002"}
    assert row["prompt"][0]["content"] == (
        'Two and 1,000? Let\'s think step by step and output the final answer after "####".'
    )
    assert read_problems(Path("gsm8k-test.parquet"))[0].truth == "1002"


def test_aime_asks_for_the_form_that_its_scorer_looks_for(hub):
    assert main(["data", "aime24", "-o", "deep/er/aime.parquet", "--quiet"]) == 0
    (row,) = rows("deep/er/aime.parquet")
    assert row["data_source"].startswith("aime")
    assert row["reward_model"]["ground_truth"] == "73"
    assert (
        'Remember to put your answer on its own line after "Answer:".'
        in (row["prompt"][0]["content"])
    )


def test_what_cannot_be_had_is_said_with_a_way_out(hub, capsys):
    assert main(["data", "aime25"]) == 4
    err = capsys.readouterr().err
    assert "yentinglin/aime_2025 is neither in the cache" in err
    assert "(Name or service not known)" in err
    assert "give a parquet file in verl's schema" in err
    assert main(["data", "math"]) == 3
    assert "there are gsm8k, aime24, aime25" in capsys.readouterr().err
    assert main(["data", "gsm8k", "--split", "dev"]) == 3
    assert "gsm8k has train, test" in capsys.readouterr().err


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not here")
def test_every_row_of_gsm8k_is_prepared_as_verl_has_it():
    for number, row in enumerate(rows(GSM8K)):
        extra = row["extra_info"]
        made = TEST_SETS["gsm8k"].row(extra, number, "test")
        for key in ("data_source", "prompt", "ability", "reward_model"):
            assert json.dumps(made[key], sort_keys=True) == json.dumps(row[key], sort_keys=True)
