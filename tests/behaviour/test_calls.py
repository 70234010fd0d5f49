"""Calls and their messages: what comes back, and what reaches Cursor."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_cursor.serializer import parse
from langchain_cursor_fakes import Text, Thinking, Usage
from tests.behaviour.backends import CONCURRENT, Backend, backends, runs, scripted

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PICTURE = {"type": "image", "base64": base64.b64encode(PNG).decode(), "mime_type": "image/png"}


@pytest.mark.clause("CHAT-1")
def test_invoke_answers(backend: Backend) -> None:
    message = backend.chat().invoke("say: pong")
    assert isinstance(message, AIMessage)
    backend.check_answer(message.text, "pong")


@pytest.mark.clause("CHAT-1")
async def test_ainvoke_answers(backend: Backend) -> None:
    backend.check_answer((await backend.chat().ainvoke("say: pong")).text, "pong")


@backends("fake", "bridge", "live", because=CONCURRENT)
@runs(3)
@pytest.mark.clause("CHAT-1")
def test_a_batch_is_answered_in_order(backend: Backend) -> None:
    words = ["one", "two", "three"]
    messages = backend.chat().batch([f"say: {word}" for word in words])
    for message, word in zip(messages, words, strict=True):
        backend.check_answer(message.text, word)


@scripted
@pytest.mark.clause("CHAT-2")
def test_what_reaches_cursor_is_a_plain_model(backend: Backend) -> None:
    backend.chat().invoke(
        [
            SystemMessage("Be brief."),
            HumanMessage("Hi"),
            AIMessage("Hello."),
            HumanMessage([{"type": "text", "text": "What is this?"}, PICTURE]),
        ]
    )
    (run,) = backend.received
    assert run.allowed_tools == ""  # said, and none
    assert run.system_prompt == "Be brief."
    assert [turn.role for turn in parse(run.text)] == ["user", "assistant", "user"]
    assert [(image.data, image.mime_type) for image in run.images] == [(PNG, "image/png")]
    assert run.model == "composer-2.5"


@pytest.mark.clause("CHAT-2")
def test_an_image_is_answered(backend: Backend) -> None:
    question = HumanMessage([{"type": "text", "text": "say: seen"}, PICTURE])
    backend.check_answer(backend.chat().invoke([question]).text, "seen")


@pytest.mark.clause("CHAT-2")
def test_a_conversation_goes_on(backend: Backend) -> None:
    backend.suggest("swordfish")
    message = backend.chat().invoke(
        [
            HumanMessage("The code word is swordfish."),
            AIMessage("Noted."),
            HumanMessage("What is the code word? Answer with that word alone."),
        ]
    )
    backend.check_answer(message.text, "swordfish")


@scripted
@pytest.mark.clause("CHAT-7")
def test_nothing_leaks_from_one_call_to_the_next(backend: Backend) -> None:
    model = backend.chat()
    model.invoke("remember: swordfish")
    model.invoke("say: other")
    first, second = backend.received
    assert "swordfish" not in second.text
    assert first.agent_id != second.agent_id
    assert second.turn == 1


@pytest.mark.clause("CHAT-3")
def test_a_message_says_what_it_cost_and_where_it_came_from(backend: Backend) -> None:
    message = backend.chat().invoke("say: pong")
    usage, metadata = message.usage_metadata, message.response_metadata
    assert usage is not None
    assert usage["input_tokens"] > 0
    assert usage["output_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert metadata["model_provider"] == "cursor"
    assert metadata["model_name"] == "composer-2.5"
    assert metadata["run_id"] == message.id
    assert metadata["duration_ms"] >= 0


@scripted
@pytest.mark.clause("CHAT-3")
def test_tokens_of_the_cache_are_a_part_of_the_input(backend: Backend) -> None:
    backend.script([Text("ok"), Usage(10, 4, 3, 2, 1)])
    assert backend.chat().invoke("x").usage_metadata == {
        "input_tokens": 15,
        "output_tokens": 4,
        "total_tokens": 19,
        "input_token_details": {"cache_read": 3, "cache_creation": 2},
        "output_token_details": {"reasoning": 1},
    }


@scripted
@pytest.mark.clause("CHAT-4")
def test_reasoning_is_a_content_block(backend: Backend) -> None:
    backend.script([Thinking("let me "), Thinking("see"), Text("42")])
    message = backend.chat().invoke("x")
    assert message.text == "42"
    assert message.additional_kwargs["reasoning_content"] == "let me see"
    assert [block["type"] for block in message.content_blocks] == ["reasoning", "text"]


@runs(2)
@pytest.mark.clause("CHAT-5")
def test_stop_cuts_the_answer(backend: Backend) -> None:
    of_the_call = backend.chat().invoke("say: one two three", stop=["three", "two"])
    of_the_model = backend.chat(stop=["two"]).invoke("say: one two three")
    for message in (of_the_call, of_the_model):
        backend.check_answer(message.text, "one ")
        assert "two" not in message.text


@scripted
@pytest.mark.clause("CHAT-6")
def test_options_can_be_bound_for_a_call(backend: Backend) -> None:
    bound = backend.chat().bind(model="auto", stop=["to"], timeout=60)
    message = bound.invoke("model?")
    assert message.text == "au"
    assert message.response_metadata["model_name"] == "auto"
    assert [run.model for run in backend.received] == ["auto"]


@pytest.mark.clause("WARM-15")
@runs(0)
def test_models_can_be_listed(backend: Backend) -> None:
    models = [model.id for model in backend.list_models()]
    if backend.speaks_freely:
        assert models
    else:
        assert models == ["composer-2.5", "auto"]


# --- System messages ------------------------------------------------------------------------------


SYSTEM: list[Any] = [SystemMessage("Be brief."), SystemMessage("Be kind."), HumanMessage("say: hi")]


@pytest.mark.clause("WARM-7")
def test_a_system_message_is_heeded(backend: Backend) -> None:
    backend.suggest("swordfish")
    message = backend.chat().invoke(
        [
            SystemMessage("The code word is swordfish."),
            HumanMessage("What is the code word? Answer with that word alone."),
        ]
    )
    backend.check_answer(message.text, "swordfish")


@scripted
@pytest.mark.clause("WARM-7")
def test_system_messages_become_the_agents_own_prompt(backend: Backend) -> None:
    backend.chat().invoke(SYSTEM)
    (run,) = backend.received
    assert run.system_prompt == "Be brief.\n\nBe kind."
    assert [turn.role for turn in parse(run.text)] == ["user"]


@scripted
@pytest.mark.clause("WARM-9")
def test_a_system_prompt_of_its_own_can_be_forbidden(backend: Backend) -> None:
    backend.chat(native_system_prompt=False).invoke(SYSTEM)
    (run,) = backend.received
    assert run.system_prompt is None
    assert [turn.role for turn in parse(run.text)] == ["system", "user"]
