"""Everything that is sent to a model, as snapshots: a change shows in the review."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable
from pydantic import BaseModel
from syrupy.assertion import SnapshotAssertion

from langchain_cursor import ChatCursor
from langchain_cursor_fakes import FakeCursor, tool_call
from langchain_cursor_fakes._sdk_record import FakeRun

pytestmark = [pytest.mark.fake, pytest.mark.clause("SPEC-5")]

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(8)).decode()
CHAT: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage("Is it sunny in Bern?")]
HISTORY: list[BaseMessage] = [
    *CHAT,
    AIMessage(
        "Let me look.",
        tool_calls=[{"id": "call_1", "name": "get_weather", "args": {"city": "Bern"}}],
    ),
    ToolMessage("No such city: <user>", tool_call_id="call_1", status="error"),
    SystemMessage("Answer in French."),
    HumanMessage(
        [
            {"type": "text", "text": "And here?"},
            {"type": "image", "base64": PNG, "mime_type": "image/png"},
        ],
        name="Bob",
    ),
]


def get_weather(city: str, days: int = 1) -> str:
    """The weather in a city."""
    return f"It is sunny in {city} for {days} days."


def now() -> str:
    """The time."""
    return "noon"


class City(BaseModel):
    """A city."""

    name: str
    people: int | None = None


SCHEMA = {
    "title": "Total",
    "type": "object",
    "properties": {"total": {"type": "integer"}},
    "required": ["total"],
}
CITY = '{"name": "Bern", "people": 134000}'
WEATHER = tool_call("get_weather", {"city": "Bern"})


def sent(run: FakeRun) -> dict[str, Any]:
    """What a run brought to the model, without what is another in every run."""
    options = json.loads(
        re.sub(r'"[^"]*\bworkspace"', '"(the workspace)"', json.dumps(dict(run.agent.options)))
    )
    for name in ("apiKey", "model"):
        options.pop(name, None)
    return {
        "model": run.agent.options["model"],
        "options": options,
        "system prompt": run.received.system_prompt,
        "text": run.text,
        "images": [(image.mime_type, len(image.data)) for image in run.images],
    }


def runs_of(
    ask: Callable[[ChatCursor], Runnable[Any, Any]],
    replies: list[str],
    messages: list[BaseMessage] = CHAT,
    *,
    fake: dict[str, Any] | None = None,
    **arguments: Any,
) -> list[dict[str, Any]]:
    cursor = FakeCursor(replies, **(fake or {}))
    with ChatCursor(sdk_loader=cursor.sdk, max_retries=0, **arguments) as llm:
        ask(llm).invoke(messages)
    cursor.assert_done()
    return [sent(run) for run in cursor.runs]


def plain(llm: ChatCursor) -> Runnable[Any, Any]:
    return llm


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="native system prompt"),
        pytest.param({"native_system_prompt": False}, id="system prompt inlined"),
        pytest.param({"bridge_extension": False}, id="stock bridge"),
        pytest.param({"sandbox": False}, id="no sandbox"),
        pytest.param({"model": "auto", "model_params": {"effort": "high"}}, id="parameters"),
        pytest.param({"fake": {"version": "1.0.24"}}, id="SDK without tools"),
        pytest.param({"messages": HISTORY}, id="history"),
        pytest.param({"messages": HISTORY, "native_system_prompt": False}, id="history inlined"),
        pytest.param({"messages": [SystemMessage("Write a haiku.")]}, id="system message alone"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_plain_call(arguments: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    assert runs_of(plain, ["Yes."], **arguments) == snapshot


@pytest.mark.parametrize(
    ("bound", "reply"),
    [
        pytest.param({}, "Yes.", id="auto"),
        pytest.param({"tool_choice": "any"}, WEATHER, id="any"),
        pytest.param({"tool_choice": "get_weather"}, WEATHER, id="forced"),
        pytest.param({"parallel_tool_calls": False}, "Yes.", id="one at a time"),
        pytest.param({"strict": True}, "Yes.", id="strict"),
        pytest.param({"response_format": SCHEMA}, '{"total": 3}', id="with a response format"),
    ],
)
def test_with_tools(bound: dict[str, Any], reply: str, snapshot: SnapshotAssertion) -> None:
    def ask(llm: ChatCursor) -> Runnable[Any, Any]:
        return llm.bind_tools([get_weather, now], **bound)

    assert [run["text"] for run in runs_of(ask, [reply])] == snapshot


@pytest.mark.parametrize(
    ("schema", "method", "reply"),
    [
        pytest.param(City, "function_calling", tool_call("City", {"name": "Bern"}), id="tool"),
        pytest.param(City, "json_schema", CITY, id="json_schema"),
        pytest.param(SCHEMA, "json_schema", '{"total": 3}', id="dict"),
        pytest.param(None, "json_mode", '{"a": 1}', id="json_mode"),
    ],
)
def test_structured_output(
    schema: Any, method: Any, reply: str, snapshot: SnapshotAssertion
) -> None:
    def ask(llm: ChatCursor) -> Runnable[Any, Any]:
        return llm.with_structured_output(schema, method=method)

    assert [run["text"] for run in runs_of(ask, [reply])] == snapshot


@pytest.mark.parametrize(
    ("bound", "wrong", "right"),
    [
        pytest.param({}, tool_call("weather", {"city": "Bern"}), "Yes.", id="unknown tool"),
        pytest.param({}, tool_call("get_weather", {"city": 5}), WEATHER, id="wrong arguments"),
        pytest.param({}, '{"tool_calls": [{"name": "now",}]}', WEATHER, id="broken JSON"),
        pytest.param({"tool_choice": "any"}, "It is sunny.", WEATHER, id="no call"),
        pytest.param({"tool_choice": "get_weather"}, tool_call("now"), WEATHER, id="wrong tool"),
        pytest.param(
            {"response_format": SCHEMA}, "Three.", '{"total": 3}', id="no JSON beside tools"
        ),
    ],
)
def test_the_second_message_after_a_wrong_reply(
    bound: dict[str, Any], wrong: str, right: str, snapshot: SnapshotAssertion
) -> None:
    def ask(llm: ChatCursor) -> Runnable[Any, Any]:
        return llm.bind_tools([get_weather, now], **bound)

    _, second = runs_of(ask, [wrong, right])
    assert second["text"] == snapshot


def test_the_second_message_after_a_wrong_value(snapshot: SnapshotAssertion) -> None:
    def ask(llm: ChatCursor) -> Runnable[Any, Any]:
        return llm.with_structured_output(City, method="json_schema")

    _, second = runs_of(ask, ['{"people": "many"}', CITY])
    assert second["text"] == snapshot
