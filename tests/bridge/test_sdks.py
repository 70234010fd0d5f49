"""Other SDKs than the installed one, through `sdk_loader`."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import cursor_sdk
import pytest

from langchain_cursor import ChatCursor
from langchain_cursor.agents import GUARDRAIL
from langchain_cursor.serializer import parse
from langchain_cursor_fakes import CursorCloud

pytestmark = pytest.mark.bridge

Chat = Callable[..., ChatCursor]


@dataclasses.dataclass(frozen=True)
class OldAgentOptions:
    """`AgentOptions` as it was before cursor-sdk 1.0.29: without `tools`."""

    model: Any = None
    api_key: str | None = None
    local: Any = None

    def to_json(self) -> dict[str, Any]:
        return cursor_sdk.AgentOptions(self.model, self.api_key, local=self.local).to_json()


def old_sdk() -> types.ModuleType:
    """The installed SDK with the options of an older one, on the real bridge."""
    module = types.ModuleType("cursor_sdk")
    module.__dict__.update(
        {name: value for name, value in vars(cursor_sdk).items() if not name.startswith("__")},
        __file__=cursor_sdk.__file__,
        AgentOptions=OldAgentOptions,
        AsyncClient=OldClient,
    )
    return module


class OldClient(cursor_sdk.AsyncClient):
    """Knows its own options class."""

    async def create_agent(self, options: Any = None, **named: Any) -> Any:
        return await super().create_agent(options.to_json(), **named)


@pytest.mark.clause("AGENTS-6")
def test_an_sdk_without_tools_answers_with_a_guardrail_and_one_warning(
    own_chat: Chat, cloud: CursorCloud, caplog: pytest.LogCaptureFixture
) -> None:
    model = own_chat(sdk_loader=old_sdk, bridge_extension=False)
    for _ in range(2):
        assert model.invoke([("system", "Be brief."), ("human", "say: old")]).text == "old"
    for run in cloud.runs:
        assert run.received.allowed_tools is None
        turns = parse(run.received.text)
        assert [(turn.role, turn.text) for turn in turns] == [
            ("system", GUARDRAIL), ("system", "Be brief."), ("user", "say: old"),
        ]  # fmt: skip
    told = [r.getMessage() for r in caplog.records if "cannot deny an agent its tools" in r.msg]
    assert len(told) == 1


@pytest.mark.clause("AGENTS-6")
def test_an_sdk_without_tools_keeps_no_executor(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat(sdk_loader=old_sdk, bridge_extension=False)
    for _ in range(2):
        model.invoke("x")
        from tests.bridge.test_processes import _runtime

        assert not _runtime(model)._lease.held


@pytest.mark.clause("CHAT-12")
def test_a_loaders_error_reaches_the_caller_as_it_is(own_chat: Chat) -> None:
    class NotToday(Exception):
        pass

    def loader() -> types.ModuleType:
        raise NotToday("no SDK on Sundays")

    with pytest.raises(NotToday, match="no SDK on Sundays"):
        own_chat(sdk_loader=loader).invoke("x")


@pytest.mark.clause("CHAT-12")
def test_the_loader_is_called_once_per_runtime_and_stays_out_of_the_cache_key(
    own_chat: Chat,
) -> None:
    calls: list[int] = []

    def loader() -> types.ModuleType:
        calls.append(1)
        return cursor_sdk

    model = own_chat(sdk_loader=loader)
    assert model.invoke("say: loaded").text == "loaded"
    model.invoke("x")
    assert len(calls) == 1
    plain = model.model_copy(update={"sdk_loader": None})
    assert model._get_llm_string() == plain._get_llm_string()
    assert "loader" not in str(model.to_json())
