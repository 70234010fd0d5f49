"""What a call held is free when the call has ended, without Python's cyclic collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langchain_cursor import ChatCursor, CursorError
from langchain_cursor.loop import Job
from langchain_cursor.runtime import CallSettings
from langchain_cursor.serializer import Prompt
from langchain_cursor_fakes import Error, FakeCursor
from tests.conftest import until

# Whatever a call keeps alive keeps one of these.
_HELD = (HumanMessage, Prompt, CallSettings, Job)


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _left() -> list[Any]:
    return [each for each in gc.get_objects() if isinstance(each, _HELD)]


def _invoke(llm: ChatCursor) -> None:
    llm.invoke("x")


def _stream(llm: ChatCursor) -> None:
    for _ in llm.stream("x"):
        pass


def _leave_a_stream(llm: ChatCursor) -> None:
    next(llm.stream("x"))


def _ainvoke(llm: ChatCursor) -> None:
    asyncio.run(llm.ainvoke("x"))


async def _read(llm: ChatCursor) -> None:
    async for _ in llm.astream("x"):
        pass


def _astream(llm: ChatCursor) -> None:
    asyncio.run(_read(llm))


CALLS = [_invoke, _stream, _leave_a_stream, _ainvoke, _astream]
# In LangChain's own `agenerate` and `astream` an exception and its traceback keep each other.
FAILING = [_invoke, _stream, _leave_a_stream]


@pytest.mark.clause("RUNTIME-19")
@pytest.mark.parametrize("call", CALLS)
def test_a_call_leaves_nothing_to_the_cyclic_collector(call: Callable[[ChatCursor], None]) -> None:
    before = len(_left())
    with ChatCursor(sdk_loader=FakeCursor().sdk) as llm:
        call(llm)
        assert until(lambda: len(_left()) <= before, 2), _left()


@pytest.mark.clause("RUNTIME-19")
@pytest.mark.parametrize("call", FAILING)
def test_nor_does_a_call_that_fails(call: Callable[[ChatCursor], None]) -> None:
    before = len(_left())
    fake = FakeCursor(lambda run: [Error("permission_denied", "no")])
    with ChatCursor(sdk_loader=fake.sdk) as llm:
        with suppress(CursorError):
            call(llm)
        assert len(fake.runs) == 1
        assert until(lambda: len(_left()) <= before, 2), _left()
