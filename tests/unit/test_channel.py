"""The channel between the private loop and a reader elsewhere."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import chain
from typing import Any

import pytest

from langchain_cursor.channel import Channel
from langchain_cursor.loop import Job, private_loop


def produce(channel: Channel[int], count: int, put: list[int]) -> None:
    """Put numbers from the private loop, noting each as it gets in."""

    async def work() -> None:
        for number in range(count):
            if channel.put(number):
                await channel.room()
            put.append(number)

    private = private_loop()
    job: Job[None] = Job(private.loop)
    private.submit(work, job)
    job.future.add_done_callback(lambda _: channel.end())


@pytest.mark.clause("STREAM-8")
@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_a_thread_reads_everything_in_order(count: int) -> None:
    channel: Channel[int] = Channel(private_loop().loop, limit=7)
    produce(channel, count, [])
    assert list(chain.from_iterable(channel.read())) == list(range(count))


@pytest.mark.clause("STREAM-8")
@pytest.mark.parametrize("count", [0, 1, 7, 1000])
async def test_another_loop_reads_everything_in_order(count: int) -> None:
    channel: Channel[int] = Channel(private_loop().loop, limit=7)
    produce(channel, count, [])
    assert [n async for numbers in channel.aread() for n in numbers] == list(range(count))


@pytest.mark.clause("STREAM-8")
def test_a_reader_that_does_not_read_holds_up_its_own_stream_only() -> None:
    channel: Channel[int] = Channel(private_loop().loop, limit=5)
    put: list[int] = []
    produce(channel, 100, put)
    reader = channel.read()
    first = next(reader)
    time.sleep(0.1)
    assert len(put) <= 11  # what was taken, what waits, and one on its way

    async def other() -> str:
        return "not blocked"

    assert private_loop().run(other) == "not blocked"
    assert [*first, *chain.from_iterable(reader)] == list(range(100))


@pytest.mark.clause("STREAM-17")
async def test_what_has_come_together_is_handed_over_together_and_wakes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    woken = 0
    call_soon_threadsafe = loop.call_soon_threadsafe

    def counted(*arguments: Any, **context: Any) -> asyncio.Handle:
        nonlocal woken
        woken += 1
        return call_soon_threadsafe(*arguments, **context)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    channel: Channel[int] = Channel(private_loop().loop)
    stream = channel.aread()
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)  # it waits now
    produce(channel, 100, [])
    assert await reading == list(range(100))
    assert woken == 1
    await stream.aclose()


@pytest.mark.clause("STREAM-8")
def test_the_end_wakes_a_reader_that_waits() -> None:
    channel: Channel[int] = Channel(private_loop().loop)
    read: list[list[list[int]]] = []
    thread = threading.Thread(target=lambda: read.append(list(channel.read())))
    thread.start()
    time.sleep(0.05)
    channel.end()
    thread.join(2)
    assert read == [[]]


@pytest.mark.clause("STREAM-8")
def test_a_reader_whose_loop_has_closed_disturbs_nobody() -> None:
    channel: Channel[int] = Channel(private_loop().loop, limit=3)

    async def begin() -> None:
        stream = channel.aread()
        produce(channel, 1, [])
        assert await anext(stream) == [0]
        await stream.aclose()

    asyncio.run(begin())
    put: list[int] = []
    produce(channel, 2, put)
    deadline = time.monotonic() + 2
    while len(put) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
