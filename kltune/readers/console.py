"""Console logs of verl: files, pipes, and wandb's ``output.log``."""

from __future__ import annotations

from collections.abc import Iterator

from kltune.domain.history import Setup
from kltune.domain.steps import Step
from kltune.readers.step_lines import StepLines
from kltune.readers.tail import open_tail
from kltune.verl.crash import LogEvidence
from kltune.verl.printed_config import printed_config

#: verl pretty-prints its configuration before the first step; this is its first section.
_CONFIG_BEGINS = b"{'actor_rollout_ref':"
_CONFIG_BYTES = 1 << 18


class ConsoleReader:
    """Reads step lines out of everything else that a verl run prints.

    Args:
        source: a path, or ``-`` for standard input.

    Attributes:
        evidence: what the other lines tell about a crash; follows each poll and stays small.
        setup: what the configuration that verl prints at its start tells; None until the first
            step, or where none was printed.
    """

    format = "console"

    def __init__(self, source: str):
        self.evidence = LogEvidence()
        self.setup: Setup | None = None
        self._tail = open_tail(source)
        self._lines = StepLines()
        self._config = b""

    @property
    def ended(self) -> bool:
        """Whether the source can bring nothing more."""
        return self._tail.ended

    def poll(self) -> list[Step]:
        """Return the records of the next lines; see ``Reader``."""
        while (block := self._tail.block()) is not None:
            if steps := list(self._steps(block)):
                return steps
        return []

    def finish(self) -> list[Step]:
        """Return the records of a last line without an end; see ``Reader``."""
        line = self._tail.remainder()
        steps = self._lines.parse(line, complete=False)
        if not steps:
            self._see(line)
        return steps

    def close(self) -> None:
        """Close the source."""
        self._tail.close()

    def _steps(self, block: bytes) -> Iterator[Step]:
        """Yield the records of whole lines, and show what lies between them to the evidence."""
        unseen = at = 0
        while (found := block.find(b"step:", at)) >= 0:
            start = block.rfind(b"\n", unseen, found) + 1 or unseen
            end = block.find(b"\n", found)
            at = len(block) if end < 0 else end + 1
            if steps := self._lines.parse(block[start : len(block) if end < 0 else end]):
                self._see(block[unseen:start])
                self._train()
                yield from steps
                unseen = at
        self._see(block[unseen:])

    def _see(self, text: bytes) -> None:
        if not text:
            return
        self.evidence.see(text)
        if not self._config:
            found = text.find(_CONFIG_BEGINS)
            self._config = text[text.rfind(b"\n", 0, found) + 1 :] if found >= 0 else b""
        elif len(self._config) < _CONFIG_BYTES:
            self._config += b"\n" + text

    def _train(self) -> None:
        self.evidence.step_follows()
        if self._config:
            self.setup = self.setup or printed_setup(self._config)
            self._config = b""


def printed_setup(text: bytes) -> Setup | None:
    """Return what a printed configuration says about the KL control, if there is one."""
    config = printed_config(text.split(b"\n"))
    algorithm = config.get("algorithm") if config else None
    if not isinstance(algorithm, dict):
        return None
    control = algorithm.get("kl_ctrl")
    kind = control.get("type") if isinstance(control, dict) else None
    in_reward = algorithm.get("use_kl_in_reward")
    return Setup(
        adaptive=kind == "adaptive" if isinstance(kind, str) else None,
        kl_in_reward=in_reward if isinstance(in_reward, bool) else None,
    )
