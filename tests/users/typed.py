"""A user's program, which a type checker must find right in every line but the marked ones."""

from __future__ import annotations

import re
from typing import Any

from langchain_core.language_models.base import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import ToolCall
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from pydantic import BaseModel
from typing_extensions import assert_type

from langchain_cursor import (
    ChatCursor,
    CursorContractError,
    CursorError,
    CursorRateLimitError,
    ModelInfo,
    alist_models,
    list_models,
)
from langchain_cursor_fakes import (
    CursorCloud,
    Delays,
    FakeCursor,
    FakeReply,
    ReceivedRun,
    Script,
    Step,
    Text,
    tool_call,
    violation,
)


class City(BaseModel):
    name: str


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return city


def make() -> ChatCursor:
    fake = FakeCursor(["Hello", tool_call("get_weather", {"city": "Bern"})])
    return ChatCursor(
        model="composer-2.5",
        model_params={"effort": "high"},
        api_key=None,
        base_url="http://127.0.0.1:1",
        keep_alive=30,
        prewarm=True,
        sandbox=False,
        native_system_prompt=None,
        timeout=None,
        max_retries=0,
        stop=["END"],
        streaming=True,
        bridges="auto",
        cache_model_catalog=False,
        sdk_loader=fake.sdk,
    )


def call(llm: ChatCursor) -> None:
    assert_type(llm.invoke("Hi"), AIMessage)
    assert_type(llm.batch(["Hi", [("human", "Hi")]]), list[AIMessage])
    for chunk in llm.stream("Hi"):
        assert_type(chunk, AIMessageChunk)
    with_tools = llm.bind_tools([get_weather], tool_choice="any")
    assert_type(with_tools, Runnable[LanguageModelInput, AIMessage])
    assert_type(with_tools.invoke("Hi").tool_calls, list[ToolCall])
    city = llm.with_structured_output(City, method="json_schema", include_raw=True)
    assert_type(city, Runnable[LanguageModelInput, dict[str, Any] | BaseModel])
    assert_type(list_models(api_key="key"), tuple[ModelInfo, ...])
    assert_type(llm.prewarm(), None)
    with llm as same:
        assert_type(same, ChatCursor)


async def call_async(llm: ChatCursor) -> None:
    async with llm as same:
        assert_type(await same.ainvoke("Hi"), AIMessage)
    async for chunk in llm.astream("Hi"):
        assert_type(chunk, AIMessageChunk)
    assert_type(await alist_models(), tuple[ModelInfo, ...])
    await llm.aprewarm()
    await llm.aclose()


def fail(llm: ChatCursor) -> None:
    try:
        llm.invoke("Hi")
    except CursorRateLimitError as error:
        assert_type(error.retry_after, float | None)
    except CursorContractError as error:
        assert_type(error.llm_output, str | None)
    except CursorError as error:
        assert_type(error.code, str | None)
        assert_type(error.is_retryable, bool)


def brain(run: ReceivedRun) -> list[Step]:
    return [Text(run.text)]


def test_doubles() -> None:
    with CursorCloud(brain, delays=Delays(first_token=0.1)) as cloud:
        assert_type(cloud.url, str)
        assert_type(cloud.runs[0].received, ReceivedRun)
        cloud.wait_for(lambda seen: seen.executor_builds == 1)
    fake = FakeCursor(["Hello", [Text("a"), "b"], ValueError])
    rules = {"a": "b"}
    fake.reply_with(rules)
    script: Script = {re.compile("a"): [Text("b")], "c": lambda run: run.question}
    fake.reply_with(script)
    reply: FakeReply = violation("prose")
    fake.reply_with([reply])
    assert_type(fake.runs[0].prompt, str)
    fake.assert_prompted("Hi", times=1)


def be_wrong(llm: ChatCursor) -> None:
    ChatCursor(modle="x")  # type: ignore[call-arg]
    ChatCursor(keep_alive="long")  # type: ignore[arg-type]
    llm.invoke(1)  # type: ignore[arg-type]
    llm.with_structured_output(City, method="guess")  # type: ignore[arg-type]
    Text(1)  # type: ignore[arg-type]
