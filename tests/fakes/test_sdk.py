"""FakeCursor under ChatCursor: what a test of an application sees and can do."""

from __future__ import annotations

import asyncio
import base64
import copy
import logging
import pickle
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cursor_sdk
import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from pydantic import BaseModel

from langchain_cursor import (
    ChatCursor,
    CursorAuthenticationError,
    CursorBridgeError,
    CursorClosedError,
    CursorContractError,
    CursorError,
    CursorModelNotFoundError,
    CursorStartupError,
    CursorTimeoutError,
    errors,
    list_models,
)
from langchain_cursor.agents import GUARDRAIL
from langchain_cursor_fakes import (
    BridgeDies,
    Delay,
    Drop,
    Error,
    FakeCursor,
    Garbage,
    Hang,
    Phases,
    ReceivedRun,
    Text,
    Thinking,
    Usage,
    fingerprint,
    tool_call,
    tool_calls,
    violation,
)
from tests.conftest import ROOT, until

pytestmark = pytest.mark.fake

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

Chat = Callable[..., ChatCursor]


@pytest.fixture
def chat() -> Iterator[Chat]:
    """Makes models on a fake; their bridges end with the test."""
    made: list[ChatCursor] = []

    def make(fake: FakeCursor, **arguments: Any) -> ChatCursor:
        made.append(ChatCursor(sdk_loader=fake.sdk, **{"max_retries": 0, **arguments}))
        return made[-1]

    yield make
    for model in made:
        model.close()


def now() -> str:
    """Tell the time."""
    return "noon"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# --- No account, no process -----------------------------------------------------------------------


