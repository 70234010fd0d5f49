"""What comes back to LangChain: messages, chunks and token counts."""

from __future__ import annotations

import itertools
import re
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from syrupy.assertion import SnapshotAssertion

from langchain_cursor import messages
from langchain_cursor.contract import Call
from langchain_cursor.conversation import Answer
from langchain_cursor.events import Started, TextDelta, ThinkingDelta, Usage, usage_metadata
from langchain_cursor.messages import Chunks, message_of

clause = pytest.mark.clause

USAGE = Usage(
    input_tokens=5,
    output_tokens=2,
    cache_read_tokens=30,
    cache_write_tokens=400,
    reasoning_tokens=1,
)


def answer(**fields: Any) -> Answer:
    known = {
        "run_id": "run-2",
        "message_id": "run-1",
        "text": "It is 42 °C.",
        "reasoning": "",
        "calls": (),
        "reply": "It is 42 °C.",
        "model": "composer-2.5",
        "duration_ms": 1234,
        "usage": USAGE,
    }
    return Answer(**{**known, **fields})


CALLS = (Call("get_weather", {"city": "Zürich", "days": [1, 2]}), Call("now", {}))
ANSWERS = {
    "text": answer(),
    "reasoning": answer(reasoning="Hm."),
    "calls": answer(text="Let me look.", calls=CALLS, reply='Let me look. {"tool_calls": ...}'),
    "nothing told": answer(text="", usage=None),
}


def said_by(message: AIMessage) -> dict[str, Any]:
    """What is in a message, without the fields that LangChain may add in another version."""
    names = ["content", "id", "tool_calls", "usage_metadata", "response_metadata"]
    if isinstance(message, AIMessageChunk):
        names[2:3] = ["tool_call_chunks", "chunk_position"]
    told = {name: getattr(message, name) for name in [*names, "additional_kwargs"]}
    return {name: value for name, value in told.items() if value}


@pytest.fixture(autouse=True)
def _numbered_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count(1)
    monkeypatch.setattr(messages, "_call_id", lambda: f"call_{next(numbers)}")


@clause("SPEC-5")
@clause("CHAT-3")
@pytest.mark.parametrize("with_reply", [False, True])
@pytest.mark.parametrize("given", ANSWERS.values(), ids=ANSWERS)
def test_a_message_carries_all_that_an_answer_says(
    given: Answer, with_reply: bool, snapshot: SnapshotAssertion
) -> None:
    assert said_by(message_of(given, with_reply=with_reply)) == snapshot


@clause("SPEC-5")
@clause("STREAM-10")
@clause("STREAM-11")
@pytest.mark.parametrize("given", ANSWERS.values(), ids=ANSWERS)
def test_the_chunks_of_a_stream(given: Answer, snapshot: SnapshotAssertion) -> None:
    chunks = Chunks(with_reply=True)
    said = [Started("run-1"), ThinkingDelta("Hm."), TextDelta("It "), Started("run-2"), given]
    made: list[Any] = [chunk.message for chunk in chunks.of(said)]
    assert {message.id for message in made} == {"run-1"}
    assert [said_by(message) for message in made] == snapshot


@clause("STREAM-11")
def test_arguments_come_as_they_would_be_written() -> None:
    made: Any = [chunk.message for chunk in Chunks(with_reply=False).of([ANSWERS["calls"]])]
    assert made[0].tool_call_chunks[0]["args"] == '{"city": "Zürich", "days": [1, 2]}'


@clause("STREAM-7")
@pytest.mark.parametrize("with_reply", [False, True])
@pytest.mark.parametrize("given", ANSWERS.values(), ids=ANSWERS)
def test_the_chunks_add_up_to_the_message(given: Answer, with_reply: bool) -> None:
    chunks = Chunks(with_reply)
    said: list[Any] = [Started(given.message_id)]
    said += [ThinkingDelta(piece) for piece in given.reasoning]
    said += [TextDelta(piece) for piece in re.findall(r"\S+\s*", given.text)]
    made: list[Any] = [chunk.message for chunk in chunks.of([*said, given])]
    whole = reduce(add, made)
    assert isinstance(whole, AIMessageChunk)
    message = message_of(given, with_reply=with_reply)
    for name in ("content", "id", "usage_metadata", "response_metadata", "additional_kwargs"):
        assert getattr(whole, name) == getattr(message, name)
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [
        (call.name, call.arguments) for call in given.calls
    ]


@clause("TOOLS-1")
def test_every_call_has_an_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    first, second = message_of(ANSWERS["calls"], with_reply=False).tool_calls
    assert first["id"] != second["id"]
    assert re.fullmatch("call_[0-9a-f]{32}", first["id"] or "")


@clause("CHAT-3")
def test_tokens_of_the_cache_are_a_part_of_the_input() -> None:
    assert usage_metadata(USAGE) == {
        "input_tokens": 435,
        "output_tokens": 2,
        "total_tokens": 437,
        "input_token_details": {"cache_read": 30, "cache_creation": 400},
        "output_token_details": {"reasoning": 1},
    }
    assert "output_token_details" not in (usage_metadata(Usage(1, 2)) or {})
    assert (usage_metadata(Usage(reasoning_tokens=0)) or {})["output_token_details"] == {
        "reasoning": 0
    }
    assert usage_metadata(None) is None


@clause("TOOLS-4")
@pytest.mark.parametrize(
    ("one", "other", "both"), [(None, None, None), (None, 3, 3), (3, None, 3), (3, 4, 7)]
)
def test_the_tokens_of_two_runs_add_up(
    one: int | None, other: int | None, both: int | None
) -> None:
    assert Usage(1, 2, 3, 4, one) + Usage(10, 20, 30, 40, other) == Usage(11, 22, 33, 44, both)
    assert Usage() == Usage(0, 0, 0, 0, None)
