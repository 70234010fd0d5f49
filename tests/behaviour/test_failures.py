"""Failures, refusals and what ChatCursor makes of them."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from langchain_core.exceptions import (
    ModelAuthenticationError,
    ModelConnectionError,
    ModelNotFoundError,
    ModelRateLimitError,
)
from langchain_core.messages import HumanMessage, SystemMessage

from langchain_cursor import (
    CursorAuthenticationError,
    CursorConnectionError,
    CursorInvalidRequestError,
    CursorModelNotFoundError,
    CursorPermissionDeniedError,
    CursorRateLimitError,
    CursorTimeoutError,
)
from langchain_cursor.agents import GUARDRAIL
from langchain_cursor.serializer import parse
from langchain_cursor_fakes import Error, Hang, Text
from tests.behaviour.backends import UNFINISHED, Backend, backends, runs, scripted

SYSTEM: list[Any] = [SystemMessage("Be brief."), HumanMessage("say: hi")]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("langchain_cursor")
    ]


def _roles(text: str) -> list[str]:
    return [turn.role for turn in parse(text)]


# --- Errors ---------------------------------------------------------------------------------------


@scripted
@pytest.mark.clause("CHAT-8")
def test_a_rate_limit_is_ours_and_langchains(backend: Backend) -> None:
    backend.script(Error("resource_exhausted", "slow down"))
    with pytest.raises(CursorRateLimitError, match="slow down") as caught:
        backend.chat(max_retries=0).invoke("x")
    assert isinstance(caught.value, ModelRateLimitError)
    assert caught.value.run_id
    assert caught.value.is_retryable


@runs(0)
@pytest.mark.clause("CHAT-8")
def test_a_model_that_is_none_is_named_with_those_there_are(backend: Backend) -> None:
    with pytest.raises(CursorModelNotFoundError, match="Available models") as caught:
        backend.chat().invoke("x", model="no-such-model")
    assert isinstance(caught.value, ModelNotFoundError)
    assert "no-such-model" in str(caught.value)
    assert not caught.value.is_retryable


@scripted
@pytest.mark.clause("CHAT-8")
def test_a_refused_key_is_told_without_the_key(backend: Backend) -> None:
    backend.given(key=False)
    model = backend.chat(max_retries=0)
    with pytest.raises(CursorAuthenticationError, match="Invalid API key") as caught:
        model.invoke("x")
    assert isinstance(caught.value, ModelAuthenticationError)
    key = model._bridge_settings().api_key
    assert key not in repr(caught.value) + str(caught.value)


@scripted
@pytest.mark.clause("ERRORS-3")
def test_a_cloud_that_is_not_reached_fails_the_run(backend: Backend) -> None:
    backend.given(cloud=False)
    with pytest.raises(CursorConnectionError, match="fetch failed") as caught:
        backend.chat(max_retries=0).invoke("x")
    assert isinstance(caught.value, ModelConnectionError)
    assert caught.value.run_id
    assert caught.value.is_retryable


@scripted
@pytest.mark.clause("CHAT-9")
def test_a_passing_failure_is_tried_again(backend: Backend) -> None:
    backend.script(Error("unavailable", "busy"), "ok")
    assert backend.chat().invoke("x").text == "ok"
    first, second = backend.received
    assert first.agent_id != second.agent_id


@scripted
@pytest.mark.clause("CHAT-9")
def test_a_lasting_failure_is_not(backend: Backend) -> None:
    backend.script(Error("permission_denied", "no"))
    with pytest.raises(CursorPermissionDeniedError, match="no"):
        backend.chat().invoke("x")
    assert len(backend.received) == 1


@backends("fake", "bridge", because=UNFINISHED)
@pytest.mark.clause("CHAT-10")
def test_a_call_ends_with_its_timeout_and_its_run_is_cancelled(backend: Backend) -> None:
    backend.script([Text("a"), Hang()])
    started = time.monotonic()
    with pytest.raises(CursorTimeoutError, match=r"0\.5 s") as caught:
        backend.chat(timeout=0.5).invoke("x")
    assert time.monotonic() - started < 3
    assert isinstance(caught.value, TimeoutError)
    backend.wait_for_outcomes("cancelled")


# --- Refusals with a way around -------------------------------------------------------------------


@scripted
@pytest.mark.clause("WARM-8")
def test_a_refused_system_prompt_is_inlined_from_then_on(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.given(system_prompts=False)
    model = backend.chat()
    started = time.monotonic()
    message = model.invoke(SYSTEM)
    assert time.monotonic() - started < 5  # one fast refusal, not the 15 s of the stock bridge
    assert message.text == "hi"
    assert message.id == message.response_metadata["run_id"]
    assert model.invoke(SYSTEM).text == "hi"
    runs = backend.received
    assert [run.system_prompt for run in runs] == ["Be brief.", None, None]
    assert [_roles(run.text) for run in runs] == [["user"], *[["system", "user"]] * 2]
    assert ["custom system prompts" in text for text in _warnings(caplog)] == [True]


@scripted
@pytest.mark.clause("WARM-8")
def test_a_refusal_inside_a_stream_does_not_show(backend: Backend) -> None:
    backend.given(system_prompts=False)
    chunks = list(backend.chat().stream(SYSTEM))
    assert "".join(str(chunk.content) for chunk in chunks) == "hi"
    assert len({chunk.id for chunk in chunks}) == 1


@scripted
@pytest.mark.clause("WARM-9")
def test_a_system_prompt_that_is_insisted_on_is_an_error_if_refused(backend: Backend) -> None:
    backend.given(system_prompts=False)
    with pytest.raises(CursorInvalidRequestError, match="not enabled for this account"):
        backend.chat(native_system_prompt=True).invoke(SYSTEM)


@scripted
@pytest.mark.clause("WARM-10")
def test_a_machine_without_sandbox_answers_after_one_warning(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.given(sandbox=False)
    model = backend.chat()
    for word in ("one", "two"):
        assert model.invoke(f"say: {word}").text == word
    assert ["sandbox is not supported" in text for text in _warnings(caplog)] == [True]


@scripted
@pytest.mark.clause("WARM-10")
def test_another_refusal_is_not_taken_for_a_missing_sandbox(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.script(Error("invalid_argument", "no such thing"))
    with pytest.raises(CursorInvalidRequestError, match="no such thing"):
        backend.chat().invoke("x")
    assert _warnings(caplog) == []


@scripted
@pytest.mark.clause("AGENTS-6")
def test_an_older_sdk_answers_with_a_guardrail_and_one_warning(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.given(old_sdk=True)
    model = backend.chat()
    for _ in range(2):
        assert model.invoke(SYSTEM).text == "hi"
    for run in backend.received:
        assert run.allowed_tools is None
        assert [(turn.role, turn.text) for turn in parse(run.text)] == [
            ("system", GUARDRAIL),
            ("system", "Be brief."),
            ("user", "say: hi"),
        ]
    (told,) = _warnings(caplog)
    assert "cannot deny an agent its tools" in told