@pytest.mark.clause("FAKE-1")
def test_a_model_answers_without_key_process_and_network(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **named: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    fake = FakeCursor(["Hello."])
    assert chat(fake).invoke("Hi").text == "Hello."


@pytest.mark.clause("FAKE-1")
def test_the_account_of_whoever_runs_the_test_is_not_used(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURSOR_API_KEY", "crsr_real")
    fake = FakeCursor()
    chat(fake).invoke("Hi")
    chat(fake, api_key="crsr_given").invoke("Hi")
    keys = {agent.options["apiKey"] for agent in fake.agents}
    assert keys == {fingerprint("crsr_fake"), fingerprint("crsr_given")}


@pytest.mark.clause("FAKE-1")
def test_the_users_own_bridge_is_left_alone(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_BIN", "/no/such/launcher")
    assert chat(FakeCursor(["Hello."])).invoke("Hi").text == "Hello."


@pytest.mark.clause("FAKE-1")
def test_copies_and_threads_share_it(chat: Chat) -> None:
    fake = FakeCursor()
    model = chat(fake)
    copies = [copy.deepcopy(model), model.model_copy(update={"model": "auto"}), model]
    for copied in copies:
        copied.invoke("say: x")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: model.invoke(f"say: {n}").text, range(16)))
    assert answers == [str(n) for n in range(16)]
    assert len(fake.runs) == 19
    assert fake.bridge_starts == 1
    for copied in copies:
        copied.close()


@pytest.mark.clause("FAKE-1")
def test_it_answers_from_any_event_loop(chat: Chat) -> None:
    model = chat(FakeCursor(["one", "two"]))
    assert [asyncio.run(model.ainvoke("x")).text for _ in range(2)] == ["one", "two"]


@pytest.mark.clause("FAKE-1")
def test_it_does_not_travel_to_another_process(chat: Chat) -> None:
    with pytest.raises(TypeError, match=r"FakeCursor.*cannot be pickled"):
        pickle.dumps(FakeCursor().sdk)


# --- Scripts --------------------------------------------------------------------------------------


@pytest.mark.clause("FAKE-2")
def test_a_list_answers_in_order(chat: Chat) -> None:
    fake = FakeCursor(["one", [Thinking("hm"), Text("tw"), Text("o")], lambda run: run.model])
    model = chat(fake)
    assert model.invoke("x").text == "one"
    message = model.invoke("x")
    assert (message.text, message.additional_kwargs["reasoning_content"]) == ("two", "hm")
    assert model.invoke("x").text == "composer-2.5"
    fake.assert_done()


@pytest.mark.clause("FAKE-2")
def test_rules_match_the_newest_message(chat: Chat) -> None:
    import re

    fake = FakeCursor(
        {
            "weather": "sunny",
            re.compile(r"\bsum\b", re.I): "42",
            lambda run: run.model == "auto": "by model",
            re.compile(""): "anything else",
        }
    )
    model = chat(fake)
    assert model.invoke("What is the weather?").text == "sunny"
    assert model.invoke("The Sum?").text == "42"
    assert model.invoke("x", model="auto").text == "by model"
    assert model.invoke([("human", "weather"), ("ai", "sunny"), ("human", "Hm")]).text == (
        "anything else"
    )
    # The tools on offer are no part of the messages.
    assert chat(fake).bind_tools([now]).invoke("weather").text == "sunny"
    assert model.bind_tools([{"title": "weather", "type": "object"}]).invoke("Hm").text == (
        "anything else"
    )


@pytest.mark.clause("FAKE-2")
def test_a_function_gets_what_was_asked(chat: Chat) -> None:
    seen: list[ReceivedRun] = []

    def answer(run: ReceivedRun) -> str:
        seen.append(run)
        return f"reply {len(seen)}"

    fake = FakeCursor(answer)
    image = {"type": "image", "base64": base64.b64encode(PNG).decode(), "mime_type": "image/png"}
    message = HumanMessage([{"type": "text", "text": "What is it?"}, image])
    assert chat(fake).invoke([SystemMessage("Be brief."), message]).text == "reply 1"
    (run,) = seen
    assert (run.images[0].data, run.images[0].mime_type) == (PNG, "image/png")
    assert (run.model, run.allowed_tools, run.turn) == ("composer-2.5", "", 1)
    assert run.system_prompt == "Be brief."


@pytest.mark.clause("FAKE-2")
def test_without_a_script_the_default_brain_answers(chat: Chat) -> None:
    model = chat(FakeCursor())
    assert model.invoke("Hello!").text == "Hello from Cursor. You said: Hello!"
    call = model.bind_tools([add]).invoke("Please add 2 and 3.").tool_calls[0]
    assert (call["name"], call["args"]) == ("add", {"a": 2, "b": 3})


@pytest.mark.clause("FAKE-2")
def test_a_generator_runs_step_by_step_and_is_closed(chat: Chat) -> None:
    closed: list[bool] = []

    def answer(run: ReceivedRun) -> Iterator[Text]:
        try:
            while True:
                yield Text("more ")
        finally:
            closed.append(True)

    stream = chat(FakeCursor(answer)).stream("x")
    assert next(stream).text == "more "
    stream.close()
    assert until(lambda: closed)


@pytest.mark.clause("FAKE-2")
def test_an_endless_answer_is_ended_by_the_time_limit(chat: Chat) -> None:
    def answer(run: ReceivedRun) -> Iterator[Text]:
        while True:
            yield Text("more ")

    with pytest.raises(CursorTimeoutError):
        chat(FakeCursor(answer), timeout=0.2).invoke("x")


@pytest.mark.clause("FAKE-2")
@pytest.mark.parametrize("script", [5, "Hello.", b"Hello.", Hang, ValueError])
def test_what_is_no_script_is_refused(script: Any) -> None:
    with pytest.raises(TypeError, match="a script is a list"):
        FakeCursor(script)
    with pytest.raises(TypeError, match="a rule matches by"):
        FakeCursor({5: "x"})
    with pytest.raises(TypeError, match="'Hi' is an iterator, which the first run uses up"):
        FakeCursor({"Hi": iter([Text("once")])})


@pytest.mark.clause("FAKE-2")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Text(5), "Text takes a text, not 5"),
        (lambda: Thinking(None), "Thinking takes a text"),
        (lambda: Error("internal", 5), "Error takes a text"),
        (lambda: Delay("1"), "Delay takes 0 or more seconds, not '1'"),
        (lambda: Delay(-1), "0 or more"),
        (lambda: Delay(float("inf")), "0 or more"),
        (lambda: Delay(float("nan")), "0 or more"),
        (lambda: BridgeDies("never"), "'before', 'during' or 'after', not 'never'"),
        (lambda: FakeCursor(phases={"start": 1}), "phases are a `Phases"),
        (lambda: FakeCursor(models="auto"), "models are a list of ids"),
        (lambda: FakeCursor().assert_tools_offered("add"), "names of tools are a list"),
        (lambda: FakeCursor().assert_prompted(5), "a text or a compiled pattern, not 5"),
    ],
)
def test_a_mistake_in_a_test_is_told_where_it_is_made(make: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(told)):
        make()


