"""One series through every writer gives the same step records through every reader."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kltune.readers import FORMATS, Reader, drain, open_reader

from .writers import WRITERS, Record

SERIES: list[Record] = [
    (0, {"val-core/openai/gsm8k/acc/mean@1": 0.25}),
    (101, {"actor/reward_kl_penalty": 0.0, "critic/score/mean": -0.5, "actor/ppo_kl": 1e-05}),
    (102, {"actor/reward_kl_penalty": 0.5, "critic/score/mean": math.nan, "actor/ppo_kl": 0.0}),
    (104, {"actor/reward_kl_penalty": 2.0, "critic/score/mean": 0.75, "actor/ppo_kl": -0.25}),
]

Write = Callable[[Path, Iterable[Record]], Path]
each_format = pytest.mark.parametrize(
    ("name", "file", "write"), [pytest.param(*entry, id=entry[0]) for entry in WRITERS]
)


def _uniform(records: list[Record]) -> list[Record]:
    """Tables and float32 stores know one set of columns, so every record gets all names."""
    names = {name: 0.125 for _, data in records for name in data}
    return [(step, {**names, **data}) for step, data in records]


@pytest.fixture
def opened() -> Iterable[list[Reader]]:
    readers: list[Reader] = []
    yield readers
    for reader in readers:
        reader.close()
        reader.close()


def test_every_format_has_a_writer() -> None:
    assert sorted(FORMATS) == [entry[0] for entry in WRITERS]


@each_format
def test_all_formats_give_the_same_records(
    name: str, file: str, write: Write, tmp_path: Path, opened: list[Reader]
) -> None:
    source = write(tmp_path / file, _uniform(SERIES))
    opened.append(reader := open_reader(source))
    assert reader.format == name
    steps = list(drain(reader))
    assert [step.step for step in steps] == [0, 101, 102, 104]
    assert [step.reference_kl for step in steps] == [0.125, 0.0, 0.5, 2.0]
    assert [step.kl_source and step.kl_source.metric for step in steps][1] == (
        "actor/reward_kl_penalty"
    )
    assert steps[1].score == -0.5
    assert steps[2].score is not None
    assert math.isnan(steps[2].score)
    assert steps[3].update_kl == -0.25
    assert steps[1].update_kl == pytest.approx(1e-5)
    assert steps[0].validation == {"val-core/openai/gsm8k/acc/mean@1": 0.25}


@each_format
def test_nothing_is_returned_twice(
    name: str, file: str, write: Write, tmp_path: Path, opened: list[Reader]
) -> None:
    opened.append(reader := open_reader(write(tmp_path / file, _uniform(SERIES)), name))
    assert list(drain(reader))
    assert reader.poll() == []
    assert reader.finish() == []
    assert not reader.ended


@each_format
def test_no_file_yet_is_an_empty_list(
    name: str, file: str, write: Write, tmp_path: Path, opened: list[Reader]
) -> None:
    if name in {"tensorboard", "mlflow", "wandb"}:
        pytest.importorskip(name)
    opened.append(reader := open_reader(tmp_path / file, name))
    assert reader.poll() == []
    write(tmp_path / file, _uniform(SERIES))
    assert [step.step for step in drain(reader)] == [0, 101, 102, 104]


@each_format
def test_what_is_added_later_is_returned_later(
    name: str, file: str, write: Write, tmp_path: Path, opened: list[Reader]
) -> None:
    if name == "mlflow":
        pytest.skip("the writer makes a store, it does not add to one")
    path = write(tmp_path / file, _uniform(SERIES[:2]))
    opened.append(reader := open_reader(path, name))
    early = [step.step for step in drain(reader, writer_ended=False)]
    if name == "tensorboard":  # a resumed run begins another file beside the first
        write(path, _uniform(SERIES[2:]))
    else:
        whole = write(tmp_path / f"whole-{file}", _uniform(SERIES)).read_bytes()
        with path.open("ab") as stream:
            stream.seek(0)
            stream.truncate() if name in {"notebook", "csv"} else None
            stream.write(whole if name in {"notebook", "csv"} else whole[path.stat().st_size :])
    late = [step.step for step in drain(reader)]
    assert early + late == [0, 101, 102, 104]
    assert 0 in early


@pytest.mark.parametrize(
    ("name", "file", "write"),
    [pytest.param(*e, id=e[0]) for e in WRITERS if e[0] in {"console", "jsonl", "wandb"}],
)
def test_a_file_that_shrank_is_read_from_its_start(
    name: str, file: str, write: Write, tmp_path: Path, opened: list[Reader]
) -> None:
    path = write(tmp_path / file, _uniform(SERIES))
    opened.append(reader := open_reader(path))
    assert len(list(drain(reader))) == 4
    write(path, _uniform(SERIES[:2]))
    assert [step.step for step in drain(reader)] == [0, 101]


@pytest.mark.parametrize(
    ("name", "file", "write"),
    [pytest.param(*e, id=e[0]) for e in WRITERS if e[0] in {"console", "jsonl", "wandb"}],
)
def test_a_half_written_record_is_not_yet_one(
    name: str, file: str, write: Write, tmp_path: Path, opened: list[Reader]
) -> None:
    path = write(tmp_path / file, _uniform(SERIES))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    opened.append(reader := open_reader(path, name))
    assert [step.step for step in drain(reader, writer_ended=False)] == [0, 101, 102]
    with path.open("ab") as stream:
        stream.write(whole[-9:])
    (last,) = drain(reader)
    assert last.update_kl == -0.25
