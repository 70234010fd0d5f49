"""What a FakeCursor records, and assertions that say what was seen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from langchain_cursor import ChatCursor, CursorError
from langchain_cursor.serializer import Turn
from langchain_cursor_fakes import (
    Error,
    FakeCursor,
    Hang,
    ReceivedRun,
    Text,
    Thinking,
    tool_call,
)
from tests.conftest import until

pytestmark = pytest.mark.fake

Chat = Callable[..., ChatCursor]


@pytest.fixture
def fake() -> FakeCursor:
    return FakeCursor(["one", "two"])


@pytest.fixture
def model(fake: FakeCursor) -> Iterator[ChatCursor]:
    with ChatCursor(sdk_loader=fake.sdk, max_retries=0) as model:
        yield model


def failing(check: Callable[..., None], *args: Any, **named: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        check(*args, **named)
    return str(caught.value)


# --- What is recorded -----------------------------------------------------------------------------


@pytest.mark.clause("FAKE-11")
def test_a_run_is_recorded_as_it_was_asked(fake: FakeCursor, model: ChatCursor) -> None:
    model.invoke([("system", "Be brief."), ("human", "Hi"), ("ai", "Yes?"), ("human", "<user>")])
    (run,) = fake.runs
    assert run.turns == [
        Turn("user", ("Hi",)),
        Turn("assistant", ("Yes?",)),
        Turn("user", ("<user>",)),
    ]
    assert run.prompt == "Hi\n\nYes?\n\n<user>"
    assert (run.question, run.system, run.model) == ("<user>", "Be brief.", "composer-2.5")
    assert (run.answer, run.outcome, run.tools, run.images) == ("one", "finished", [], ())
    assert run.text.endswith("<user>\n<\\user>\n</user>")
    assert run.agent.system_prompt == "Be brief."
    assert run.agent.options["tools"] == {"names": []}


@pytest.mark.clause("FAKE-11")
def test_system_text_in_the_prompt_is_system_text_too(fake: FakeCursor) -> None:
    with ChatCursor(sdk_loader=fake.sdk, native_system_prompt=False) as model:
        model.invoke([("system", "Be brief."), ("human", "Hi")])
    assert fake.runs[0].received.system_prompt is None
    assert fake.runs[0].system == "Be brief."


@pytest.mark.clause("FAKE-11")
def test_what_chatcursor_did_not_write_is_one_user_message() -> None:
    fake = FakeCursor(["one"])

    async def main() -> None:
        agent = await fake.client().create_agent(model="auto", api_key="k", local={"cwd": "/"})
        await (await agent.send("Hi <user>")).wait()

    asyncio.run(main())
    assert (fake.runs[0].question, fake.runs[0].system) == ("Hi <user>", None)
    fake.assert_prompted("Hi <user>")


@pytest.mark.clause("FAKE-11")
def test_lists_do_not_change_under_a_readers_hands(fake: FakeCursor, model: ChatCursor) -> None:
    before = fake.runs, fake.agents, fake.failures
    model.invoke("x")
    assert before == ([], [], [])


@pytest.mark.clause("FAKE-11")
def test_clear_forgets_what_is_over(fake: FakeCursor, model: ChatCursor) -> None:
    model.invoke("x")
    fake.clear()
    assert (fake.runs, fake.failures, fake.executor_builds) == ([], [], 0)
    assert all(agent.is_open for agent in fake.agents)
    model.invoke("x")
    fake.assert_done()


@pytest.mark.clause("FAKE-11")
def test_clear_keeps_what_goes_on(fake: FakeCursor) -> None:
    fake.reply_with(["over", [Text("a "), Hang()]])
    with ChatCursor(sdk_loader=fake.sdk) as llm:
        llm.invoke("x")
        stream = llm.stream("y")
        next(stream)
        fake.clear()
        assert [run.question for run in fake.runs] == ["y"]
        stream.close()
        fake.wait_for(lambda fake: fake.runs[0].outcome == "cancelled")


@pytest.mark.clause("FAKE-11")
def test_a_function_can_read_what_it_is_asked(model: ChatCursor, fake: FakeCursor) -> None:
    seen: list[ReceivedRun] = []

    def answer(run: ReceivedRun) -> str:
        seen.append(run)
        return "ok"

    fake.reply_with(answer)
    tool = {"title": "now", "type": "object", "properties": {}}
    call = {"name": "now", "args": {}, "id": "1"}
    model.bind_tools([tool]).invoke(
        [
            SystemMessage("Be brief."),
            HumanMessage("What time is it?"),
            AIMessage("", tool_calls=[call]),
            ToolMessage("noon", tool_call_id="1"),
        ]
    )
    (run,) = seen
    assert (run.question, run.newest, run.system) == ("What time is it?", "noon", "Be brief.")
    assert [turn.role for turn in run.turns] == ["user", "assistant", "tool_result"]
    assert (run.tools, run.prompt) == (["now"], "What time is it?\n\n\n\nnoon")


@pytest.mark.clause("FAKE-11")
def test_waiting_in_vain_tells_what_was_recorded(fake: FakeCursor, model: ChatCursor) -> None:
    model.invoke("Hi")
    with pytest.raises(TimeoutError, match=r"1 runs, the last of them: \[\"finished: 'Hi'\"\]"):
        fake.wait_for(lambda fake: len(fake.runs) == 2, timeout=0.01)


# --- Assertions -----------------------------------------------------------------------------------


@pytest.mark.clause("FAKE-13")
def test_assert_prompted(fake: FakeCursor, model: ChatCursor) -> None:
    assert failing(fake.assert_prompted, "Hi") == (
        "No run has a prompt that contains 'Hi'. There was no run."
    )
    model.invoke("Hi there")
    model.invoke([("human", "Hi there"), ("ai", "one"), ("human", "And now?")])
    fake.assert_prompted("Hi")
    fake.assert_prompted(re.compile(r"^And now\?$", re.M))
    fake.assert_prompted("Hi", times=2)
    fake.assert_prompted("Bye", times=0)
    assert failing(fake.assert_prompted, "Hi", times=1) == (
        "Of the runs 2, not 1, have a prompt that contains 'Hi'. The runs so far:\n"
        "  run 1: 'Hi there'\n"
        "  run 2: 'Hi there\\n\\none\\n\\nAnd now?'"
    )
    assert "that matches '^Hi$'" in failing(fake.assert_prompted, re.compile("^Hi$"))


@pytest.mark.clause("FAKE-13")
def test_a_long_prompt_is_cut_in_the_message(fake: FakeCursor, model: ChatCursor) -> None:
    model.invoke("x" * 10_000 + "the end")
    told = failing(fake.assert_prompted, "y")
    assert len(told) < 500
    assert told.endswith("xthe end'")


@pytest.mark.clause("FAKE-13")
def test_of_many_runs_the_last_are_told(fake: FakeCursor, model: ChatCursor) -> None:
    fake.reply_with(lambda run: "ok")
    for number in range(12):
        model.invoke(str(number))
    told = failing(fake.assert_prompted, "y").splitlines()
    assert told[0].endswith("The runs so far, the last 10 of 12:")
    assert told[1:] == [f"  run {number}: '{number - 1}'" for number in range(3, 13)]


@pytest.mark.clause("FAKE-13")
def test_assert_system(fake: FakeCursor, model: ChatCursor) -> None:
    model.invoke([("system", "Be brief."), ("human", "Hi")])
    fake.assert_system("brief")
    fake.assert_system(re.compile(r"\ABe brief\.\Z"), times=1)
    assert failing(fake.assert_system, "Hi") == (
        "No run has a system text that contains 'Hi'. The runs so far:\n  run 1: 'Be brief.'"
    )


@pytest.mark.clause("FAKE-13")
def test_assert_tools_offered(model: ChatCursor, fake: FakeCursor) -> None:
    def tool(name: str) -> dict[str, Any]:
        return {"title": name, "type": "object", "properties": {}}

    fake.reply_with(lambda run: tool_call("a") if '"a"' in run.text else "no")
    model.invoke("x")
    fake.assert_tools_offered([])
    model.bind_tools([tool("a"), tool("b")]).invoke("x")
    fake.assert_tools_offered(["b", "a"])
    model.bind_tools([tool("a"), tool("b")], tool_choice="a").invoke("x")
    fake.assert_tools_offered(["a"])
    assert failing(fake.assert_tools_offered, ["c"]) == (
        "No run was offered exactly the tools ['c']. The runs so far:\n"
        "  run 1: 'no tools'\n  run 2: 'a, b'\n  run 3: 'a'"
    )


@pytest.mark.clause("FAKE-13")
@pytest.mark.parametrize("extension", [True, False])
def test_assert_closed_allows_one_that_holds_the_executor(extension: bool) -> None:
    fake = FakeCursor()
    with ChatCursor(sdk_loader=fake.sdk, bridge_extension=extension) as model:
        for _ in range(3):
            model.invoke("x")
        fake.assert_closed()
        (holder,) = [agent for agent in fake.agents if agent.is_open]
        assert holder.is_lease is extension
    fake.assert_closed()
    assert not any(agent.is_open for agent in fake.agents)


@pytest.mark.clause("FAKE-13")
def test_assert_closed_names_what_is_open() -> None:
    fake = FakeCursor()

    async def main() -> list[str]:
        client = fake.client()
        options = {"model": "auto", "apiKey": "k", "local": {"cwd": "/"}}
        agents = [await client.create_agent(options) for _ in range(2)]
        return [agent.agent_id for agent in agents]

    first, second = asyncio.run(main())
    assert failing(fake.assert_closed, timeout=0.01) == f"Agents are still open: {first} (runs: 0)."
    assert second not in failing(fake.assert_closed, timeout=0)


@pytest.mark.clause("FAKE-13")
def test_an_agent_with_a_run_under_way_is_open() -> None:
    fake = FakeCursor([Hang()])

    async def main() -> None:
        agent = await fake.client().create_agent(model="auto", api_key="k", local={"cwd": "/"})
        run = await agent.send("x")
        assert "still open" in failing(fake.assert_closed, timeout=0)
        await run.cancel()
        fake.assert_closed()

    asyncio.run(main())


@pytest.mark.clause("FAKE-13")
def test_assert_done_tells_what_was_not_asked_for(fake: FakeCursor, model: ChatCursor) -> None:
    model.invoke("x")
    assert failing(fake.assert_done) == (
        "Not asked for, of the script's replies: 'two'. Runs so far: 1."
    )
    model.invoke("x")
    fake.assert_done()


@pytest.mark.clause("FAKE-13")
def test_an_unexpected_run_fails_at_once_and_at_the_end(
    fake: FakeCursor, model: ChatCursor
) -> None:
    model.invoke("first")
    model.invoke("second")
    with pytest.raises(CursorError, match=r"did not expect this run.*'third'.*run 3") as caught:
        model.with_config(max_retries=2).invoke("third")
    assert isinstance(caught.value.__cause__, AssertionError)
    assert not caught.value.is_retryable
    assert len(fake.runs) == 3
    told = failing(fake.assert_done)
    assert told == (
        "FakeCursor did not expect this run: no reply of its script is left. The newest message "
        "was 'third', the model 'composer-2.5'. It was run 3."
    )


@pytest.mark.clause("FAKE-13")
def test_an_unexpected_retry_or_correction_is_told_as_such(
    fake: FakeCursor, model: ChatCursor
) -> None:
    fake.reply_with(["fine", Error("unavailable", "later")])
    model.invoke("before")
    with pytest.raises(CursorError, match=r"with the prompt of run 2, which failed: perhaps a ret"):
        model.model_copy(update={"max_retries": 1}).invoke("Hi")
    fake.clear()
    fake.reply_with(["It is sunny."])
    structured = model.with_structured_output({"title": "w", "type": "object", "properties": {}})
    with pytest.raises(CursorError, match=r"asks for a correction of the reply 'It is sunny\.'"):
        structured.invoke("Hi")
    assert "please report" not in failing(fake.assert_done)


@pytest.mark.clause("FAKE-13")
def test_a_run_that_no_rule_matches_is_unexpected(model: ChatCursor, fake: FakeCursor) -> None:
    fake.reply_with({"weather": "sunny", re.compile("sum"): "5"})
    with pytest.raises(CursorError, match="no rule matches"):
        model.invoke("time")
    assert "(rules: 'weather', re 'sum')" in failing(fake.assert_done)


@pytest.mark.clause("FAKE-13")
def test_what_a_function_raises_is_raised_again_at_the_end(
    model: ChatCursor, fake: FakeCursor
) -> None:
    def answer(run: ReceivedRun) -> str:
        assert "weather" in run.text, "expected a question about the weather"
        raise LookupError("nothing there")

    fake.reply_with(answer)
    for question in ("time?", "weather?"):
        with pytest.raises(CursorError):
            model.invoke(question)
    with pytest.raises(AssertionError, match=r"(?s)the weather.*\(1 more follow\)") as caught:
        fake.assert_done()
    assert caught.value.__cause__ is fake.failures[0]
    fake.clear()
    with pytest.raises(CursorError, match="nothing there"):
        model.invoke("weather?")
    assert failing(fake.assert_done) == "LookupError('nothing there')"


@pytest.mark.clause("FAKE-13")
def test_pytest_fail_in_a_function_fails_the_call(model: ChatCursor, fake: FakeCursor) -> None:
    def answer(run: ReceivedRun) -> Iterator[Text | Thinking]:
        yield Text("a")
        pytest.fail("not like this")

    fake.reply_with(answer)
    with pytest.raises(CursorError, match="not like this"):
        model.invoke("x")
    assert fake.runs[0].outcome == "error"
    assert until(lambda: fake.failures)
    assert "not like this" in failing(fake.assert_done)