@pytest.mark.clause("FAKE-2")
def test_texts_violations_and_steps_can_be_joined(chat: Chat) -> None:
    fake = FakeCursor([[Thinking("hm"), "Let me see. ", tool_call("now")], [violation("prose")]])
    model = chat(fake).bind_tools([now])
    message = model.invoke("time?")
    assert [call["name"] for call in message.tool_calls] == ["now"]
    assert (message.text, message.additional_kwargs["reasoning_content"]) == ("Let me see.", "hm")


@pytest.mark.clause("FAKE-2")
@pytest.mark.parametrize("reply", [None, 5, [["a"]], [None], {"a": 1}, b"bytes", Text, [Text]])
def test_what_is_no_reply_is_told(chat: Chat, reply: Any) -> None:
    fake = FakeCursor([reply])
    with pytest.raises(CursorError, match="a reply is a text, a step"):
        chat(fake).invoke("x")
    with pytest.raises(AssertionError, match="a reply is a text, a step"):
        fake.assert_done()


@pytest.mark.clause("FAKE-2")
def test_a_coroutine_is_no_reply(chat: Chat) -> None:
    async def answer(run: ReceivedRun) -> str:
        return "never"

    with pytest.raises(CursorError, match="no coroutine function"):
        chat(FakeCursor(answer)).invoke("x")  # type: ignore[arg-type] # what is refused here


