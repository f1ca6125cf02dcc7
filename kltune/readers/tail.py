"""Follows a growing source: bytes or whole lines, each once, at a cost of what is new."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import IO

from kltune.errors import MetricsError

#: Bytes taken in one read; bounds the memory of a poll whatever the size of the source. What
#: stays in the processor's cache is read a quarter faster than a megabyte at a time.
CHUNK_BYTES = 1 << 16

#: A "line" longer than this is no metric line; its start is dropped so that a binary file, or a
#: log without line ends, cannot fill the memory.
LONGEST_LINE_BYTES = 1 << 20


class ByteTail:
    """The bytes of one file that may grow, shrink, be replaced, or not exist yet.

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

    def read(self) -> bytes:
        """Return the next bytes, at most ``CHUNK_BYTES``; none if nothing is new.

        Raises:
            MetricsError: the file exists and cannot be read.
        """
        try:
            return self._read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise MetricsError(f"{self._path}: cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; a later ``read`` opens it again where it stopped."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> bytes:
        state = self._path.stat()
        identity = (state.st_dev, state.st_ino)
        if self._identity not in (None, identity) or state.st_size < self._offset:
            self.close()
            self.restarts += 1
            self._offset = 0
        self._identity = identity
        if state.st_size == self._offset:
            return b""
        if self._file is None:
            self._file = self._path.open("rb", buffering=0)
            self._file.seek(self._offset)
        chunk = self._file.read(CHUNK_BYTES)
        self._offset += len(chunk)
        return chunk


class StreamTail(ByteTail):
    """The bytes of an open stream such as standard input; never waits for its writer."""

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


class LineTail:
    """The whole lines of a source."""

    def __init__(self, source: ByteTail):
        self._source = source
        self._restarts = 0
        self._rest = b""

    @property
    def ended(self) -> bool:
        """Whether no more can come."""
        return self._source.ended

    def block(self) -> bytes | None:
        """Return the next complete lines as one text; None if nothing is new.

        The text may be a part of what is new, and empty while a long line is being written. Its
        last line end is left out.
        """
        chunk = self._source.read()
        if self._restarts != self._source.restarts:
            self._restarts, self._rest = self._source.restarts, b""
        if not chunk:
            return None
        end = chunk.rfind(b"\n")
        if end < 0:
            self._rest = (self._rest + chunk)[-LONGEST_LINE_BYTES:]
            return b""
        whole, self._rest = self._rest + chunk[:end], chunk[end + 1 :]
        return whole

    def lines(self) -> list[bytes] | None:
        """Return the next complete lines, without their ends; None if nothing is new."""
        block = self.block()
        return None if block is None else block.split(b"\n") if block else []

    def remainder(self) -> bytes:
        """Return the last line, which has no end, and forget it."""
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None:
        """Close the source."""
        self._source.close()


def open_tail(source: str) -> LineTail:
    """Return the lines of a path, or of standard input for ``-``."""
    return LineTail(StreamTail(sys.stdin.buffer) if source == "-" else ByteTail(Path(source)))
