import json
from random import Random

import pyarrow
import pyarrow.parquet
import pytest

from kltune.drift import compare, compare_files, compare_remembered, fingerprint
from kltune.drift.fingerprint import SAMPLE
from kltune.errors import SettingsError
from kltune.trial.records import read, save

from .data import row, write


@pytest.fixture
def old(tmp_path):
    return write(tmp_path / "old.parquet", [row(n) for n in range(100)])


def difference(old, new):
    """Compare both ways; with so few rows the fingerprint knows as much as the files."""
    exact = compare_files([old], [new])
    assert compare(fingerprint([old]), fingerprint([new])) == exact
    return exact


def counts(drift):
    return drift.unchanged, drift.added, drift.removed, drift.changed


def test_order_is_no_change(tmp_path, old):
    rows = [row(n) for n in range(100)]
    Random(0).shuffle(rows)
    new = write(tmp_path / "new.parquet", rows)
    drift = difference(old, new)
    assert counts(drift) == (100, 0, 0, 0)
    assert drift.share == 0
    assert fingerprint([old]) == fingerprint([new])


def test_added_removed_and_changed_rows_are_counted_apart(tmp_path, old):
    rows = [row(n, question="Another question?" if n < 7 else None) for n in range(95)]
    rows += [row(n) for n in range(200, 220)]
    drift = difference(old, write(tmp_path / "new.parquet", rows))
    assert counts(drift) == (88, 20, 5, 7)
    assert drift.share == pytest.approx(1 - 88 / 115)


def test_a_corrected_answer_is_a_changed_row(tmp_path, old):
    rows = [row(n, answer="0" if n < 12 else None) for n in range(100)]
    drift = difference(old, write(tmp_path / "new.parquet", rows))
    assert counts(drift) == (88, 0, 0, 12)
    assert drift.prompt_length.distance == 0
    assert drift.answer_length.distance > 0


def test_other_columns_and_other_numbers_are_no_change(tmp_path, old):
    rows = [{**row(n), "note": f"made {n}", "ability": "sums"} for n in reversed(range(100))]
    for place, item in enumerate(rows):
        item["extra_info"]["index"] = place
    drift = difference(old, write(tmp_path / "new.parquet", rows))
    assert counts(drift) == (100, 0, 0, 0)


def test_rows_numbered_anew_do_not_count_as_changed(tmp_path, old):
    rows = [row(n) for n in range(50, 150)]
    for place, item in enumerate(rows):
        item["extra_info"]["index"] = place
    drift = difference(old, write(tmp_path / "new.parquet", rows))
    assert drift.renumbered
    assert counts(drift) == (50, 50, 50, 0)


def test_rows_without_numbers_are_known_by_their_prompt(tmp_path):
    def plain(n, answer=None):
        return {key: value for key, value in row(n, answer=answer).items() if key != "extra_info"}

    old = write(tmp_path / "old.parquet", [plain(n) for n in range(20)])
    new = write(tmp_path / "new.parquet", [plain(n, "0" if n < 3 else None) for n in range(20)])
    assert counts(difference(old, new)) == (17, 0, 0, 3)


def test_a_row_that_is_there_twice_counts_twice(tmp_path):
    old = write(tmp_path / "old.parquet", [row(1), row(1), row(1), row(2)])
    new = write(tmp_path / "new.parquet", [row(1), row(2), row(2)])
    drift = difference(old, new)
    assert (drift.unchanged, drift.added, drift.removed) == (2, 1, 2)


def test_the_writer_of_the_file_makes_no_difference(tmp_path, old):
    table = pyarrow.parquet.read_table(old)
    prompt = pyarrow.array(
        [
            [{"content": m["content"], "role": m["role"]} for m in p.as_py()]
            for p in table["prompt"]
        ],
        pyarrow.large_list(
            pyarrow.struct([("content", pyarrow.large_string()), ("role", pyarrow.large_string())])
        ),
    )
    source = table["data_source"].dictionary_encode()
    names = table.column_names
    table = table.set_column(names.index("prompt"), "prompt", prompt)
    table = table.set_column(names.index("data_source"), "data_source", source)
    pyarrow.parquet.write_table(table, tmp_path / "new.parquet", row_group_size=7)
    assert counts(difference(old, tmp_path / "new.parquet")) == (100, 0, 0, 0)