@pytest.mark.clause("FAKE-5")
@pytest.mark.parametrize(
    "raised",
    [
        *(KeyboardInterrupt, KeyboardInterrupt(), SystemExit(1), GeneratorExit()),
        *(asyncio.CancelledError(), StopIteration(), StopAsyncIteration),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_would_end_the_event_loop_or_the_script_is_no_reply(
    chat: Chat, raised: Any, first: bool
) -> None:
    fake = FakeCursor([raised if first else [Text("a"), raised], "next"])
    model = chat(fake)
    with pytest.raises(CursorError, match="a reply is a text, a step"):
        model.invoke("x")
    assert fake.runs[0].outcome == "error"
    assert model.invoke("x").text == "next"


@pytest.mark.clause("FAKE-5")
@pytest.mark.parametrize("failure", [CursorBridgeError, CursorTimeoutError("slow")])
def test_what_chatcursor_itself_raises_is_no_reply(chat: Chat, failure: Any) -> None:
    with pytest.raises(CursorError, match=r"script the failure itself, such as Error\("):
        chat(FakeCursor([failure])).invoke("x")


@pytest.mark.clause("FAKE-13")
@pytest.mark.parametrize(
    "error", [TimeoutError("a bug"), ConnectionError("a bug"), ValueError("a bug: unavailable")]
)
def test_what_a_function_raises_is_not_taken_for_cursors(chat: Chat, error: Exception) -> None:
    def answer(run: ReceivedRun) -> str:
        raise error

    fake = FakeCursor(answer)
    with pytest.raises(CursorError, match=r"FakeCursor's script raised .*: a bug") as caught:
        chat(fake, max_retries=2).invoke("x")
    assert type(caught.value) is CursorError
    assert "please report" not in str(caught.value)
    assert len(fake.runs) == 1
    assert fake.failures == [error]


@pytest.mark.clause("FAKE-2")
def test_the_script_can_be_changed(chat: Chat) -> None:
    fake = FakeCursor(["one"])
    model = chat(fake)
    model.invoke("x")
    fake.reply_with(["two"])
    assert model.invoke("x").text == "two"
    fake.assert_done()


# --- Runs -----------------------------------------------------------------------------------------


@pytest.mark.clause("FAKE-3")
def test_a_text_streams_word_by_word(chat: Chat) -> None:
    fake = FakeCursor(["one two three", [Text("on"), Text("e")]])
    model = chat(fake)
    assert [chunk.text for chunk in model.stream("x") if chunk.text] == ["one ", "two ", "three"]
    assert [chunk.text for chunk in model.stream("x") if chunk.text] == ["on", "e"]


@pytest.mark.clause("FAKE-3")
def test_tokens_are_counted_in_words_or_given(chat: Chat) -> None:
    fake = FakeCursor(["four words or so", [Text("x"), Usage(10, 4, 3, 2, 1)]])
    model = chat(fake)
    usage = model.invoke("Hi").usage_metadata
    assert usage is not None
    assert usage["input_tokens"] == len(fake.runs[0].text.split())
    assert usage["output_tokens"] == 4
    usage = model.invoke("Hi").usage_metadata
    assert usage is not None
    assert (usage["input_tokens"], usage["output_tokens"]) == (15, 4)
    assert usage["output_token_details"] == {"reasoning": 1}


@pytest.mark.clause("FAKE-3")
def test_ids_are_never_the_same(chat: Chat) -> None:
    # LangGraph takes two messages with one id for one message.
    ids = {chat(FakeCursor()).invoke("x").id for _ in range(3)}
    assert len(ids) == 3
    assert all(str(i).startswith("run-") and len(str(i)) == 40 for i in ids)


# --- Tools ----------------------------------------------------------------------------------------


@pytest.mark.clause("FAKE-4")
def test_tool_calls_are_written_as_values(chat: Chat) -> None:
    calls = [("now", {}), {"name": "add", "args": {"a": 1, "b": 2}, "id": "x", "type": "tool_call"}]
    fake = FakeCursor([tool_call("add", {"a": 1, "b": 2}), "I will. " + tool_calls(calls)])
    model = chat(fake).bind_tools([now, add])
    (call,) = model.invoke("x").tool_calls  # type: ignore[attr-defined] # an AIMessage
    assert (call["name"], call["args"]) == ("add", {"a": 1, "b": 2})
    message: Any = model.invoke("x")
    assert [call["name"] for call in message.tool_calls] == ["now", "add"]
    fake.assert_tools_offered(["add", "now"])


@pytest.mark.clause("FAKE-4")
def test_arguments_that_are_no_json_are_refused_where_they_are_written() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        tool_call("add", {"a": object()})


@pytest.mark.clause("FAKE-4")
def test_a_violation_is_corrected_once(chat: Chat) -> None:
    good = tool_call("add", {"a": 2, "b": 3})
    fake = FakeCursor([violation("wrong_tool"), good])
    message: Any = chat(fake).bind_tools([add]).invoke("Please add 2 and 3.")
    assert message.tool_calls[0]["args"] == {"a": 2, "b": 3}
    assert [run.received.turn for run in fake.runs] == [1, 2]
    assert "no_such_add" in fake.runs[1].text
    fake.assert_done()


@pytest.mark.clause("FAKE-4")
def test_two_violations_are_an_error(chat: Chat) -> None:
    fake = FakeCursor([violation("broken_json"), violation("broken_json")])
    with pytest.raises(CursorContractError):
        chat(fake).bind_tools([add]).invoke("Please add 2 and 3.")
    fake.assert_done()


@pytest.mark.clause("FAKE-4")
def test_a_violation_of_a_given_reply(chat: Chat) -> None:
    fake = FakeCursor([violation("fenced", tool_call("now"))])
    message: Any = chat(fake).bind_tools([now]).invoke("x")
    assert message.tool_calls[0]["name"] == "now"


@pytest.mark.clause("FAKE-4")
def test_a_violation_needs_a_reply_to_break(chat: Chat) -> None:
    with pytest.raises(ValueError, match="There is no violation 'rude'"):
        violation("rude")
    fake = FakeCursor([violation("fenced")])
    with pytest.raises(CursorError, match="no good reply to break"):
        chat(fake).invoke("x")


@pytest.mark.clause("FAKE-4")
def test_structured_output(chat: Chat) -> None:
    class City(BaseModel):
        """A city."""

        name: str

    fake = FakeCursor([tool_call("City", {"name": "Bern"}), '{"name": "Basel"}'])
    model = chat(fake)
    assert model.with_structured_output(City).invoke("x") == City(name="Bern")
    by_schema = model.with_structured_output(City, method="json_schema")
    assert by_schema.invoke("x") == City(name="Basel")


# --- Failures -------------------------------------------------------------------------------------


def _table(name: str) -> list[list[str]]:
    """A table of the page on errors: failures and what becomes of them."""
    page = (ROOT / "spec" / "errors.md").read_text(encoding="utf-8")
    table = page.split(f'{name} = """')[1].split('"""')[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.clause("FAKE-5")
@pytest.mark.parametrize(("text", "name"), _table("RUNS"))
def test_a_run_fails_as_cursors_do(chat: Chat, text: str, name: str) -> None:
    code, _, message = text.removeprefix("[").partition("] ") if "] " in text else ("", "", text)
    fake = FakeCursor([Error(code, message)])
    with pytest.raises(getattr(errors, name)) as caught:
        chat(fake).invoke("x")
    assert message.rpartition("] ")[2] in str(caught.value)
    assert caught.value.run_id == fake.runs[0].id
    assert fake.runs[0].outcome == "error"


@pytest.mark.clause("FAKE-5")
@pytest.mark.parametrize(("sdk_class", "code", "message", "name"), _table("SDK"))
@pytest.mark.parametrize("when", ["first", "later"])
def test_an_exception_of_the_sdk_is_raised_where_it_stands(
    chat: Chat, sdk_class: str, code: str, message: str, name: str, when: str
) -> None:
    raised = getattr(cursor_sdk, sdk_class)(message, code=code or None)
    fake = FakeCursor([raised if when == "first" else [Text("a"), raised]])
    with pytest.raises(getattr(errors, name)) as caught:
        chat(fake).invoke("x")
    assert isinstance(caught.value, getattr(cursor_sdk, sdk_class))
    fake.assert_done()


@pytest.mark.clause("FAKE-5")
def test_a_class_or_a_function_can_stand_for_an_exception(chat: Chat) -> None:
    def fail(run: ReceivedRun) -> str:
        raise cursor_sdk.AuthenticationError("not you")

    fake = FakeCursor([cursor_sdk.AuthenticationError, fail])
    model = chat(fake)
    for text in ("scripted by FakeCursor", "not you"):
        with pytest.raises(CursorAuthenticationError, match=text):
            model.invoke("x")
    fake.assert_done()


@pytest.mark.clause("FAKE-5")
def test_each_failure_is_an_exception_of_its_own(chat: Chat) -> None:
    model = chat(FakeCursor({"": cursor_sdk.RateLimitError("slow down", code="rate_limited")}))
    causes = []
    for _ in range(2):
        with pytest.raises(errors.CursorRateLimitError) as caught:
            model.invoke("x")
        causes.append(caught.value.__cause__)
    assert causes[0] is not causes[1]


@pytest.mark.clause("FAKE-5")
def test_a_passing_failure_is_tried_again(chat: Chat) -> None:
    busy = cursor_sdk.RateLimitError("slow down", retry_after="0")
    fake = FakeCursor([busy, busy, "ok"])
    assert chat(fake, max_retries=2).invoke("x").text == "ok"
    assert [run.outcome for run in fake.runs] == ["error", "error", "finished"]


@pytest.mark.clause("FAKE-5")
@pytest.mark.parametrize("step", [Drop(), Garbage(b"zzz")])
def test_a_stream_that_breaks_fails_the_run(chat: Chat, step: Any) -> None:
    fake = FakeCursor([[Text("a"), step, Text("b")]])
    with pytest.raises(CursorError):
        chat(fake).invoke("x")
    assert (fake.runs[0].answer, fake.runs[0].outcome) == ("a", "error")


@pytest.mark.clause("FAKE-5")
def test_the_account_can_refuse(chat: Chat) -> None:
    fake = FakeCursor(models=["composer-2.5"])
    with pytest.raises(CursorModelNotFoundError, match=r"Available models: composer-2\.5\."):
        chat(fake, model="auto").invoke("x")
    fake.refuse_all_keys = True
    with pytest.raises(CursorAuthenticationError, match="Invalid API key"):
        chat(fake).invoke("x")
    assert fake.runs == []


@pytest.mark.clause("FAKE-5")
def test_the_models_of_the_account_are_listed() -> None:
    fake = FakeCursor(models=["composer-2.5", "other"])
    assert [model.id for model in list_models(sdk_loader=fake.sdk)] == ["composer-2.5", "other"]
    fake.refuse_all_keys = True
    with pytest.raises(CursorAuthenticationError):
        list_models(sdk_loader=fake.sdk)


# --- The bridge's death ---------------------------------------------------------------------------


@pytest.mark.clause("FAKE-6")
@pytest.mark.parametrize("reply", [BridgeDies(), [Text("par"), BridgeDies()]])
def test_a_bridge_that_dies_during_a_run_fails_it(chat: Chat, reply: Any) -> None:
    fake = FakeCursor([reply, "back"])
    model = chat(fake)
    with pytest.raises(CursorBridgeError, match="FakeCursor ended this bridge") as caught:
        model.invoke("x")
    assert isinstance(caught.value, cursor_sdk.NetworkError)
    assert fake.runs[0].outcome == "died"
    assert model.invoke("x").text == "back"
    assert fake.bridge_starts == 2


@pytest.mark.clause("FAKE-6")
def test_a_call_to_a_dead_bridge_goes_to_a_new_one(chat: Chat) -> None:
    fake = FakeCursor([BridgeDies("before"), "back"])
    assert chat(fake).invoke("x").text == "back"
    assert fake.bridge_starts == 2


@pytest.mark.clause("FAKE-6")
def test_a_bridge_can_die_after_a_run_and_between_calls(chat: Chat) -> None:
    fake = FakeCursor([[Text("last"), BridgeDies("after")], "one", "two"])
    model = chat(fake)
    assert model.invoke("x").text == "last"
    assert model.invoke("x").text == "one"
    fake.kill_bridge()
    assert until(lambda: not any(agent.is_open for agent in fake.agents))
    assert model.invoke("x").text == "two"
    assert fake.bridge_starts == 3


@pytest.mark.clause("FAKE-6")
def test_all_that_runs_dies_with_the_bridge(chat: Chat) -> None:
    fake = FakeCursor({"die": BridgeDies(), "hang": Hang(), "delay": Delay(60)}, real_time=True)
    model = chat(fake)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(model.invoke, question) for question in ("hang", "delay")]
        fake.wait_for(lambda fake: len(fake.runs) == 2)
        with pytest.raises(CursorBridgeError):
            model.invoke("die")
        for call in calls:
            with pytest.raises(CursorBridgeError):
                call.result(5)


@pytest.mark.clause("FAKE-6")
async def test_a_bridge_that_dies_while_it_starts_fails_who_waits_for_it(chat: Chat) -> None:
    fake = FakeCursor(phases=Phases(start=60), real_time=True)
    call = asyncio.ensure_future(chat(fake).ainvoke("x"))
    await fake.await_for(lambda fake: fake.bridge_starts == 1)
    fake.kill_bridge()
    with pytest.raises(CursorStartupError, match="FakeCursor ended this bridge"):
        await call


@pytest.mark.clause("FAKE-6")
async def test_a_bridge_that_is_given_up_while_it_starts_is_ended(chat: Chat) -> None:
    fake = FakeCursor(phases=Phases(start=60), real_time=True)
    model = chat(fake)
    call = asyncio.ensure_future(model.ainvoke("x"))
    await fake.await_for(lambda fake: fake.bridge_starts == 1)
    await model.aclose()
    with pytest.raises(errors.CursorClosedError):
        await call
    assert [bridge.alive for bridge in fake._bridges] == [False]


@pytest.mark.clause("RUNTIME-22")
async def test_a_cancelled_close_ends_the_bridge_all_the_same(chat: Chat) -> None:
    fake = FakeCursor(phases=Phases(close=0.2), real_time=True)
    model = chat(fake)
    await model.ainvoke("x")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(model.aclose(), 0.05)
    assert until(lambda: not any(bridge.alive for bridge in fake._bridges))


@pytest.mark.clause("RUNTIME-22")
async def test_a_close_that_is_cancelled_while_it_cancels_calls_ends_the_bridge_too(
    chat: Chat,
) -> None:
    fake = FakeCursor([Hang()], phases=Phases(close=0.1), real_time=True)
    model = chat(fake)
    call = asyncio.ensure_future(model.ainvoke("x"))
    await fake.await_for(lambda fake: fake.runs)
    closing = asyncio.ensure_future(model.aclose())
    await fake.await_for(lambda fake: fake.runs[0].outcome == "cancelled")
    closing.cancel()  # its agent is still being closed
    with pytest.raises(CursorClosedError):
        await call
    (bridge,) = fake._bridges
    await fake.await_for(lambda fake: not any(agent.is_open for agent in fake.agents))
    assert await asyncio.to_thread(until, lambda: not bridge.alive)


@pytest.mark.clause("FAKE-6")
def test_retries_survive_the_bridge(chat: Chat) -> None:
    fake = FakeCursor([[Text("par"), BridgeDies()], "whole"])
    assert chat(fake, max_retries=1).invoke("x").text == "whole"


# --- Time -----------------------------------------------------------------------------------------


@pytest.mark.clause("FAKE-7")
def test_a_delay_takes_no_real_time(chat: Chat) -> None:
    fake = FakeCursor([[Text("a"), Delay(3600), Text("b")]])
    started = time.monotonic()
    message = chat(fake).invoke("x")
    assert time.monotonic() - started < 5
    assert fake.clock.now == 3600
    assert (fake.runs[0].started_at, fake.runs[0].ended_at) == (0, 3600)
    assert message.response_metadata["duration_ms"] == 3_600_000


@pytest.mark.clause("FAKE-7")
def test_time_passes_though_others_go_on(chat: Chat) -> None:
    fake = FakeCursor({"slow": [Delay(10), Text("ok")], "quick": "ok"})
    model = chat(fake)
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.001):
            model.invoke("quick")

    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(go_on) for _ in range(4)]
        try:
            assert chat(fake, timeout=10.0).invoke("slow").text == "ok"
        finally:
            over.set()
        for other in others:
            other.result(5)


