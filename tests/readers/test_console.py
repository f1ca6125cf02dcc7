"""The console log of a whole run: steps, and what lies between them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kltune.domain.crashes import CrashClass
from kltune.readers import drain
from kltune.readers.console import ConsoleReader
from kltune.readers.console_line import parse_step_line
from kltune.readers.step_lines import StepLines

CONFIG = """\
{'actor_rollout_ref': {'actor': {'use_kl_loss': False}},
 'algorithm': {'kl_ctrl': {'horizon': 10000,
                           'type': 'adaptive'},
               'use_kl_in_reward': True},
 'trainer': {'nnodes': 1}}
"""
PREFIX = "\x1b[36m(TaskRunner pid=9)\x1b[0m "


def read(path: Path, text: str) -> tuple[ConsoleReader, list[int]]:
    path.write_text(text, encoding="utf-8")
    reader = ConsoleReader(str(path))
    steps = [step.step for step in drain(reader)]
    reader.close()
    return reader, steps


def test_the_printed_configuration_tells_what_control_was_asked_for(tmp_path: Path) -> None:
    shown = "".join(PREFIX + line for line in CONFIG.splitlines(keepends=True))
    reader, _ = read(tmp_path / "log", "start\n" + shown + "step:1 - a/b:1\n")
    assert reader.setup is not None
    assert reader.setup.adaptive is True
    assert reader.setup.kl_in_reward is True
    assert read(tmp_path / "log", "step:1 - a/b:1\n")[0].setup is None
    assert (
        read(tmp_path / "log", "{'actor_rollout_ref': broken\nstep:1 - a/b:1\n")[0].setup is None
    )


def test_a_configuration_longer_than_a_read_is_put_together(tmp_path: Path) -> None:
    section = "".join(f"          'key_{i}': {i},\n" for i in range(5000))
    long = CONFIG.replace(
        " 'trainer'", " 'data': {'a': 0,\n" + section + "          'z': 1},\n 'trainer'"
    )
    reader, _ = read(tmp_path / "log", long + "step:1 - a/b:1\n")
    assert reader.setup is not None
    assert reader.setup.adaptive is True


def test_redrawn_progress_bars_hide_no_step(tmp_path: Path) -> None:
    text = "Training:  0%|  | 0/3\rstep:1 - a/b:1\rTraining: 33%|# | 1/3\r\nstep:2 - a/b:2\r\n"
    assert read(tmp_path / "log", text)[1] == [1, 2]


def test_a_run_that_goes_on_did_not_crash(tmp_path: Path) -> None:
    crash = "torch.OutOfMemoryError: CUDA out of memory.\nError executing job with overrides: []\n"
    reader, steps = read(tmp_path / "log", "step:1 - a/b:1\n" + crash + "step:2 - a/b:2\nbye\n")
    assert steps == [1, 2]
    assert reader.evidence.crash() is None
    reader, _ = read(tmp_path / "log", "step:1 - a/b:1\n" + crash)
    found = reader.evidence.crash()
    assert found is not None
    assert found.cause is CrashClass.OUT_OF_MEMORY


def test_a_traceback_is_kept_whole_across_polls(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("Traceback (most recent call last):\n")
    reader = ConsoleReader(str(path))
    reader.poll()
    with path.open("a") as stream:
        stream.write('  File "main_ppo.py"\n    run()\nValueError: no\nTraceback (most recent')
    reader.poll()
    assert reader.evidence.first_traceback[-1] == "ValueError: no"
    assert len(reader.evidence.first_traceback) == 4
    assert reader.evidence.last_lines[-1] == "ValueError: no"
    reader.close()


FIELDS = st.lists(
    st.tuples(
        st.sampled_from(
            ["actor/ppo_kl", "critic/score/mean", "actor/lr(1e-4)", "val-core/a:b/acc/mean@2",
             "val-core/a:b/acc/mean@4", "x/mode", "response_length/mean", "actor/kl_loss"]
        ),
        st.sampled_from(["0.5", "nan", "-inf", "np.float64(1e-05)", "True", "hold", "", "np.x(",
                         "1.5.2", "1_0", "[1, 2]", "0.25)"]),
    ),
    max_size=6,
)  # fmt: skip


@given(
    st.lists(st.tuples(FIELDS, st.sampled_from(["", PREFIX, "x", "global_", "€ "])), max_size=6)
)
def test_a_learnt_layout_reads_what_the_plain_reading_reads(
    lines: list[tuple[list[tuple[str, str]], str]],
) -> None:
    learnt = StepLines()
    for number, (fields, prefix) in enumerate(lines * 2):
        line = prefix + " - ".join([f"step:{number}", *(f"{n}:{v}" for n, v in fields)])
        plain = parse_step_line(line)
        found = list(learnt.parse(line.encode()))
        assert [(step.step, repr(dict(step.raw))) for step in found] == (
            [(plain[0], repr(plain[1]))] if plain else []
        )
        if plain and plain[1].get("critic/score/mean") is not None:
            assert repr(found[0].score) == repr(plain[1]["critic/score/mean"])


@pytest.mark.parametrize("text", ["", "\n\n", "step:", "step:1 - \nstep:2 - a/b:1", "\x00\xff"])
def test_odd_texts(tmp_path: Path, text: str) -> None:
    read(tmp_path / "log", text)
