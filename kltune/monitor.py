"""Watches any run, live or finished, whoever launched it: readers in, findings out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kltune.domain.findings import Finding, Severity
from kltune.domain.profiles import Profile
from kltune.domain.steps import Step
from kltune.domain.verdict import Replay
from kltune.errors import MetricsError
from kltune.readers import Reader, drain, open_reader
from kltune.readers.console import ConsoleReader

#: Seconds between two looks at a live run.
POLL_S = 0.5

#: Points of a curve that are kept for showing.
SHOWN = 2000


@dataclass(slots=True)
class Watched:
    """What was seen of one run.

    Attributes:
        source, format: what was read.
        replay: the judgement so far.
        recent: the last step records, for curves.
    """

    source: str
    format: str
    replay: Replay
    recent: deque[Step] = field(default_factory=lambda: deque(maxlen=SHOWN))

    def record(self) -> dict[str, object]:
        """Return everything as a value that JSON can hold."""
        return self.replay.record(self.source, self.format)

    def is_critical(self, profile: str) -> bool:
        """Whether a profile has a critical finding."""
        return any(f.severity is Severity.CRITICAL for f in self.replay.findings[profile])


@dataclass(frozen=True, slots=True)
class News:
    """What one look at a live run has brought: new steps, and new findings by profile."""

    steps: tuple[Step, ...]
    findings: dict[str, list[Finding]]


def replay(source: str, form: str | None, profiles: tuple[Profile, ...]) -> Watched:
    """Judge a finished run.

    Raises:
        MetricsError: the source is not there or cannot be read, or no format fits.
    """
    is_path = source != "-" and ":" not in source.partition("/")[0]
    if is_path and not (Path(source).exists() or Path(source.partition("#")[0]).exists()):
        raise MetricsError(f"{source}: there is no such file or directory")
    reader = open_reader(source, form)
    watched = Watched(source, reader.format, Replay(profiles))
    try:
        for step in drain(reader):
            _look_for_a_setup(reader, watched)
            watched.replay.see(step)
            watched.recent.append(step)
        _look_for_a_crash(reader, watched)
    finally:
        reader.close()
    return watched


def follow(
    source: str, form: str | None, profiles: tuple[Profile, ...]
) -> Iterator[tuple[Watched, News]]:
    """Watch a live run; yields after every look, also when nothing is new.

    Ends when the source can bring nothing more, which a file never says: then it is up to the
    caller to stop.

    Raises:
        MetricsError: the source cannot be read, or no format fits.
    """
    reader = open_reader(source, form)
    watched = Watched(source, reader.format, Replay(profiles))
    last_news = time.monotonic()
    try:
        while True:
            ended = reader.ended
            steps = reader.poll() or (reader.finish() if ended else [])
            fired: dict[str, list[Finding]] = {p.name: [] for p in profiles}
            _look_for_a_setup(reader, watched)
            for step in steps:
                watched.recent.append(step)
                _add(fired, watched.replay.see(step))
            if steps:
                last_news = time.monotonic()
            else:
                _add(fired, watched.replay.idle(time.monotonic() - last_news))
            yield watched, News(tuple(steps), fired)
            if ended and not steps:
                _look_for_a_crash(reader, watched)
                return
            if not steps:
                time.sleep(POLL_S)
    finally:
        reader.close()


def _look_for_a_setup(reader: Reader, watched: Watched) -> None:
    """Tell the rules what KL control the run was asked for, where its console log says so."""
    if isinstance(reader, ConsoleReader) and reader.setup is not None:
        watched.replay.know(reader.setup)


def _look_for_a_crash(reader: Reader, watched: Watched) -> None:
    """Ask a console log, the only source that tells, why the run ended."""
    if isinstance(reader, ConsoleReader) and (crash := reader.evidence.crash()) is not None:
        watched.replay.crashed(crash)


def _add(fired: dict[str, list[Finding]], more: dict[str, list[Finding]]) -> None:
    for name, findings in more.items():
        fired[name].extend(findings)
