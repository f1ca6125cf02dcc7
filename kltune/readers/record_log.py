"""The framing of ``.wandb`` files: LevelDB's log format, records in blocks of 32 KiB.

wandb removed its own Python reader of it when its core moved to Go; the format has stayed.
Format: https://github.com/google/leveldb/blob/main/doc/log_format.md, with a header of 7 bytes
(``:W&B``, a magic number, a version) and checksums that are not masked.
"""

from __future__ import annotations

import struct
import zlib

HEADER = b":W&B"
_HEADER_BYTES = 7
_BLOCK = 32768
_FRAME = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class RecordLog:
    """Takes the bytes of a log as they come, and gives back whole records.

    A record whose checksum is wrong is left out, with the rest of its block.

    Raises:
        ValueError: from ``feed``: the first bytes are not those of a ``.wandb`` file.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0  # offset in the file of the first byte of the buffer
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the records that ``chunk`` completes."""
        self._buffer += chunk
        if self._at == 0:
            if len(self._buffer) < _HEADER_BYTES:
                return []
            if not self._buffer.startswith(HEADER):
                raise ValueError("does not begin as a .wandb file does")
            self._skip(_HEADER_BYTES)
        records: list[bytes] = []
        while (found := self._next()) is not None:
            records += found
        return records

    def _next(self) -> list[bytes] | None:
        """Take one frame; None when the buffer holds no whole one."""
        left = _BLOCK - self._at % _BLOCK
        if left < _FRAME.size:
            if len(self._buffer) < left:
                return None
            self._skip(left)
            return []
        if len(self._buffer) < _FRAME.size:
            return None
        checksum, length, kind = _FRAME.unpack_from(self._buffer)
        if not _FULL <= kind <= _LAST or _FRAME.size + length > left:
            return self._drop_block(left)
        if len(self._buffer) < _FRAME.size + length:
            return None
        data = bytes(self._buffer[_FRAME.size : _FRAME.size + length])
        if zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
            return self._drop_block(left)
        self._skip(_FRAME.size + length)
        return self._assemble(kind, data)

    def _assemble(self, kind: int, data: bytes) -> list[bytes]:
        if kind in (_FULL, _FIRST):
            self._parts = []
        elif not self._parts:
            return []  # the start of this record was in a damaged block
        self._parts.append(data)
        if kind not in (_FULL, _LAST):
            return []
        whole, self._parts = b"".join(self._parts), []
        return [whole]

    def _drop_block(self, left: int) -> list[bytes] | None:
        self._parts = []
        if len(self._buffer) < left:
            return None  # perhaps not written yet, or a hole of zeros that is still growing
        self._skip(left)
        return []

    def _skip(self, count: int) -> None:
        del self._buffer[:count]
        self._at += count