@pytest.mark.clause("FAKE-7")
def test_time_can_be_real(chat: Chat) -> None:
    fake = FakeCursor([[Delay(0.1), Text("ok")]], real_time=True)
    started = time.monotonic()
    chat(fake).invoke("x")
    assert time.monotonic() - started >= 0.1


@pytest.mark.clause("FAKE-7")
def test_phases_take_time_of_the_clock(chat: Chat) -> None:
    phases = Phases(start=1, create=10, build=100, first_token=1000, per_token=10_000)
    fake = FakeCursor(["one two three"], phases=phases)
    chat(fake, keep_alive=0).invoke("x")
    assert fake.clock.now == 1 + 10 + 100 + 1000 + 2 * 10_000
    with pytest.raises(ValueError, match=r"Phases\.create must be 0 or more"):
        Phases(create=-1)


@pytest.mark.clause("FAKE-7")
def test_a_run_that_hangs_is_ended_by_the_time_limit(chat: Chat) -> None:
    fake = FakeCursor([[Text("a"), Hang()]])
    with pytest.raises(CursorTimeoutError):
        chat(fake, timeout=0.2).invoke("x")
    fake.wait_for(lambda fake: fake.runs[0].outcome == "cancelled")


@pytest.mark.clause("FAKE-7")
def test_a_run_is_cancelled_with_its_caller(chat: Chat) -> None:
    fake = FakeCursor([Hang()])

    async def main() -> None:
        call = asyncio.ensure_future(chat(fake).ainvoke("x"))
        await fake.await_for(lambda fake: fake.runs)
        call.cancel()
        await asyncio.wait([call])
        await fake.await_for(lambda fake: fake.runs[0].outcome == "cancelled")

    asyncio.run(main())
    fake.assert_done()