def test_no_shift_is_larger_than_the_share_of_changed_rows(tmp_path, old):
    rng = Random(3)
    for trial in range(5):
        rows = [row(n) for n in range(rng.randint(60, 100))]
        rows += [
            row(n, "x" * rng.randint(1, 500), "9" * rng.randint(1, 30), f"source/{n % 3}")
            for n in range(300, 300 + rng.randint(1, 80))
        ]
        drift = difference(old, write(tmp_path / f"{trial}.parquet", rows))
        shifts = (drift.prompt_length.distance, drift.answer_length.distance, drift.source_mix)
        assert max(shifts) <= drift.share + 1e-12
        assert min(shifts) > 0


def test_two_files_are_one_data_set(tmp_path, old):
    first = write(tmp_path / "a.parquet", [row(n) for n in range(40)])
    second = write(tmp_path / "b.parquet", [row(n) for n in range(40, 100)])
    assert compare_files([old], [second, first]).share == 0


def test_a_large_data_set_is_estimated_from_its_sample(tmp_path):
    total = 2 * SAMPLE
    before = write(tmp_path / "old.parquet", [row(n) for n in range(total)])
    rows = [row(n, answer="0" if n % 10 == 0 else None) for n in range(total)]
    after = write(tmp_path / "new.parquet", rows)
    exact = compare_files([before], [after])
    assert exact.changed == len(range(0, total, 10))
    stored = fingerprint([before])
    sampled = compare(stored, fingerprint([after]))
    assert sampled.changed is None
    assert abs(sampled.share - exact.share) < 2 * sampled.margin
    assert sampled.margin < 0.02
    # With the old file still at hand every row is compared; once it is another one, none is.
    assert compare_remembered(stored, [before], [after]) == exact
    write(before, rows)
    assert compare_remembered(stored, [before], [after]) == sampled


def test_nothing_changed_in_a_sample_is_a_bound_and_no_certainty(tmp_path):
    rows = [row(n) for n in range(2 * SAMPLE)]
    found = fingerprint([write(tmp_path / "old.parquet", rows)])
    drift = compare(found, found)
    assert drift.share == 0
    assert 0 < drift.margin < 0.001


def test_a_fingerprint_is_small_and_holds_no_text(tmp_path):
    rows = [row(n, question=f"Secret {n} of the house?", answer="4711") for n in range(SAMPLE)]
    path = tmp_path / "data.json"
    save(path, fingerprint([write(tmp_path / "old.parquet", rows)]))
    text = path.read_text()
    assert "Secret" not in text
    assert "4711" not in json.dumps([json.loads(text)["sources"], json.loads(text)["rows"]])
    assert len(text) < 200_000
    found = fingerprint([tmp_path / "old.parquet"])
    assert read(path, type(found)) == found


def test_one_source_a_row_puts_no_text_into_the_fingerprint(tmp_path):
    rows = [row(n, source=f"a sentence of its own, number {n}") for n in range(500)]
    found = fingerprint([write(tmp_path / "old.parquet", rows)])
    assert len(found.sources) <= 51
    assert sum(found.sources.values()) == 500


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        (b"not parquet at all", "cannot be read as parquet"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, content, words):
    path = tmp_path / "new.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=words):
        fingerprint([path])


def test_a_file_of_another_schema_is_said(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "new.parquet")
    with pytest.raises(SettingsError, match="no column data_source, prompt, reward_model"):
        fingerprint([tmp_path / "new.parquet"])


def test_another_name_of_the_prompt(tmp_path, old):
    renamed = [
        {("question" if k == "prompt" else k): v for k, v in row(n).items()} for n in range(100)
    ]
    new = write(tmp_path / "new.parquet", renamed)
    assert fingerprint([new], "question") == fingerprint([old])


def test_an_empty_file_has_a_fingerprint(tmp_path, old):
    empty = tmp_path / "empty.parquet"
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(old).slice(0, 0), empty)
    assert counts(difference(old, empty)) == (0, 0, 100, 0)
    assert compare(fingerprint([empty]), fingerprint([empty])).share == 0
