"""A conversation with an agent that says what a test wants, in the pieces that it wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk

from langchain_cursor.contract import Contract, JsonContract, ToolSpec, bind
from langchain_cursor.conversation import Answer, StopCut, converse
from langchain_cursor.errors import CursorContractError
from langchain_cursor.events import Event, Finished, Started, TextDelta, ThinkingDelta, Usage
from langchain_cursor.messages import Chunks, message_of
from langchain_cursor.serializer import Prompt
from tests.corpus import Case, load

# The megabyte replies are for the parser's own tests.
CASES = [case for case in load() if len(case.reply) < 10_000]
PROMPT = Prompt(None, "<user>\nHi\n</user>")


class Speaker:
    """An agent whose replies are given, each as its pieces."""

    def __init__(self, *replies: Sequence[str], thinking: str = "") -> None:
        self.prompts: list[Prompt] = []
        self._replies = list(replies)
        self._thinking = thinking

    async def send(self, prompt: Prompt) -> AsyncGenerator[Event, None]:
        self.prompts.append(prompt)
        number = len(self.prompts)
        pieces = self._replies.pop(0)
        yield Started(f"run-{number}")
        if self._thinking:
            yield ThinkingDelta(self._thinking)
        for piece in pieces:
            yield TextDelta(piece)
        yield Finished(f"run-{number}", "composer-2.5", 5, Usage(10, 3), "".join(pieces))


def talk(
    *replies: Sequence[str],
    contract: Contract | JsonContract | None = None,
    stop: tuple[str, ...] = (),
    thinking: str = "",
) -> tuple[Answer, list[Event], Speaker]:
    speaker = Speaker(*replies, thinking=thinking)
    events: list[Event] = []

    async def emit(event: Event) -> None:
        events.append(event)

    answer = asyncio.run(converse(speaker, PROMPT, contract, stop, emit))
    return answer, events, speaker


def shown(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


def streamed(answer: Answer, events: list[Event], *, with_reply: bool) -> AIMessageChunk:
    chunks = Chunks(with_reply)
    messages: list[Any] = [chunk.message for chunk in chunks.of([*events, answer])]
    whole = messages[0]
    for message in messages[1:]:
        whole = whole + message
    assert isinstance(whole, AIMessageChunk)
    return whole


def same(whole: AIMessageChunk, message: AIMessage) -> None:
    assert whole.content == message.content
    assert whole.id == message.id
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [
        (c["name"], c["args"]) for c in message.tool_calls
    ]
    assert whole.invalid_tool_calls == []
    assert whole.usage_metadata == message.usage_metadata
    assert whole.response_metadata == message.response_metadata
    assert whole.additional_kwargs == message.additional_kwargs
    assert whole.chunk_position == "last"


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(at)]


def cut(text: str, stop: list[str]) -> str:
    """The text before the stop text that is complete first, looked at as a whole."""
    found = [(text.index(end) + len(end), text.index(end)) for end in stop if end and end in text]
    return text[: min(found)[1]] if found else text


cuts = st.lists(st.integers(0, 10_000), max_size=12)


@pytest.mark.clause("STREAM-1")
def test_plain_text_is_shown_as_it_comes() -> None:
    answer, events, _ = talk(["one ", "two ", "three"])
    assert shown(events) == ["one ", "two ", "three"]
    assert answer.text == "one two three"
    assert answer.calls == ()


@pytest.mark.clause("STREAM-2")
def test_the_start_is_told_with_the_first_thing_to_show() -> None:
    _, events, _ = talk(["hi"], thinking="hm")
    assert events == [Started("run-1"), ThinkingDelta("hm"), TextDelta("hi")]


TOOLS = bind([{"name": "now", "parameters": {"type": "object", "properties": {}}}])
NOW = '{"tool_calls": [{"name": "now", "arguments": {}}]}'


@pytest.mark.clause("STREAM-3")
def test_what_may_be_a_call_is_held_and_never_shown_if_it_is_one() -> None:
    answer, events, _ = talk(["Let me see. ", NOW[:9], NOW[9:]], contract=TOOLS)
    assert shown(events) == ["Let me see."]
    assert answer.text == "Let me see."
    assert [call.name for call in answer.calls] == ["now"]
    assert answer.reply == f"Let me see. {NOW}"


@pytest.mark.clause("STREAM-3")
def test_what_turns_out_to_be_text_is_released() -> None:
    answer, events, _ = talk(["A set is {1, 2", "}, I ", "think."], contract=TOOLS)
    assert "".join(shown(events)) == answer.text == "A set is {1, 2}, I think."
    assert len(shown(events)) > 1


@pytest.mark.clause("STREAM-4")
def test_a_reply_that_breaks_the_contract_is_never_shown() -> None:
    bad = '{"tool_calls": [{"name": "then"}]}'
    answer, events, speaker = talk(["Wait. ", bad], [NOW], contract=TOOLS)
    assert shown(events) == ["Wait."]
    assert answer.text == "Wait."
    assert [call.name for call in answer.calls] == ["now"]
    assert '"then"' in speaker.prompts[1].text
    assert (answer.message_id, answer.run_id) == ("run-1", "run-2")
    assert answer.usage == Usage(20, 6)
    assert answer.duration_ms == 10


@pytest.mark.clause("STREAM-4")
def test_text_of_both_turns_stands_apart() -> None:
    bad = '{"tool_calls": [{"name": "then"}]}'
    answer, events, _ = talk(["Wait. ", bad], ["I cannot."], contract=TOOLS)
    assert "".join(shown(events)) == answer.text == "Wait.\n\nI cannot."


@pytest.mark.clause("STREAM-4")
def test_a_second_failure_raises_with_reply_and_usage() -> None:
    bad = '{"tool_calls": [{"name": "then"}]}'
    with pytest.raises(CursorContractError, match='"then"') as caught:
        talk([bad], [bad + " "], contract=TOOLS)
    error = caught.value
    assert (error.reason, error.llm_output, error.run_id) == ("unknown-tool", bad + " ", "run-2")
    assert error.usage is not None
    assert error.usage["total_tokens"] == 26


@pytest.mark.clause("STREAM-5")
def test_a_json_answer_is_held_whole_and_shown_as_json() -> None:
    answer, events, _ = talk(["Here: ", '{"a":', " 1}"], contract=JsonContract())
    assert shown(events) == ['{"a": 1}']
    assert answer.text == '{"a": 1}'


@pytest.mark.clause("STREAM-6")
def test_a_stop_text_works_across_pieces() -> None:
    answer, events, _ = talk(["one S", "TO", "P two"], stop=("STOP",))
    assert "".join(shown(events)) == answer.text == "one "


@pytest.mark.clause("STREAM-6")
@given(st.text("abS", max_size=30), st.lists(st.text("abS", max_size=3), max_size=3), cuts)
def test_cutting_in_pieces_is_cutting_the_whole(text: str, stop: list[str], at: list[int]) -> None:
    cutter = StopCut(stop)
    pieces = [cutter.feed(piece) for piece in in_pieces(text, at)]
    assert "".join(pieces) + cutter.finish() == cut(text, stop)


@pytest.mark.clause("STREAM-7")
@given(st.sampled_from(CASES), cuts, st.lists(st.sampled_from(["}", "x", "Let"]), max_size=1))
def test_chunks_add_up_to_the_message_for_every_reply(
    case: Case, at: list[int], stop: list[str]
) -> None:
    replies = [in_pieces(case.reply, at), in_pieces(case.reply, at)]
    try:
        answer, events, _ = talk(
            *replies, contract=case.contract(), stop=tuple(stop), thinking="because"
        )
    except CursorContractError:
        return
    same(streamed(answer, events, with_reply=True), message_of(answer, with_reply=True))


@pytest.mark.clause("STREAM-7")
@given(st.sampled_from(CASES), cuts)
def test_the_same_reply_in_other_pieces_is_the_same_answer(case: Case, at: list[int]) -> None:
    def judged(pieces: list[str]) -> Any:
        try:
            answer = talk(pieces, pieces, contract=case.contract())[0]
        except CursorContractError as error:
            return str(error)
        return answer.text, answer.calls

    assert judged(in_pieces(case.reply, at)) == judged([case.reply])


@pytest.mark.clause("TOOLS-2")
def test_a_tool_without_calls_is_a_plain_answer() -> None:
    answer, _, _ = talk(
        ['{"tool_calls": [], "content": "Hi."}'], contract=Contract((ToolSpec("a"),))
    )
    assert (answer.text, answer.calls) == ("Hi.", ())
