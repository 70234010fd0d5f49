"""LangChain's wrappers around a model: what they do with its errors and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, ModelRetryMiddleware
from langchain_core.runnables import ConfigurableField, Runnable

from langchain_cursor import (
    ChatCursor,
    CursorAuthenticationError,
    CursorError,
    CursorTimeoutError,
)
from langchain_cursor_fakes import Error, FakeCursor, Hang

pytestmark = pytest.mark.fake

OVERLOADED = [Error("unavailable", "busy"), Error("resource_exhausted", "slow down")]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def model(stack: ExitStack, fake: FakeCursor) -> ChatCursor:
    return stack.enter_context(ChatCursor(sdk_loader=fake.sdk, max_retries=0))


def answer(runnable: Runnable[Any, Any]) -> str:
    given: Any = {"messages": [("human", "x")]}
    text: str = runnable.invoke(given)["messages"][-1].text
    return text


@pytest.mark.clause("ERRORS-9")
def test_with_retry_does_not_try_a_refused_key_again(stack: ExitStack) -> None:
    fake = FakeCursor(lambda run: [Error("unauthenticated", "not you")])
    patient = model(stack, fake).with_retry(wait_exponential_jitter=False)
    with pytest.raises(CursorAuthenticationError):
        patient.invoke("x")
    assert len(fake.runs) == 1


@pytest.mark.clause("ERRORS-9")
@pytest.mark.parametrize("failure", OVERLOADED, ids=lambda error: error.code)
def test_with_retry_tries_an_overloaded_cloud_again(stack: ExitStack, failure: Error) -> None:
    fake = FakeCursor([failure, failure, "Here I am."])
    patient = model(stack, fake).with_retry(wait_exponential_jitter=False)
    assert patient.invoke("x").text == "Here I am."


@pytest.mark.clause("ERRORS-9")
def test_with_retry_does_as_it_is_told(stack: ExitStack) -> None:
    fake = FakeCursor([OVERLOADED[0], "Here I am."])
    told = model(stack, fake).with_retry(retry_if_exception_type=(KeyError,))
    with pytest.raises(CursorError, match="busy"):
        told.invoke("x")
    assert len(fake.runs) == 1


@pytest.mark.clause("ERRORS-9")
def test_retry_middleware_does_not_try_a_refused_key_again(stack: ExitStack) -> None:
    fake = FakeCursor(lambda run: [Error("unauthenticated", "not you")])
    middleware = ModelRetryMiddleware(initial_delay=0)
    with pytest.raises(CursorAuthenticationError):
        answer(create_agent(model(stack, fake), middleware=[middleware]))
    assert len(fake.runs) == 1


@pytest.mark.clause("ERRORS-9")
@pytest.mark.parametrize("failure", OVERLOADED, ids=lambda error: error.code)
def test_retry_middleware_tries_an_overloaded_cloud_again(stack: ExitStack, failure: Error) -> None:
    fake = FakeCursor([failure, "Here I am."])
    middleware = ModelRetryMiddleware(initial_delay=0)
    assert answer(create_agent(model(stack, fake), middleware=[middleware])) == "Here I am."


@pytest.mark.clause("ERRORS-9")
@pytest.mark.parametrize(
    "failure", [*OVERLOADED, Error("unauthenticated", "not you")], ids=lambda error: error.code
)
def test_fallbacks_take_over_whatever_failed(stack: ExitStack, failure: Error) -> None:
    first = model(stack, FakeCursor(lambda run: [failure]))
    second = model(stack, FakeCursor(lambda run: "Second."))
    assert first.with_fallbacks([second]).invoke("x").text == "Second."
    agent = create_agent(first, middleware=[ModelFallbackMiddleware(second)])
    assert answer(agent) == "Second."


@pytest.mark.clause("CHAT-6")
@pytest.mark.parametrize("way", ["call", "bind", "configurable"])
def test_a_time_limit_can_be_given_per_call(stack: ExitStack, way: str) -> None:
    llm = model(stack, FakeCursor(lambda run: [Hang()]))
    configurable = llm.configurable_fields(timeout=ConfigurableField(id="seconds"))
    calls: dict[str, Callable[[], object]] = {
        "call": lambda: llm.invoke("x", timeout=0.1),
        "bind": lambda: llm.bind(timeout=0.1).invoke("x"),
        "configurable": lambda: configurable.invoke("x", {"configurable": {"seconds": 0.1}}),
    }
    with pytest.raises(CursorTimeoutError, match=r"within 0\.1 s"):
        calls[way]()
