"""The warm executor, prompts and fallbacks on the fake: the same clauses as on the real bridge."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage

from langchain_cursor import ChatCursor
from langchain_cursor.agents import GUARDRAIL
from langchain_cursor_fakes import FakeCursor
from tests.bridge.test_processes import _runtime
from tests.conftest import until

pytestmark = pytest.mark.fake

SYSTEM = [SystemMessage("Be brief."), HumanMessage("say: hi")]


@pytest.fixture
def chat() -> Any:
    """Makes models on a fake, and closes them."""
    made: list[ChatCursor] = []

    def make(fake: FakeCursor, **arguments: Any) -> ChatCursor:
        made.append(ChatCursor(sdk_loader=fake.sdk, **arguments))
        return made[-1]

    yield make
    for model in made:
        model.close()


Chat = Callable[..., ChatCursor]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.clause("WARM-1")
def test_prewarm_builds_the_executor_without_a_run(chat: Chat) -> None:
    fake = FakeCursor()
    model = chat(fake)
    model.prewarm()
    assert (fake.executor_builds, len(fake.runs)) == (1, 0)
    model.invoke("x")
    assert fake.executor_builds == 1


@pytest.mark.clause("WARM-3")
async def test_concurrent_first_calls_build_one_executor(chat: Chat) -> None:
    fake = FakeCursor()
    model = chat(fake)
    await asyncio.gather(*(model.ainvoke("x") for _ in range(20)))
    assert fake.executor_builds == 1


@pytest.mark.clause("WARM-4")
def test_the_executor_expires_after_keep_alive_and_is_built_again(chat: Chat) -> None:
    fake = FakeCursor()
    model = chat(fake, keep_alive=0.05)
    model.invoke("x")
    runtime = _runtime(model)
    assert until(lambda: not runtime._lease.held, 2)
    assert until(lambda: not runtime._retired and not runtime._behind, 2)
    model.invoke("x")
    assert fake.executor_builds == 2


@pytest.mark.clause("WARM-5")
def test_with_and_without_sandbox_are_two_executors(chat: Chat) -> None:
    fake = FakeCursor()
    model = chat(fake)
    model.invoke("x")
    model.model_copy(update={"sandbox": False}).invoke("x")
    assert until(lambda: fake.executor_builds == 2)


@pytest.mark.clause("WARM-11")
def test_the_longest_keep_alive_of_two_models_holds(chat: Chat) -> None:
    fake = FakeCursor()
    model = chat(fake, keep_alive=30)
    model.invoke("x")
    chat(fake, keep_alive=0.02).invoke("x")
    time.sleep(0.1)
    assert _runtime(model)._lease.held


@pytest.mark.clause("WARM-13")
def test_many_calls_over_expiries_leave_no_open_agent(chat: Chat) -> None:
    fake = FakeCursor()
    model = chat(fake, keep_alive=0.05)
    for _ in range(3):
        model.batch(["x"] * 100)
        assert until(lambda: not _runtime(model)._lease.held, 2)
    fake.assert_closed(timeout=2)
    gc.collect()
    assert fake.bridge_starts == 1


@pytest.mark.clause("AGENTS-6")
@pytest.mark.clause("SECURITY-5")
@pytest.mark.parametrize("version", ["0.1.9", "1.0.24"])
def test_an_sdk_without_tools_answers_with_a_guardrail_and_one_warning(
    chat: Chat, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    fake = FakeCursor(version=version)
    model = chat(fake)
    for _ in range(2):
        assert model.invoke(SYSTEM).text == "hi"
    for run in fake.runs:
        turns = [(turn.role, turn.text) for turn in run.turns]
        assert turns == [("system", GUARDRAIL), ("system", "Be brief."), ("user", "say: hi")]
    assert not _runtime(model)._lease.held
    told = [text for text in _warnings(caplog) if "cannot deny an agent its tools" in text]
    assert len(told) == 1


@pytest.mark.clause("AGENTS-6")
def test_1_0_29_has_tools_but_no_system_prompt(chat: Chat) -> None:
    fake = FakeCursor(version="1.0.29")
    chat(fake).invoke(SYSTEM)
    assert fake.runs[0].received.system_prompt is None
    assert [turn.role for turn in fake.runs[0].turns] == ["system", "user"]
    assert fake.runs[0].received.allowed_tools == ""
