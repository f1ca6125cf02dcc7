"""Console logs of verl: files, pipes, and wandb's ``output.log``."""

from __future__ import annotations

from collections.abc import Iterator

from kltune.domain.steps import Step
from kltune.readers.console_line import parse_step_line
from kltune.readers.lines import LineReader
from kltune.verl.crash import LogEvidence
from kltune.verl.metrics import step_record


class ConsoleReader(LineReader):
    """Reads step lines out of everything else that a verl run prints.

    Attributes:
        evidence: what the other lines tell about a crash and about the configuration; grows with
            each poll and stays small.
    """

    format = "console"

    def __init__(self, source: str):
        super().__init__(source)
        self.evidence = LogEvidence()

    def parse(self, line: bytes, *, complete: bool) -> Iterator[Step]:
        """Yield the step record of a step line, and show every other line to ``evidence``."""
        if b"step:" in line and (steps := list(step_lines(line, complete=complete))):
            self.evidence.step_follows()
            yield from steps
        else:
            self.evidence.see(line)


def step_lines(line: bytes, *, complete: bool = True) -> Iterator[Step]:
    """Yield the step records of one physical line; a carriage return in it starts another."""
    parts = line.decode("utf-8", "replace").split("\r")
    for number, part in enumerate(parts, start=1):
        found = parse_step_line(part, complete=complete or number < len(parts))
        if found is not None:
            yield step_record(*found)
