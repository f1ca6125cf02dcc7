"""Following files and pipes."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kltune.errors import MetricsError
from kltune.readers import drain
from kltune.readers.console import ConsoleReader
from kltune.readers.jsonl import JsonlReader
from kltune.readers.tail import ByteTail, LineTail, StreamTail

LINE = b"step:%d - critic/score/mean:0.5\n"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=20))
def test_pieces_of_any_size_give_the_same_steps(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("log") / "train.log"
    text = b"".join(LINE % i for i in range(1, 8))
    reader = ConsoleReader(str(path))
    seen: list[int] = []
    at = 0
    with path.open("wb") as stream:
        while at < len(text):
            size = sizes[at % len(sizes)]
            stream.write(text[at : at + size])
            stream.flush()
            at += size
            seen += [step.step for step in drain(reader, writer_ended=False)]
    reader.close()
    assert seen == list(range(1, 8))


def test_a_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(LINE % 1)
    reader = ConsoleReader(str(path))
    assert [s.step for s in reader.poll()] == [1]
    fresh = tmp_path / "fresh.log"
    fresh.write_bytes(LINE % 5 + LINE % 6)
    fresh.replace(path)
    assert [s.step for s in reader.poll()] == [5, 6]
    reader.close()


def test_a_poll_costs_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"".join(LINE % i for i in range(1, 2000)))
    reader = ConsoleReader(str(path))
    assert len(list(drain(reader))) == 1999
    read: list[int] = []
    plain = ByteTail._read
    monkeypatch.setattr(ByteTail, "_read", lambda self: (c := plain(self), read.append(len(c)))[0])
    with path.open("ab") as stream:
        stream.write(LINE % 2000)
    assert [s.step for s in drain(reader)] == [2000]
    assert sum(read) == len(LINE % 2000)
    reader.close()


def test_a_poll_holds_a_bounded_part_of_a_large_log(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    pad = b" - ".join(b"pad/%d:0.25" % i for i in range(300))
    with path.open("wb") as stream:
        for i in range(1, 1500):
            stream.write(b"step:%d - " % i + pad + b"\n")
    reader = ConsoleReader(str(path))
    sizes = []
    while steps := reader.poll():
        sizes.append(len(steps))
    reader.close()
    assert sum(sizes) == 1499
    assert max(sizes) <= (1 << 16) // len(pad) + 1


def test_a_pipe_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as stream:
        tail = LineTail(StreamTail(stream))
        assert tail.lines() is None
        os.write(into, b"one\ntw")
        assert tail.lines() == [b"one"]
        assert not tail.ended
        os.close(into)
        assert tail.lines() is None
        assert tail.ended
        assert tail.remainder() == b"tw"


def test_the_last_line_of_a_finished_file_counts_without_its_last_field(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"step:1 - a/b:1 - c/d:0.1234")
    reader = ConsoleReader(str(path))
    assert reader.poll() == []
    (step,) = reader.finish()
    assert step.raw == {"a/b": 1.0}
    reader.close()


def test_a_directory_is_no_log(tmp_path: Path) -> None:
    reader = JsonlReader(str(tmp_path))
    with pytest.raises(MetricsError, match="cannot be read"):
        reader.poll()


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(bytes(range(1, 9)) * (3 << 20))
    tail = LineTail(ByteTail(path))
    while tail.lines() is not None:
        pass
    assert len(tail.remainder()) <= 1 << 20
    tail.close()


def test_standard_input_is_a_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "piped"
    path.write_bytes(LINE % 1 + LINE % 2)
    with path.open("rb") as stream:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
        reader = ConsoleReader("-")
        assert [s.step for s in drain(reader)] == [1, 2]
        assert reader.ended
