"""verl's file logger."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from kltune.readers.jsonl import parse_record

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_null_is_non_finite_and_not_missing() -> None:
    found = parse_record(b'{"step": 2, "data": {"a/b": null, "c/d": NaN, "e/f": -Infinity}}')
    assert found is not None
    assert math.isnan(found[1]["a/b"])
    assert math.isnan(found[1]["c/d"])
    assert found[1]["e/f"] == -math.inf


def test_booleans_whole_numbers_and_text() -> None:
    line = (
        b'{"step": 2.0, "data": {"a": true, "b": 3, "c": "0.5", "d": "hold", "e": [1], "f": {}}}'
    )
    assert parse_record(line) == (2, {"a": 1.0, "b": 3.0, "c": 0.5})


def test_what_is_no_record() -> None:
    for line in (
        b"", b"{", b"[]", b"1", b'{"step": 1}', b'{"step": null, "data": {}}', b"\xff\xfe",
        b'{"step": true, "data": {}}', b'{"step": -1, "data": {}}', b'{"step": 1.5, "data": {}}',
        b'{"step": 1e999, "data": {}}', b"[" * 100_000,
    ):  # fmt: skip
        assert parse_record(line) is None


def test_numbers_beyond_a_float_are_infinite() -> None:
    digits = b"1" + b"0" * 5000
    assert parse_record(b'{"step": 1, "data": {"a": %s}}' % digits) == (1, {"a": math.inf})


@given(st.integers(0, 2**40), st.dictionaries(st.text(), st.floats(allow_nan=False)))
def test_what_verl_writes_is_read_back(step: int, data: dict[str, float]) -> None:
    assert parse_record(json.dumps({"step": step, "data": data})) == (step, data)


@given(JSON | st.fixed_dictionaries({"step": JSON, "data": JSON}))
def test_any_json_is_a_line(value: object) -> None:
    found = parse_record(json.dumps(value))
    assert found is None or all(isinstance(v, float) for v in found[1].values())


@given(st.binary())
def test_any_bytes_are_a_line(line: bytes) -> None:
    parse_record(line)
