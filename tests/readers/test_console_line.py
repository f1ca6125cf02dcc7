"""What verl's releases print on a step line, and what logs do to it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kltune.readers.console_line import parse_number, parse_step_line


@pytest.mark.parametrize(
    ("line", "step", "numbers"),
    [
        ("step:3 - actor/ppo_kl:0.001", 3, {"actor/ppo_kl": 0.001}),
        (
            "\x1b[36m(main_task pid=1)\x1b[0m step:0 - critic/kl:-0.000 - critic/lr(1e-4):0.100",
            0,
            {"critic/kl": -0.0, "critic/lr(1e-4)": 0.1},
        ),
        (
            "(TaskRunnerV1 pid=1, ip=198.51.100.7) step:7 - a/b:np.float64(1.5) - c/d:np.int32(2)",
            7,
            {"a/b": 1.5, "c/d": 2.0},
        ),
        (
            "Training Progress:  2%|▏| 1/55 [00:10<1:00, 4.1s/it]step:1 - a/b:1e-05 - c/d:True",
            1,
            {"a/b": 1e-05, "c/d": 1.0},
        ),
        ("step:2 - a/b:0.5\x1b[32m [repeated 3x across cluster]\x1b[0m", 2, {"a/b": 0.5}),
        ("step:2 - a/b:nan - c/d:-inf - e/f:False", 2, {"c/d": -math.inf, "e/f": 0.0}),
        ("step:2 - x/mode:schedule - a/b:3", 2, {"a/b": 3.0}),
        ("step:2 - val-core/my: set/acc/mean@1:0.5", 2, {"val-core/my: set/acc/mean@1": 0.5}),
        ("step:2 - val-core/a - b/acc/mean@1:0.5", 2, {"val-core/a - b/acc/mean@1": 0.5}),
        ("step:2 - a/b:0.5 - c/d:[1, 2] - e/f:", 2, {"a/b": 0.5}),
    ],
)
def test_a_step_line_is_read(line: str, step: int, numbers: dict[str, float]) -> None:
    found = parse_step_line(line)
    assert found is not None
    assert found[0] == step
    assert {n: v for n, v in found[1].items() if not math.isnan(v)} == numbers


@pytest.mark.parametrize(
    "line",
    [
        "epoch 0, step 1",
        "training/global_step:12 - training/epoch:0",
        "Initial validation metrics: {'val-core/x/acc/mean@1': 0.5}",
        "In step:1 - add 3 and 4, giving sum:7",
        "step:1 - ",
        "step:1",
        "laststep:4 - a/b:1",
        "step:99999999999999999999 - a/b:1",
        "",
    ],
)
def test_other_lines_are_not_step_lines(line: str) -> None:
    assert parse_step_line(line) is None


def test_the_last_field_of_a_cut_line_is_left_out() -> None:
    whole = "step:10 - " + " - ".join(f"pad/{i}:0.123456789" for i in range(400))
    cut = whole[:4096]
    found = parse_step_line(cut)
    assert found is not None
    assert set(found[1].values()) == {0.123456789}
    assert len(found[1]) == cut.count(" - ") - 1
    assert parse_step_line("step:1 - a/b:1 - c/d:0.12", complete=False) == (1, {"a/b": 1.0})


def test_a_line_cut_in_a_number_loses_only_that_number() -> None:
    start = "step:10 - a/b:1 - "
    cut = start + "c/d:" + "1" * (4096 - len(start) - 4)
    assert parse_step_line(cut) == (10, {"a/b": 1.0})
    assert parse_step_line(cut + "1") == (10, {"a/b": 1.0, "c/d": math.inf})


NAMES = st.from_regex(r"[a-z_]{1,12}/[a-z_@0-9()\-]{1,20}", fullmatch=True)
NUMBERS = st.floats(allow_nan=False) | st.integers(-(10**9), 10**9).map(float)


@given(
    st.integers(0, 10**9),
    st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=30),
    st.sampled_from(["{}", "np.float64({})", "np.float32({})"]),
    st.sampled_from(["", "\x1b[36m(TaskRunner pid=3)\x1b[0m ", "99%|#| 1/2 [00:01<?, ?it/s]"]),
)
def test_what_verl_prints_is_read_back(
    step: int, data: dict[str, float], shape: str, prefix: str
) -> None:
    fields = [f"{name}:{shape.format(value)}" for name, value in data.items()]
    line = prefix + " - ".join([f"step:{step}", *fields])
    if len(line) % 4096 and len(line) - len(prefix) != 4096:
        assert parse_step_line(line) == (step, data)


@given(st.text(), st.booleans())
def test_any_text_is_a_line(text: str, complete: bool) -> None:
    for line in (text, f"step:1 - {text}", f"step:1 - a/b:1 - {text}"):
        found = parse_step_line(line, complete=complete)
        if found is not None:
            assert found[0] >= 0
            assert all(isinstance(v, float) for v in found[1].values())


@given(NUMBERS)
def test_a_printed_number_is_read_back(value: float) -> None:
    assert parse_number(str(value)) == parse_number(f"np.float64({value!r})") == value
