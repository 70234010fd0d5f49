"""Tools, agents and structured output: calls that fit, one re-ask, then an error."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from langchain_cursor import CursorContractError
from langchain_cursor_fakes import Usage, misbehave
from tests.behaviour.backends import Backend, runs, scripted
from tests.behaviour.test_calls import PICTURE, PNG


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


@tool
def get_time(zone: str) -> str:
    """The time in a zone."""
    return f"It is noon in {zone}."


@tool
def divide(a: int, b: int) -> float:
    """Divide a by b."""
    return a / b


class City(BaseModel):
    """A city."""

    name: str = Field(description="The city's name")
    people: int


TOOLS = [get_weather, get_time, divide]
BERN = City(name="Bern", people=134000)
QUESTION = 'The city with the name "Bern" has 134000 people.'
METHODS = pytest.mark.parametrize("method", ["function_calling", "json_schema"])


def calls_of(message: AIMessage) -> list[tuple[str, dict[str, Any]]]:
    return [(call["name"], call["args"]) for call in message.tool_calls]


# --- Tools ----------------------------------------------------------------------------------------


@runs(2)  # a real model may need the re-ask
@pytest.mark.clause("TOOLS-1")
def test_a_tool_is_called_with_arguments_that_fit(backend: Backend) -> None:
    message = backend.chat().bind_tools(TOOLS).invoke('get_weather for "Bern"')
    assert calls_of(message) == [("get_weather", {"city": "Bern"})]
    assert message.tool_calls[0]["id"]
    assert "tool_calls" in message.response_metadata["raw_reply"]


@scripted
@pytest.mark.clause("TOOLS-1")
def test_the_contract_stands_in_the_prompt(backend: Backend) -> None:
    message = backend.chat().bind_tools(TOOLS).invoke('get_weather for "Bern"')
    assert message.content == ""
    (run,) = backend.received
    assert "<contract>" in run.text
    assert run.allowed_tools == ""


@runs(2)
@pytest.mark.clause("TOOLS-1")
def test_parallel_calls_have_ids_of_their_own(backend: Backend) -> None:
    question = 'In one reply, call get_weather and get_time, both for "Bern".'
    message = backend.chat().bind_tools(TOOLS).invoke(question)
    assert calls_of(message) == [("get_weather", {"city": "Bern"}), ("get_time", {"zone": "Bern"})]
    assert len({call["id"] for call in message.tool_calls}) == 2


@runs(2)
@pytest.mark.clause("TOOLS-2")
def test_an_answer_without_calls_is_plain_text(backend: Backend) -> None:
    message = backend.chat().bind_tools(TOOLS).invoke("say: nothing to look up")
    backend.check_answer(message.text, "nothing to look up")
    assert message.tool_calls == []


@runs(2)
@pytest.mark.clause("TOOLS-3")
@pytest.mark.parametrize("choice", ["any", "get_time"])
def test_tool_choice_forces_a_call(backend: Backend, choice: str) -> None:
    model = backend.chat().bind_tools([get_time], tool_choice=choice)
    message = model.invoke('What time is it in the zone "CET"?')
    assert calls_of(message) == [("get_time", {"zone": "CET"})]


@scripted
@pytest.mark.clause("TOOLS-4")
def test_a_reply_that_breaks_the_contract_is_answered_once(backend: Backend) -> None:
    backend.script(misbehave("wrong_tool"))
    message = backend.chat().bind_tools(TOOLS).invoke('get_weather for "Bern"')
    assert calls_of(message) == [("get_weather", {"city": "Bern"})]
    first, second = backend.received
    assert first.agent_id == second.agent_id
    assert (first.turn, second.turn) == (1, 2)
    assert "no_such_get_weather" in second.text
    assert '"get_weather", "get_time", "divide"' in second.text


@scripted
@pytest.mark.clause("TOOLS-4")
def test_usage_of_both_turns_adds_up(backend: Backend) -> None:
    bad = misbehave("wrong_types")
    backend.script(lambda run: [*bad(run), Usage(10, 2, 1, 0, 1)])
    message = backend.chat().bind_tools([divide]).invoke("divide 6 by 3")
    assert message.usage_metadata is not None
    assert message.usage_metadata["input_tokens"] == 22
    assert message.usage_metadata["output_tokens"] == 4
    assert message.usage_metadata["output_token_details"] == {"reasoning": 2}


@scripted
@pytest.mark.clause("TOOLS-5")
def test_a_second_failure_is_an_error_with_the_reply(backend: Backend) -> None:
    backend.script(misbehave("wrong_tool", "broken_json"))
    with pytest.raises(CursorContractError, match="broken at line 1") as caught:
        backend.chat().bind_tools(TOOLS).invoke('get_weather for "Bern"')
    error = caught.value
    assert isinstance(error, OutputParserException)
    assert (error.reason, error.is_retryable) == ("invalid-json", False)
    assert error.llm_output is not None
    assert error.llm_output.startswith('{"tool_calls')
    assert error.usage is not None
    assert error.usage["output_tokens"] > 0
    assert len(backend.received) == 2


@scripted
@pytest.mark.clause("TOOLS-6")
def test_text_before_a_call_stays_in_content(backend: Backend) -> None:
    backend.script(misbehave("prose_around"))
    message = backend.chat().bind_tools(TOOLS).invoke('get_weather for "Bern"')
    assert message.text.startswith("Let me look that up.")
    assert calls_of(message) == [("get_weather", {"city": "Bern"})]


# --- Conversations with tools ---------------------------------------------------------------------


@scripted
@pytest.mark.clause("TOOLS-7")
def test_calls_and_their_results_read_consistently(backend: Backend) -> None:
    model = backend.chat().bind_tools(TOOLS)
    history: list[Any] = [HumanMessage('get_weather for "Bern" and get_time for "CET"')]
    history.append(model.invoke(history))
    weather, time = history[-1].tool_calls
    history.append(ToolMessage("sunny", tool_call_id=weather["id"]))
    history.append(ToolMessage("no clock", tool_call_id=time["id"], status="error"))
    answer = model.invoke(history)
    assert answer.text == "get_weather returned: sunny\nget_time failed: no clock"
    prompt = backend.received[-1].text
    for name, id in zip(("get_weather", "get_time"), backend.seen_ids(weather, time), strict=True):
        assert f'"id": "{id}"' in prompt
        assert f'<tool_result name="{name}" call_id="{id}"' in prompt


@scripted
@pytest.mark.clause("TOOLS-7")
def test_an_image_in_a_tool_result_reaches_the_model(backend: Backend) -> None:
    history = [
        HumanMessage("get_weather"),
        AIMessage("", tool_calls=[{"name": "get_weather", "args": {"city": "B"}, "id": "1"}]),
        ToolMessage([PICTURE], tool_call_id="1"),
    ]
    backend.chat().bind_tools(TOOLS).invoke(history)
    assert [image.data for image in backend.received[0].images] == [PNG]


@runs(6)  # two turns, sync and async, and a re-ask for good measure
@pytest.mark.clause("TOOLS-8")
async def test_an_agent_loops_to_an_answer(backend: Backend) -> None:
    agent = create_agent(backend.chat(), tools=TOOLS, system_prompt="Use the tools.")
    given: Any = {"messages": [("human", 'get_weather for "Bern"')]}
    for state in (agent.invoke(given), await agent.ainvoke(given)):
        kinds = [message.type for message in state["messages"]]
        assert (kinds[:3], kinds[-1]) == (["human", "ai", "tool"], "ai")
        last = state["messages"][-1]
        assert last.tool_calls == []
        said = "get_weather returned: It is sunny in Bern."
        backend.check_answer(last.text, said, gist="sunny")


# --- Structured output ----------------------------------------------------------------------------


@METHODS
@runs(2)
@pytest.mark.clause("STRUCTURED-1")
def test_a_pydantic_class_gives_its_instance(backend: Backend, method: Any) -> None:
    structured = backend.chat().with_structured_output(City, method=method)
    assert structured.invoke(QUESTION) == BERN


@runs(2)
@pytest.mark.clause("STRUCTURED-2")
def test_json_mode_gives_any_object(backend: Backend) -> None:
    structured = backend.chat().with_structured_output(method="json_mode")
    question = "As JSON, with the one key 'colour': what colour is the sky by day?"
    answer: Any = structured.invoke(question)
    backend.check_answer(str(answer["colour"]), question, gist="blue")


@METHODS
@runs(2)
@pytest.mark.clause("STRUCTURED-3")
async def test_include_raw_gives_message_and_data(backend: Backend, method: Any) -> None:
    structured = backend.chat().with_structured_output(City, method=method, include_raw=True)
    found: Any = await structured.ainvoke(QUESTION)
    assert isinstance(found["raw"], AIMessage)
    assert found["raw"].usage_metadata is not None
    assert (found["parsed"], found["parsing_error"]) == (BERN, None)


@METHODS
@scripted
@pytest.mark.clause("STRUCTURED-3")
def test_include_raw_gives_a_broken_contract_as_data(backend: Backend, method: Any) -> None:
    backend.script("no JSON today", "nor now")
    structured = backend.chat().with_structured_output(City, method=method, include_raw=True)
    found: Any = structured.invoke(QUESTION)
    assert found["raw"].content == "nor now"
    assert found["parsed"] is None
    assert isinstance(found["parsing_error"], CursorContractError)


@METHODS
@scripted
@pytest.mark.clause("STRUCTURED-4")
def test_a_wrong_value_is_asked_for_again(backend: Backend, method: Any) -> None:
    backend.script(misbehave("broken_json"))
    structured = backend.chat().with_structured_output(City, method=method)
    assert structured.invoke(QUESTION) == BERN
    assert len(backend.received) == 2
