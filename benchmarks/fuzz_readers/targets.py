"""The pure parsers of the readers, as functions of bytes that must neither raise nor hang."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from kltune.readers.console_line import parse_step_line
from kltune.readers.csv_export import parse_table
from kltune.readers.formats import _by_content
from kltune.readers.jsonl import parse_record
from kltune.readers.notebook import output_lines
from kltune.readers.record_log import RecordLog
from kltune.readers.step_lines import StepLines
from kltune.verl.crash import LogEvidence


def step_line(data: bytes) -> None:
    parse_step_line(data.decode("utf-8", "replace"), complete=len(data) % 2 == 0)


def learnt_lines(data: bytes) -> None:
    """Lines read by a learnt layout give what the plain reading gives."""
    learnt = StepLines()
    for line in data.split(b"\n") * 2:
        if b"\r" in line:
            continue
        plain = parse_step_line(line.decode("utf-8", "replace"))
        found = [(step.step, repr(dict(step.raw))) for step in learnt.parse(line)]
        assert found == ([(plain[0], repr(plain[1]))] if plain else []), line


def jsonl(data: bytes) -> None:
    parse_record(data)


def notebook(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(output_lines(data.decode("utf-8", "replace")))


def table(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_table(data.decode("utf-8", "replace"))


def record_log(data: bytes) -> None:
    log = RecordLog()
    with contextlib.suppress(ValueError):
        for at in range(0, len(data), 61):
            log.feed(data[at : at + 61])


def sniff(data: bytes) -> None:
    _by_content(data)


def evidence(data: bytes) -> None:
    found = LogEvidence()
    half = len(data) // 2
    found.see(data[:half])
    found.see(data[half:])
    found.crash(None)
    assert len(found.last_lines) <= 40


TARGETS: dict[str, Callable[[bytes], None]] = {
    f.__name__: f
    for f in (step_line, learnt_lines, jsonl, notebook, table, record_log, sniff, evidence)
}

SEEDS: dict[str, tuple[bytes, ...]] = {
    "step_line": (
        b"\x1b[36m(TaskRunner pid=1)\x1b[0m step:1 - actor/ppo_kl:np.float64(1e-05) - x/y:True",
        b"99%|#| [00:01<?, ?it/s]step:7 - critic/lr(1e-4):0.100 - val-core/a: b - c/mean@1:nan",
        b"step:2 - a/b:0.5\x1b[32m [repeated 3x across cluster]\x1b[0m",
    ),
    "learnt_lines": (
        b"step:1 - actor/ppo_kl:0.5 - critic/score/mean:1\n"
        b"step:2 - actor/ppo_kl:nan - critic/score/mean:x",
        b"step:1 - actor/ppo_kl:np.float64(0.5)\nglobal_step:1 - actor/ppo_kl:np.float64(1_0)",
    ),
    "jsonl": (b'{"step":1,"data":{"a/b":null,"c":"0.5","d":true,"e":1e999}}',),
    "notebook": (
        b'{"cells":[{"outputs":[{"text":["step:1 - a/b:1\\n"]},{"data":{"text/plain":"x"}}]}]}',
    ),
    "table": (b'"Step","r - a/b","r - a/b__MIN"\n1,0.5,0\n', b"key,value,step\na/b,1,2\n"),
    "record_log": (b":W&B\xe1\xbe\x00" + bytes(40),),
    "sniff": (b"Step,a\n", b'{"step":1,"data":{}}', b"SQLite format 3\0", b":W&B"),
    "evidence": (
        b"Traceback (most recent call last):\n  F\ntorch.OutOfMemoryError: CUDA out of memory",
        b"Error executing job with overrides: []\n\x1b[36m(W pid=1)\x1b[0m Killed\nKeyboardInt",
    ),
}  # fmt: skip
