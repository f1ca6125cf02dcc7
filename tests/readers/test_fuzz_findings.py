"""Inputs on which a parser once went wrong, found by fuzzing (benchmarks/fuzz_readers)."""

from __future__ import annotations

import pytest

from kltune.readers.console_line import parse_step_line
from kltune.readers.step_lines import StepLines


@pytest.mark.parametrize(
    "lines",
    [
        # A line without "step:", and a wrapper without its end, after a good line was learnt.
        (b"step:1 - actor/ppo_kl:np.float64(0.5)", b"1 - actor/ppo_kl:np.float64(0.5)"),
        (b"step:1 - actor/ppo_kl:np.float64(0.5)", b"step:2 - actor/ppo_kl:np.float64(0.55"),
        # Text where a number stood, in a layout of which no other number is looked at.
        (b"step:1 - x/mode:0.5", b"step:2 - x/mode:hold"),
        # A name twice, the second time with text that only float() takes for a number.
        (b"step:1 - a/b:True - actor/ppo_kl:0.5 - actor/ppo_kl:1_0",) * 2,
    ],
)
def test_a_learnt_layout_agrees_with_the_plain_reading(lines: tuple[bytes, ...]) -> None:
    learnt = StepLines()
    for line in lines:
        plain = parse_step_line(line.decode())
        found = [(step.step, dict(step.raw)) for step in learnt.parse(line)]
        assert found == ([plain] if plain else [])
