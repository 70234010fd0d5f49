"""How soon the first token of a stream is there, and what each further one costs.

Both ways have a warm executor. First token: from the call to the first chunk with text, against
from `create_agent` to the run's first assistant event, where the model needs 0.1 s. Further ones:
from the first of 2,000 to the end of the iteration, from an instant cloud; the time that passes,
and the processor time that the threads of this process take meanwhile. No time has the closing of
an agent in it: the bare SDK's ends before the next time begins, ChatCursor's within a pause.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.account import chat
from benchmarks.bare import Bare
from benchmarks.cloud import serve
from benchmarks.measure import Ratio, compare_seconds
from benchmarks.surroundings import event_loop, neutral
from langchain_cursor_fakes import Delays

_FIRST_TOKEN = Delays(first_token=0.1)
_PAIRS = 40
_TOKENS = 2000
_LONG_PAIRS = 10
_PAUSE = 0.05
# LangChain itself takes 13 ms for 2,000 chunks of a model that only yields ready texts, for their
# message objects and the sum of them at the end; the bare SDK takes 18 ms for its 2,000 events, and
# waits for the bridge most of the 80 to 260 ms. 0.56 to 1.13 of its time were seen, and 2.4 to 2.8
# of its processor time.
_TIME_LIMIT = 1.3
_PROCESSOR_LIMIT = 3.5

Clock = Callable[[], float]


@dataclass(frozen=True)
class Lap:
    """What a clock shows of a stream, in seconds: to its first text, and from there to its end."""

    first: float
    rest: float


Streaming = Callable[[int, Clock], Lap]
"""Streams the numbers up to a given one, with an eye on the clock."""


def run() -> list[Ratio]:
    """Compare `stream` with the sync client, and `astream` with the async one."""
    return list(_compared())


def _compared() -> Iterator[Ratio]:
    with _streamings(_FIRST_TOKEN) as pairs:
        for name, ours, theirs in pairs:
            yield compare_seconds(
                f"{name}: first token, against the bare SDK",
                partial(_first, ours),
                partial(_first, theirs),
                limit=1.05,
                pairs=_PAIRS,
                pause=_PAUSE,
            )
    with _streamings(Delays()) as pairs:
        for name, ours, theirs in pairs:
            for what, clock, limit in (
                ("time", time.perf_counter, _TIME_LIMIT),
                ("processor time", time.process_time, _PROCESSOR_LIMIT),
            ):
                yield compare_seconds(
                    f"{name}: {_TOKENS} tokens after the first, {what}",
                    partial(_rest, ours, clock),
                    partial(_rest, theirs, clock),
                    limit=limit,
                    pairs=_LONG_PAIRS,
                    pause=_PAUSE,
                )


def _first(way: Streaming) -> float:
    return way(3, time.perf_counter).first


def _rest(way: Streaming, clock: Clock) -> float:
    return way(_TOKENS, clock).rest


@contextmanager
def _streamings(delays: Delays) -> Iterator[list[tuple[str, Streaming, Streaming]]]:
    """ChatCursor's two ways to stream, each with the bare SDK's, on warm executors."""
    with (
        neutral() as home,
        event_loop() as loop,
        serve(delays) as cloud,
        Bare(cloud.url, home) as bare,
        bare.async_client(loop) as client,
        chat(cloud.url) as llm,
    ):
        bare.begin("say: warm")
        llm.invoke("say: warm")

        def stream(n: int, clock: Clock) -> Lap:
            return _lap(clock, clock(), llm.stream(f"count to {n}"), _has_text, n)

        def events(n: int, clock: Clock) -> Lap:
            began = clock()
            with bare.run(f"count to {n}") as run:
                return _lap(clock, began, run.events(), _is_answer, n)

        async def astream(n: int, clock: Clock) -> Lap:
            return await _alap(clock, clock(), llm.astream(f"count to {n}"), _has_text, n)

        async def aevents(n: int, clock: Clock) -> Lap:
            began = clock()
            async with bare.arun(client, f"count to {n}") as run:
                return await _alap(clock, began, run.events(), _is_answer, n)

        def run_async(way: Callable[[int, Clock], Any]) -> Streaming:
            return lambda n, clock: loop.run_until_complete(way(n, clock))

        yield [
            ("stream", stream, events),
            ("astream", run_async(astream), run_async(aevents)),
        ]


def _has_text(chunk: Any) -> bool:
    return bool(chunk.text)


def _is_answer(event: Any) -> bool:
    return getattr(event.sdk_message, "type", "") == "assistant"


def _lap(
    clock: Clock, began: float, items: Iterable[Any], is_text: Callable[[Any], bool], least: int
) -> Lap:
    first, seen = 0.0, 0
    for item in items:
        if not first and is_text(item):
            first = clock()
        seen += 1
    return _finished(began, first, clock(), seen, least)


async def _alap(
    clock: Clock,
    began: float,
    items: AsyncIterable[Any],
    is_text: Callable[[Any], bool],
    least: int,
) -> Lap:
    first, seen = 0.0, 0
    async for item in items:
        if not first and is_text(item):
            first = clock()
        seen += 1
    return _finished(began, first, clock(), seen, least)


def _finished(began: float, first: float, ended: float, seen: int, least: int) -> Lap:
    if not first or seen < least:
        raise AssertionError(f"{seen} chunks or events instead of {least} and more")
    return Lap(first - began, ended - first)
