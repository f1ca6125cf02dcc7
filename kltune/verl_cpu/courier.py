"""Fewer, larger messages from the agent loops to the TransferQueue."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Seconds without a new write after which a message is sent.
_QUIET_S = 0.005


@dataclass(slots=True)
class _Message:
    """Writes to one partition that have the same fields."""

    keys: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)


class Courier:
    """Takes the place of ``transfer_queue`` where verl's agent loops write to it.

    Each prompt writes three times on its own, and each write is two or three requests to other
    processes: some 500 messages for a batch of 64, which cost more than decoding it. Writes that
    come within milliseconds go out together. A write returns when it has arrived, as before.

    Args:
        queue: the module ``transfer_queue``; what is not a write is passed on to it.
        pack: makes rows of fields into the table that the queue takes.
    """

    def __init__(self, queue: Any, pack: Callable[[list[dict[str, Any]]], Any]):
        self._queue = queue
        self._pack = pack
        self._waiting: dict[tuple[str, frozenset[str]], _Message] = defaultdict(_Message)
        self._round: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def async_kv_put(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        await self._write(partition_id, [key], [{}], [tag])

    async def async_kv_batch_put(
        self,
        keys: list[str],
        fields: list[dict[str, Any]],
        tags: list[dict[str, Any]],
        partition_id: str,
    ) -> None:
        await self._write(partition_id, keys, fields, tags)

    async def _write(
        self,
        partition: str,
        keys: list[str],
        rows: list[dict[str, Any]],
        tags: list[dict[str, Any]],
    ) -> None:
        for key, row, tag in zip(keys, rows, tags, strict=True):
            message = self._waiting[partition, frozenset(row)]
            message.keys.append(key)
            message.rows.append(row)
            message.tags.append(tag)
        if self._round is None:
            self._round = asyncio.create_task(self._deliver())
        await asyncio.shield(self._round)

    async def _deliver(self) -> None:
        seen = 0
        while seen < (count := sum(len(message.keys) for message in self._waiting.values())):
            seen = count
            await asyncio.sleep(_QUIET_S)
        messages, self._waiting = self._waiting, defaultdict(_Message)
        self._round = None
        await asyncio.gather(
            *(
                self._queue.async_kv_batch_put(
                    keys=message.keys,
                    partition_id=partition,
                    fields=self._pack(message.rows) if names else None,
                    tags=message.tags,
                )
                for (partition, names), message in messages.items()
            )
        )
