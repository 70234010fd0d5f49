"""Other SDKs than the installed one, through `sdk_loader`."""

from __future__ import annotations

import types
from collections.abc import Callable

import cursor_sdk
import pytest

from langchain_cursor import ChatCursor
from langchain_cursor_fakes import CursorCloud
from tests.behaviour.sdks import older_sdk

pytestmark = pytest.mark.bridge

Chat = Callable[..., ChatCursor]


@pytest.mark.clause("AGENTS-6")
def test_an_sdk_without_tools_keeps_no_executor(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat(sdk_loader=older_sdk, bridge_extension=False)
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
