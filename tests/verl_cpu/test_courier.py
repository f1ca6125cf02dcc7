"""Writes that come together go out together, and none returns before it has arrived."""

from __future__ import annotations

import asyncio

import pytest

from kltune.verl_cpu.courier import Courier


class Queue:
    """Records the messages that it is sent; ``fail`` makes it refuse them."""

    def __init__(self, fail=False):
        self.messages = []
        self.fail = fail

    async def async_kv_batch_put(self, *, keys, partition_id, fields, tags):
        await asyncio.sleep(0.01)
        if self.fail:
            raise ConnectionError("the queue is gone")
        self.messages.append((partition_id, sorted(keys), fields, tags))

    def kv_list(self):
        return "passed on"


def test_writes_of_many_prompts_become_one_message_of_each_kind():
    queue = Queue()
    courier = Courier(queue, pack=lambda rows: {"packed": len(rows)})

    async def prompt(number):
        await courier.async_kv_put(str(number), "train", tag={"status": "running"})
        await courier.async_kv_batch_put([f"{number}_0"], [{"ids": 1}], [{"ok": 1}], "train")
        arrived = any(f"{number}_0" in keys for _, keys, _, _ in queue.messages)
        await courier.async_kv_put(str(number), "train", tag={"status": "finished"})
        return arrived

    async def run():
        return await asyncio.gather(*map(prompt, range(10)))

    assert all(asyncio.run(run()))
    assert [fields for _, _, fields, _ in queue.messages] == [None, {"packed": 10}, None]
    numbers = sorted(map(str, range(10)))
    assert [keys for _, keys, _, _ in queue.messages] == [
        numbers,
        [f"{number}_0" for number in numbers],
        numbers,
    ]


def test_partitions_and_unlike_rows_are_not_mixed():
    queue = Queue()
    courier = Courier(queue, pack=list)

    async def run():
        await asyncio.gather(
            courier.async_kv_batch_put(["a"], [{"x": 1}], [{}], "train"),
            courier.async_kv_batch_put(["b"], [{"x": 2}], [{}], "val"),
            courier.async_kv_batch_put(["c"], [{"x": 3, "y": 4}], [{}], "train"),
        )

    asyncio.run(run())
    assert sorted(queue.messages, key=lambda message: message[1]) == [
        ("train", ["a"], [{"x": 1}], [{}]),
        ("val", ["b"], [{"x": 2}], [{}]),
        ("train", ["c"], [{"x": 3, "y": 4}], [{}]),
    ]


def test_a_write_that_fails_fails_every_writer_of_its_round():
    courier = Courier(Queue(fail=True), pack=list)

    async def run():
        return await asyncio.gather(
            *(courier.async_kv_put(key, "train", tag={}) for key in "ab"), return_exceptions=True
        )

    assert [type(result) for result in asyncio.run(run())] == [ConnectionError] * 2


def test_what_is_not_a_write_is_passed_on():
    assert Courier(Queue(), pack=list).kv_list() == "passed on"


@pytest.mark.parametrize("rounds", [1, 3])
def test_later_writes_make_a_new_round(rounds):
    queue = Queue()
    courier = Courier(queue, pack=list)

    async def run():
        for number in range(rounds):
            await courier.async_kv_put(str(number), "train", tag={})

    asyncio.run(run())
    assert len(queue.messages) == rounds
