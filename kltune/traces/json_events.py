"""The events of a Chrome trace, one by one: such files reach gigabytes, and memory must not."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kltune.errors import MetricsError

_CHUNK = 1 << 20

#: A single event, or the header, that is longer than this is none.
_LONGEST = 64 << 20

_EVENTS = '"traceEvents"'


class ChromeTrace:
    """A trace file; iterating yields its events and reads it once.

    Attributes:
        header: text before the first event, where torch says who it is; known once the first
            event was yielded.

    Raises:
        MetricsError: on iteration, where the file is cut off or no trace.
    """

    def __init__(self, path: Path):
        self.path = path
        self.header = ""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with _open(self.path) as stream:
                yield from self._events(stream)
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise MetricsError(f"{self.path}: cannot be read ({error})") from None

    def _events(self, stream: IO[str]) -> Iterator[dict[str, Any]]:
        text, position = self._to_first_event(stream)
        decoder = json.JSONDecoder()
        while True:
            position = _skip(text, position)
            if text[position : position + 1] == "]":
                return
            try:
                event, position = decoder.raw_decode(text, position)
            except ValueError:
                rest = text[position:]
                more = stream.read(max(_CHUNK, len(rest)))
                if not more or len(rest) > _LONGEST:
                    raise MetricsError(
                        f"{self.path}: ends in the middle of an event; the profiler did not "
                        "finish, or the file was cut off on its way"
                    ) from None
                text, position = rest + more, 0
                continue
            if isinstance(event, dict):
                yield event

    def _to_first_event(self, stream: IO[str]) -> tuple[str, int]:
        """Return the text read so far, and where in it the list of events begins."""
        text = stream.read(_CHUNK)
        if text.lstrip().startswith("["):  # the format's short form: events and nothing else
            return text, text.index("[") + 1
        while True:
            key = text.find(_EVENTS)
            start = text.find("[", key) if key >= 0 else -1
            if start >= 0:
                self.header = text[:key]
                return text, start + 1
            more = stream.read(_CHUNK)
            if not more or len(text) > _LONGEST:
                raise MetricsError(f"{self.path}: holds no {_EVENTS}, so it is no trace")
            text += more


def _open(path: Path) -> IO[str]:
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    if packed:
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _skip(text: str, position: int) -> int:
    """Return the position of the next character that is no blank and no comma."""
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position
