"""Follows a growing text source: whole lines, each once, at a cost of what is new."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import IO

from kltune.errors import MetricsError

#: Bytes taken in one read; bounds the memory of a poll whatever the size of the source.
CHUNK_BYTES = 1 << 20

#: A "line" longer than this is no metric line; its start is dropped so that a binary file, or a
#: log without line ends, cannot fill the memory.
LONGEST_LINE_BYTES = 8 << 20


class FileTail:
    """The lines of one file that may grow, shrink, be replaced, or not exist yet.

    Attributes:
        ended: whether no more can come; never true for a file.
        restarts: how often the file shrank or was replaced, and was read from its start again.
    """

    ended = False

    def __init__(self, path: Path):
        self.restarts = 0
        self._path = path
        self._file: IO[bytes] | None = None
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""

    def lines(self) -> list[bytes] | None:
        """Return the next lines that are complete, without their ends; None if nothing is new.

        Reads at most ``CHUNK_BYTES``, so the list may be a part of what is new, or empty.

        Raises:
            MetricsError: the file exists and cannot be read.
        """
        try:
            chunk = self._read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MetricsError(f"{self._path}: cannot be read: {error.strerror}") from error
        if not chunk:
            return None
        return self._split(chunk)

    def remainder(self) -> bytes:
        """Return the last line that has no end, and forget it."""
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None:
        """Close the file; it is opened again by the next call of ``lines``."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> bytes:
        state = self._path.stat()
        identity = (state.st_dev, state.st_ino)
        if self._identity not in (None, identity) or state.st_size < self._offset:
            self.close()
            self.restarts += 1
            self._offset, self._rest = 0, b""
        self._identity = identity
        if state.st_size == self._offset:
            return b""
        if self._file is None:
            self._file = self._path.open("rb", buffering=0)
        self._file.seek(self._offset)
        chunk = self._file.read(CHUNK_BYTES)
        self._offset += len(chunk)
        return chunk

    def _split(self, chunk: bytes) -> list[bytes]:
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()[-LONGEST_LINE_BYTES:]
        return lines


class StreamTail(FileTail):
    """The lines of an open stream such as standard input; never waits for its writer."""

    def __init__(self, stream: IO[bytes]):
        super().__init__(Path("-"))
        self._descriptor = stream.fileno()

    def _read(self) -> bytes:
        ready, _, _ = select.select([self._descriptor], [], [], 0)
        if not ready:
            return b""
        chunk = os.read(self._descriptor, CHUNK_BYTES)
        self.ended = not chunk
        return chunk


def open_tail(source: str) -> FileTail:
    """Return the tail of a path, or of standard input for ``-``."""
    return StreamTail(sys.stdin.buffer) if source == "-" else FileTail(Path(source))
