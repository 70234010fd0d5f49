"""Streams through the real SDK and its real bridge."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool

from langchain_cursor import ChatCursor, CursorError, CursorRateLimitError, CursorTimeoutError
from langchain_cursor_fakes import CursorCloud, Delay, Error, Hang, Text

pytestmark = pytest.mark.bridge

Chat = Callable[..., ChatCursor]


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def _texts(chunks: list[Any]) -> list[str]:
    return [chunk.content for chunk in chunks if chunk.content]


def _whole(chunks: list[Any]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert isinstance(whole, AIMessageChunk)
    return whole


@pytest.mark.clause("STREAM-9")
def test_the_first_text_does_not_wait_for_the_last(chat: Chat, cloud: CursorCloud) -> None:
    chat().invoke("x")
    cloud.brain = lambda run: [Text("first "), Delay(1.0), Text("last")]
    started = time.monotonic()
    stream = chat().stream("x")
    assert next(stream).content == "first "
    assert time.monotonic() - started < 0.8
    assert _texts(list(stream)) == ["last"]


class Tokens(BaseCallbackHandler):
    """Notes the tokens that callbacks get."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        if token:
            self.tokens.append(token)


@pytest.mark.clause("STREAM-12")
def test_callbacks_see_each_token_once(chat: Chat) -> None:
    for model, call in ((chat(), "stream"), (chat(streaming=True), "invoke")):
        tokens = Tokens()
        result = getattr(model, call)("say: one two", config={"callbacks": [tokens]})
        if call == "stream":
            list(result)
        assert tokens.tokens == ["one ", "two"]


@pytest.mark.clause("STREAM-12")
@pytest.mark.asyncio
async def test_event_streams_see_each_token_once(chat: Chat) -> None:
    events = [event async for event in chat().astream_events("say: one two", version="v2")]
    tokens = [
        event["data"]["chunk"].content
        for event in events
        if event["event"] == "on_chat_model_stream" and event["data"]["chunk"].content
    ]
    assert tokens == ["one ", "two"]


@pytest.mark.clause("STREAM-12")
def test_the_third_version_of_events_has_each_token_once(chat: Chat) -> None:
    stream = chat().stream_events("say: one two", version="v3")
    deltas = [event["delta"]["text"] for event in stream if "delta" in event]
    assert deltas == ["one ", "two"]
    assert stream.output.text == "one two"


@pytest.mark.clause("STREAM-12")
@pytest.mark.asyncio
async def test_so_it_has_when_it_is_async(chat: Chat) -> None:
    stream = await chat().astream_events("say: one two", version="v3")
    deltas = [event["delta"]["text"] async for event in stream if "delta" in event]
    assert deltas == ["one ", "two"]
    assert (await stream.output).text == "one two"


@pytest.mark.clause("STREAM-12")
def test_langgraph_streams_messages(chat: Chat) -> None:
    agent = create_agent(chat(), tools=[get_weather])
    given: Any = {"messages": [("human", 'get_weather for "Bern"')]}
    pieces = [
        message.content
        for message, _ in agent.stream(given, stream_mode="messages")
        if isinstance(message, AIMessageChunk) and message.content
    ]
    assert len(pieces) > 3
    assert "".join(pieces) == "get_weather returned: It is sunny in Bern."


@pytest.mark.clause("STREAM-13")
def test_abandoning_a_stream_cancels_the_run(chat: Chat, cloud: CursorCloud) -> None:
    cloud.brain = lambda run: [Text("a "), Hang()]
    for chunk in chat().stream("x"):
        assert chunk.content == "a "
        break
    gc.collect()
    cloud.wait_for(lambda cloud: cloud.runs[0].outcome == "cancelled", timeout=1)


@pytest.mark.clause("STREAM-14")
def test_a_stream_ends_with_its_timeout(chat: Chat, cloud: CursorCloud) -> None:
    cloud.brain = lambda run: [Text("a "), Hang()]
    read: list[str] = []
    with pytest.raises(CursorTimeoutError):
        read.extend(str(chunk.content) for chunk in chat(timeout=0.5).stream("x"))
    cloud.wait_for(lambda cloud: cloud.runs[0].outcome == "cancelled", timeout=1)


@pytest.mark.clause("STREAM-15")
def test_a_failure_is_tried_again_as_long_as_nothing_was_shown(
    chat: Chat, cloud: CursorCloud
) -> None:
    scripts: Any = iter([[Error("unavailable", "busy")], [Text("ok")]])
    cloud.brain = lambda run: next(scripts)
    assert _texts(list(chat().stream("x"))) == ["ok"]
    scripts = iter([[Text("half "), Error("resource_exhausted", "busy")], [Text("ok")]])
    read: list[str] = []
    with pytest.raises(CursorRateLimitError):
        read.extend(str(chunk.content) for chunk in chat().stream("x"))
    assert len(cloud.runs) == 3  # not tried again: a reader may have seen "half "


@pytest.mark.clause("STREAM-16")
def test_a_reader_that_pauses_blocks_nobody(chat: Chat, cloud: CursorCloud) -> None:
    model = chat()
    stream = model.stream("count to 3000")
    assert next(stream).content == "1 "
    for word in ("one", "two"):
        assert model.invoke(f"say: {word}").text == word
    assert _texts(list(stream))[-1] == "3000"


@pytest.mark.clause("STREAM-16")
def test_an_error_after_close_is_clear(own_chat: Chat, cloud: CursorCloud) -> None:
    cloud.brain = lambda run: [Text("a "), Hang()]
    model = own_chat()
    stream = model.stream("x")
    next(stream)
    model.close()
    with pytest.raises(CursorError, match="close"):
        list(stream)


@pytest.mark.clause("STREAM-14")
def test_the_time_that_a_reader_takes_does_not_count(chat: Chat, cloud: CursorCloud) -> None:
    stream = chat(timeout=1.5).stream("count to 1500")
    next(stream)
    time.sleep(2)
    assert _texts(list(stream))[-1] == "1500"
