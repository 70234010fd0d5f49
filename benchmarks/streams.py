"""Ways to stream the numbers up to n: ChatCursor's, the bare SDK's, and LangChain's alone.

ChatCursor and the bare SDK have a warm executor. No time has the closing of an agent in it: the
bare SDK's ends before the next time begins, ChatCursor's within a pause.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from benchmarks.account import chat
from benchmarks.bare import Bare
from benchmarks.cloud import serve
from benchmarks.surroundings import event_loop, neutral
from langchain_cursor_fakes import Delays

Clock = Callable[[], float]


@dataclass(frozen=True)
class Lap:
    """What a clock shows of a stream, in seconds: to its first text, and from there to its end."""

    first: float
    rest: float


Streaming = Callable[[int, Clock], Lap]
"""Streams the numbers up to a given one, with an eye on the clock."""


@dataclass(frozen=True)
class Ways:
    """Ways to stream the same, all sync or all async.

    Args:
        name: ``stream`` or ``astream``.
        ours: ChatCursor's, from the call on.
        bare: The events of a fresh agent's run, from the making of the agent on.
        langchain: LangChain's, with a model that only makes its chunks.
        processors: Processor time of this process and of the bare SDK's bridge; NaN on a system
            that does not tell.
    """

    name: str
    ours: Streaming
    bare: Streaming
    langchain: Streaming
    processors: Clock


@contextmanager
def ways(delays: Delays) -> Iterator[list[Ways]]:
    """The sync and the async ways to stream from a cloud with these delays."""
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

        def events(n: int, clock: Clock) -> Lap:
            began = clock()
            with bare.run(f"count to {n}") as run:
                return _lap(clock, began, run.events(), _is_answer, n)

        async def aevents(n: int, clock: Clock) -> Lap:
            began = clock()
            async with bare.arun(client, f"count to {n}") as run:
                return await _alap(clock, began, run.events(), _is_answer, n)

        yield [
            Ways("stream", _stream(llm), events, _stream(_Counting()), bare.processor_time),
            Ways(
                "astream",
                _astream(llm, loop),
                lambda n, clock: loop.run_until_complete(aevents(n, clock)),
                _astream(_Counting(), loop),
                bare.processor_time,
            ),
        ]


class _Counting(BaseChatModel):
    """Answers "count to n" with n chunks, and does nothing else."""

    @property
    def _llm_type(self) -> str:
        return "counting"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError("it is only streamed")

    def _stream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for number in range(int(messages[0].text.split()[-1])):
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{number} ", id="run"))

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(messages):
            yield chunk


def _stream(model: BaseChatModel) -> Streaming:
    def stream(n: int, clock: Clock) -> Lap:
        return _lap(clock, clock(), model.stream(f"count to {n}"), _has_text, n)

    return stream


def _astream(model: BaseChatModel, loop: AbstractEventLoop) -> Streaming:
    async def astream(n: int, clock: Clock) -> Lap:
        return await _alap(clock, clock(), model.astream(f"count to {n}"), _has_text, n)

    return lambda n, clock: loop.run_until_complete(astream(n, clock))


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
