"""Streams: pieces as they come, tool calls that are never shown as text, an end that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage

from langchain_cursor import CursorRateLimitError
from langchain_cursor_fakes import Error, Hang, Text, Thinking, misbehave
from tests.behaviour.backends import UNFINISHED, Backend, backends, runs, scripted
from tests.behaviour.test_tools import get_weather


def _texts(chunks: Sequence[BaseMessage]) -> list[str]:
    return [str(chunk.content) for chunk in chunks if chunk.content]


def _whole(chunks: Sequence[Any]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert isinstance(whole, AIMessageChunk)
    return whole


@pytest.mark.clause("STREAM-9")
async def test_a_stream_says_what_a_message_would(backend: Backend) -> None:
    chunks = [chunk async for chunk in backend.chat().astream("say: one two three")]
    backend.check_answer("".join(_texts(chunks)), "one two three", gist="two")


@scripted
@pytest.mark.clause("STREAM-9")
async def test_text_comes_in_the_pieces_that_cursor_sends(backend: Backend) -> None:
    model = backend.chat()
    assert _texts(list(model.stream("say: one two three"))) == ["one ", "two ", "three"]
    assert _texts([chunk async for chunk in model.astream("say: a b")]) == ["a ", "b"]


@pytest.mark.clause("STREAM-10")
def test_a_stream_ends_with_tokens_and_metadata(backend: Backend) -> None:
    chunks: list[Any] = list(backend.chat().stream("count to 5"))
    assert len({chunk.id for chunk in chunks}) == 1
    last = chunks[-1]
    assert last.chunk_position == "last"
    assert last.usage_metadata["output_tokens"] > 0
    assert last.response_metadata["model_provider"] == "cursor"
    assert [chunk.usage_metadata for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert _whole(chunks).id == last.response_metadata["run_id"]


@scripted
@pytest.mark.clause("STREAM-10")
def test_reasoning_is_streamed_too(backend: Backend) -> None:
    backend.script([Thinking("hm "), Thinking("so"), Text("a "), Text("b")])
    chunks: list[Any] = list(backend.chat().stream("x"))
    reasoning = [chunk.additional_kwargs.get("reasoning_content") for chunk in chunks]
    assert reasoning[:3] == ["hm ", "so", None]
    assert chunks[-1].usage_metadata["output_tokens"] == 2
    assert [block["type"] for block in _whole(chunks).content_blocks] == ["reasoning", "text"]


@runs(2)
@pytest.mark.clause("STREAM-11")
def test_a_call_comes_as_chunks(backend: Backend) -> None:
    chunks = list(backend.chat().bind_tools([get_weather]).stream('get_weather for "Bern"'))
    (call,) = _whole(chunks).tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Bern"})
    assert call["id"]


@scripted
@pytest.mark.clause("STREAM-11")
def test_the_json_of_a_call_is_never_shown(backend: Backend) -> None:
    backend.script(misbehave("prose_before"))
    chunks = list(backend.chat().bind_tools([get_weather]).stream('get_weather for "Bern"'))
    assert "".join(_texts(chunks)) == "Let me look that up."
    assert [call["name"] for call in _whole(chunks).tool_calls] == ["get_weather"]


@scripted
@pytest.mark.clause("STREAM-11")
def test_a_re_ask_inside_a_stream_does_not_show(backend: Backend) -> None:
    backend.script(misbehave("wrong_tool"))
    chunks = list(backend.chat().bind_tools([get_weather]).stream('get_weather for "Bern"'))
    assert _texts(chunks) == []
    assert [call["name"] for call in _whole(chunks).tool_calls] == ["get_weather"]
    assert len(backend.received) == 2


@scripted
@pytest.mark.clause("STREAM-15")
def test_what_was_shown_is_not_begun_anew(backend: Backend) -> None:
    backend.script([Text("half "), Error("resource_exhausted", "slow down")])
    read: list[BaseMessage] = []
    with pytest.raises(CursorRateLimitError, match="slow down"):
        read.extend(backend.chat().stream("x"))
    assert len(backend.received) == 1


@backends("fake", "bridge", because=UNFINISHED)
@pytest.mark.clause("STREAM-13")
def test_closing_a_stream_cancels_the_run(backend: Backend) -> None:
    backend.script([Text("a "), Hang()])
    stream: Any = backend.chat().stream("x")
    assert next(stream).content == "a "
    stream.close()
    backend.wait_for_outcomes("cancelled")


@backends("fake", "bridge", because=UNFINISHED)
@pytest.mark.clause("STREAM-13")
def test_cancelling_a_reader_cancels_the_run(backend: Backend) -> None:
    backend.script([Text("a "), Hang()])

    async def read() -> None:
        began = asyncio.Event()

        async def reader() -> None:
            async for _ in backend.chat().astream("x"):
                began.set()

        task = asyncio.create_task(reader())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(read())
    backend.wait_for_outcomes("cancelled")