@pytest.mark.clause("FAKE-7")
def test_closing_the_model_cancels_its_runs(chat: Chat) -> None:
    fake = FakeCursor([Hang()])
    model = chat(fake)
    failed: list[CursorError] = []

    def call() -> None:
        try:
            model.invoke("x")
        except CursorError as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    fake.wait_for(lambda fake: fake.runs)
    model.close()
    thread.join(5)
    assert [type(error) for error in failed] == [errors.CursorClosedError]


# --- The account, the machine and the version -----------------------------------------------------


@pytest.mark.clause("FAKE-8")
def test_without_a_sandbox_agents_run_without_it(
    chat: Chat, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeCursor(["ok", "ok"], sandbox=False)
    model = chat(fake)
    for _ in range(2):
        assert model.invoke("x").text == "ok"
    told = [r for r in caplog.records if "sandbox is not supported" in r.getMessage()]
    assert len(told) == 1
    assert fake.runs[-1].agent.options["local"]["sandboxOptions"] == {"enabled": False}
    fake.assert_done()


@pytest.mark.clause("FAKE-8")
def test_a_refused_system_prompt_goes_into_the_text(
    chat: Chat, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeCursor(["ok", "ok"], system_prompt="refused")
    model = chat(fake)
    for _ in range(2):
        assert model.invoke([("system", "Be brief."), ("human", "x")]).text == "ok"
    assert [run.outcome for run in fake.runs] == ["error", "finished", "finished"]
    assert fake.runs[-1].received.system_prompt is None
    fake.assert_system("Be brief.", times=3)
    fake.assert_done()  # a refused run takes no reply
    with pytest.raises(ValueError, match="'allowed' or 'refused'"):
        FakeCursor(system_prompt="maybe")  # type: ignore[arg-type] # what is refused here


@pytest.mark.clause("FAKE-9")
def test_before_1_0_29_agents_have_their_tools(
    chat: Chat, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeCursor(["ok"], version="1.0.24")
    chat(fake).invoke([("system", "Be brief."), ("human", "x")])
    (run,) = fake.runs
    assert run.received.allowed_tools is None
    assert run.system is not None
    assert run.system.startswith(GUARDRAIL)
    assert not any(agent.is_lease for agent in fake.agents)
    assert "cannot deny an agent its tools" in caplog.text


@pytest.mark.clause("FAKE-9")
def test_before_1_0_29_the_options_have_no_tools() -> None:
    sdk = FakeCursor(version="1.0.24").sdk()
    assert sdk.AgentOptions(model="auto").to_json() == {"model": {"id": "auto"}}
    with pytest.raises(TypeError, match="unexpected keyword argument 'tools'"):
        sdk.AgentOptions(tools=[])
    assert FakeCursor(version="1.0.29").sdk().AgentOptions is cursor_sdk.AgentOptions


@pytest.mark.clause("FAKE-9")
def test_before_1_0_31_system_text_stands_in_the_prompt(chat: Chat) -> None:
    fake = FakeCursor(["ok"], version="1.0.29")
    chat(fake).invoke([("system", "Be brief."), ("human", "x")])
    assert fake.runs[0].received.system_prompt is None
    fake.assert_system("Be brief.")


@pytest.mark.clause("FAKE-9")
def test_before_1_0_40_the_last_status_tells_why_a_run_failed(chat: Chat) -> None:
    fake = FakeCursor([Error("resource_exhausted", "slow down")], version="1.0.39")
    with pytest.raises(errors.CursorRateLimitError, match="slow down"):
        chat(fake).invoke("x")


@pytest.mark.clause("FAKE-9")
def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="version must be one of cursor-sdk"):
        FakeCursor(version="latest")


@pytest.mark.clause("FAKE-10")
def test_executors_are_counted(chat: Chat) -> None:
    fake = FakeCursor()
    model = chat(fake)
    for _ in range(3):
        model.invoke("x")
    assert fake.executor_builds == 1
    cold = FakeCursor()
    model = chat(cold, keep_alive=0)
    for _ in range(2):
        model.invoke("x")
        cold.assert_closed()
        assert until(lambda: not any(agent.is_open for agent in cold.agents))
    assert cold.executor_builds == 2


@pytest.mark.clause("FAKE-10")
def test_prewarming_takes_a_lease_and_no_reply(chat: Chat) -> None:
    fake = FakeCursor(["ok"])
    model = chat(fake)
    model.prewarm()
    assert [agent.is_lease for agent in fake.agents] == [True]
    assert (fake.executor_builds, fake.runs) == (1, [])
    assert model.invoke("x").text == "ok"
    assert fake.executor_builds == 1


@pytest.mark.clause("FAKE-10")
def test_the_stock_bridge_has_no_lease(chat: Chat) -> None:
    fake = FakeCursor(["ok"])
    chat(fake, bridge_extension=False).invoke([("system", "Be brief."), ("human", "x")])
    assert not any(agent.is_lease for agent in fake.agents)
    assert fake.runs[0].received.system_prompt is None


# --- LangGraph ------------------------------------------------------------------------------------


@pytest.mark.clause("FAKE-4")
def test_an_agent_of_langchain(chat: Chat) -> None:
    from langchain.agents import create_agent

    fake = FakeCursor([tool_call("add", {"a": 2, "b": 3}), "It is 5."])
    agent = create_agent(chat(fake), [add])
    result = agent.invoke({"messages": [HumanMessage("What is 2 + 3?")]})
    assert result["messages"][-1].text == "It is 5."
    assert isinstance(result["messages"][-2], ToolMessage)
    assert [turn.role for turn in fake.runs[1].turns] == ["user", "assistant", "tool_result"]
    fake.assert_tools_offered(["add"])
    fake.assert_done()


@pytest.mark.clause("FAKE-15")
def test_nothing_is_logged_that_would_worry_a_reader(
    chat: Chat, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "langchain_cursor"):
        chat(FakeCursor(["ok"])).invoke("x")
    assert [r for r in caplog.records if r.name.startswith("langchain_cursor")] == []


@pytest.mark.clause("FAKE-15")
def test_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ChatCursor(sdk_loader=FakeCursor(["ok"]).sdk) as model:
        model.invoke("x")
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
