"""Tools, structured output and agents, through the real SDK and its real bridge."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from langchain_cursor import ChatCursor, CursorContractError
from langchain_cursor_fakes import CursorCloud, Text, Usage, misbehave

pytestmark = pytest.mark.bridge

Chat = Callable[..., ChatCursor]


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


def _calls(message: AIMessage) -> list[tuple[str, dict[str, Any]]]:
    return [(call["name"], call["args"]) for call in message.tool_calls]


@pytest.mark.clause("TOOLS-1")
def test_a_tool_is_called_with_arguments_that_fit(chat: Chat, cloud: CursorCloud) -> None:
    message = chat().bind_tools(TOOLS).invoke('get_weather for "Bern"')
    assert _calls(message) == [("get_weather", {"city": "Bern"})]
    assert message.content == ""
    assert message.response_metadata["raw_reply"].startswith('{"tool_calls":')
    assert "<contract>" in cloud.runs[0].received.text
    assert cloud.runs[0].received.allowed_tools == ""


@pytest.mark.clause("TOOLS-1")
def test_parallel_calls_have_ids_of_their_own(chat: Chat) -> None:
    message = chat().bind_tools(TOOLS).invoke('get_weather and get_time for "Bern"')
    assert [name for name, _ in _calls(message)] == ["get_weather", "get_time"]
    assert len({call["id"] for call in message.tool_calls}) == 2


@pytest.mark.clause("TOOLS-2")
def test_an_answer_without_calls_is_plain_text(chat: Chat) -> None:
    message = chat().bind_tools(TOOLS).invoke("say: nothing to look up")
    assert (message.text, message.tool_calls) == ("nothing to look up", [])


@pytest.mark.clause("TOOLS-3")
@pytest.mark.parametrize(
    "choice", ["any", "required", True, "get_time", {"type": "tool", "name": "get_time"}]
)
def test_tool_choice_forces_a_call(chat: Chat, choice: Any) -> None:
    message = chat().bind_tools(TOOLS, tool_choice=choice).invoke("get_time")
    assert [name for name, _ in _calls(message)] == ["get_time"]


@pytest.mark.clause("TOOLS-3")
def test_tool_choice_none_binds_nothing(chat: Chat, cloud: CursorCloud) -> None:
    message = chat().bind_tools(TOOLS, tool_choice="none").invoke("get_time")
    assert message.tool_calls == []
    assert "<contract>" not in cloud.runs[0].received.text


@pytest.mark.clause("TOOLS-3")
def test_an_unknown_tool_choice_is_refused_at_once(chat: Chat) -> None:
    with pytest.raises(ValueError, match=r"'get_wether'.*'get_weather'"):
        chat().bind_tools(TOOLS, tool_choice="get_wether")


@pytest.mark.clause("TOOLS-4")
def test_a_reply_that_breaks_the_contract_is_answered_once(chat: Chat, cloud: CursorCloud) -> None:
    cloud.brain = misbehave("wrong_tool")
    message = chat().bind_tools(TOOLS).invoke('get_weather for "Bern"')
    assert _calls(message) == [("get_weather", {"city": "Bern"})]
    first, second = (run.received for run in cloud.runs)
    assert first.agent_id == second.agent_id
    assert "no_such_get_weather" in second.text
    assert '"get_weather", "get_time", "divide"' in second.text


@pytest.mark.clause("TOOLS-4")
def test_usage_of_both_turns_adds_up(chat: Chat, cloud: CursorCloud) -> None:
    bad = misbehave("wrong_types")
    cloud.brain = lambda run: [*bad(run), Usage(10, 2, 1, 0, 1)]
    message = chat().bind_tools([divide]).invoke("divide 6 by 3")
    assert message.usage_metadata is not None
    assert message.usage_metadata["input_tokens"] == 22
    assert message.usage_metadata["output_tokens"] == 4
    assert message.usage_metadata["output_token_details"] == {"reasoning": 2}


@pytest.mark.clause("TOOLS-5")
def test_a_second_failure_is_an_error_with_the_reply(own_chat: Chat, cloud: CursorCloud) -> None:
    cloud.brain = misbehave("wrong_tool", "broken_json")
    model = own_chat(keep_alive=0)
    with pytest.raises(CursorContractError, match="broken at line 1") as caught:
        model.bind_tools(TOOLS).invoke('get_weather for "Bern"')
    error = caught.value
    assert isinstance(error, OutputParserException)
    assert (error.reason, error.is_retryable) == ("invalid-json", False)
    assert error.llm_output is not None
    assert error.llm_output.startswith('{"tool_calls')
    assert error.usage is not None
    assert error.usage["output_tokens"] > 0
    assert len(cloud.runs) == 2


@pytest.mark.clause("TOOLS-6")
def test_text_before_a_call_stays_in_content(chat: Chat, cloud: CursorCloud) -> None:
    cloud.brain = misbehave("prose_around")
    message = chat().bind_tools(TOOLS).invoke('get_weather for "Bern"')
    assert message.text.startswith("Let me look that up.")
    assert _calls(message) == [("get_weather", {"city": "Bern"})]


@pytest.mark.clause("TOOLS-7")
def test_a_conversation_with_results_reads_consistently(chat: Chat, cloud: CursorCloud) -> None:
    model = chat().bind_tools(TOOLS)
    history: list[Any] = [HumanMessage('get_weather for "Bern" and get_time for "CET"')]
    history.append(model.invoke(history))
    for call in history[-1].tool_calls:
        error = call["name"] == "get_time"
        history.append(
            ToolMessage(
                "no clock" if error else "sunny",
                tool_call_id=call["id"],
                status="error" if error else "success",
            )
        )
    answer = model.invoke(history)
    assert answer.text == "get_weather returned: sunny\nget_time failed: no clock"
    prompt = cloud.runs[-1].received.text
    for call in history[1].tool_calls:
        assert f'"id": "{call["id"]}"' in prompt
        assert f'<tool_result name="{call["name"]}" call_id="{call["id"]}"' in prompt


@pytest.mark.clause("TOOLS-7")
def test_an_image_in_a_tool_result_reaches_the_model(chat: Chat, cloud: CursorCloud) -> None:
    data = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()
    history = [
        HumanMessage("get_weather"),
        AIMessage("", tool_calls=[{"name": "get_weather", "args": {"city": "B"}, "id": "1"}]),
        ToolMessage(
            [{"type": "image", "base64": data, "mime_type": "image/png"}], tool_call_id="1"
        ),
    ]
    chat().bind_tools(TOOLS).invoke(history)
    assert [image.data for image in cloud.runs[0].received.images] == [b"\x89PNG\r\n\x1a\nrest"]


METHODS = ["function_calling", "json_schema"]


@pytest.mark.clause("STRUCTURED-1")
@pytest.mark.parametrize("method", METHODS)
def test_a_pydantic_class_gives_its_instance(chat: Chat, method: Any) -> None:
    structured = chat().with_structured_output(City, method=method)
    city = structured.invoke('The city with name "Bern" has 134000 people')
    assert city == City(name="Bern", people=134000)


class CityDict(TypedDict):
    """A city."""

    name: str
    people: int


SCHEMA = {
    "title": "City",
    "description": "A city.",
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
}


@pytest.mark.clause("STRUCTURED-1")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("schema", [CityDict, SCHEMA], ids=["typed_dict", "json_schema"])
@pytest.mark.asyncio
async def test_other_schemas_give_a_dict(chat: Chat, method: Any, schema: Any) -> None:
    structured = chat().with_structured_output(schema, method=method)
    assert await structured.ainvoke('The city with name "Bern" has 134000 people') == {
        "name": "Bern",
        "people": 134000,
    }


@pytest.mark.clause("STRUCTURED-1")
def test_a_schema_may_be_a_list(chat: Chat) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
    answer = chat().with_structured_output(schema, method="json_schema").invoke("7")
    assert answer == [7]


@pytest.mark.clause("STRUCTURED-2")
def test_json_mode_gives_any_object(chat: Chat) -> None:
    answer = chat().with_structured_output(method="json_mode").invoke("a question")
    assert answer == {"answer": "a question"}


@pytest.mark.clause("STRUCTURED-3")
@pytest.mark.parametrize("method", METHODS)
def test_include_raw_gives_message_and_data(chat: Chat, method: Any) -> None:
    structured = chat().with_structured_output(City, method=method, include_raw=True)
    found: Any = structured.invoke('The city with name "Bern" has 134000 people')
    assert isinstance(found["raw"], AIMessage)
    assert found["raw"].usage_metadata is not None
    assert (found["parsed"], found["parsing_error"]) == (City(name="Bern", people=134000), None)


@pytest.mark.clause("STRUCTURED-3")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.asyncio
async def test_include_raw_gives_a_broken_contract_as_data(
    chat: Chat, cloud: CursorCloud, method: Any
) -> None:
    cloud.brain = lambda run: [Text("no JSON today")]
    structured = chat().with_structured_output(City, method=method, include_raw=True)
    for found in (structured.invoke("x"), await structured.ainvoke("x")):
        assert isinstance(found, dict)
        assert found["raw"].content == "no JSON today"
        assert found["parsed"] is None
        assert isinstance(found["parsing_error"], CursorContractError)


@pytest.mark.clause("STRUCTURED-4")
@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_value_is_asked_for_again(chat: Chat, cloud: CursorCloud, method: Any) -> None:
    cloud.brain = misbehave("broken_json")
    structured = chat().with_structured_output(City, method=method)
    assert structured.invoke('name "Bern", 5 people') == City(name="Bern", people=5)
    assert len(cloud.runs) == 2


@pytest.mark.clause("STRUCTURED-5")
@pytest.mark.parametrize("method", METHODS)
def test_a_cached_message_gives_the_same_data(chat: Chat, cloud: CursorCloud, method: Any) -> None:
    structured = chat(cache=InMemoryCache()).with_structured_output(City, method=method)
    question = 'name "Bern", 5 people'
    assert structured.invoke(question) == structured.invoke(question) == City(name="Bern", people=5)
    assert len(cloud.runs) == 1


@pytest.mark.clause("STRUCTURED-6")
def test_bad_requests_for_structure_are_refused_at_once(chat: Chat) -> None:
    with pytest.raises(ValueError, match="no method 'magic'"):
        chat().with_structured_output(City, method="magic")  # type: ignore[arg-type] # on purpose
    with pytest.raises(ValueError, match="needs a schema"):
        chat().with_structured_output()
    with pytest.raises(ValueError, match="takes no 'tools'"):
        chat().with_structured_output(City, tools=[])


QUESTION = 'get_weather for "Bern" and get_time for "CET"'
RESULTS = ["It is sunny in Bern.", "It is noon in CET."]


@pytest.mark.clause("TOOLS-8")
@pytest.mark.asyncio
async def test_create_agent_loops_to_an_answer_with_parallel_calls(chat: Chat) -> None:
    agent = create_agent(chat(), tools=TOOLS, system_prompt="Use the tools.")
    given: Any = {"messages": [("human", 'get_weather and get_time for "Bern"')]}
    for state in (agent.invoke(given), await agent.ainvoke(given)):
        kinds = [message.type for message in state["messages"]]
        assert kinds == ["human", "ai", "tool", "tool", "ai"]
        last = state["messages"][-1]
        assert last.tool_calls == []
        assert "get_weather returned: It is sunny in Bern." in last.text
        assert "get_time returned: It is noon in Bern." in last.text


@pytest.mark.clause("TOOLS-8")
def test_an_erroring_tool_is_told_to_the_model(chat: Chat) -> None:
    builder = StateGraph(MessagesState)
    model = chat().bind_tools(TOOLS)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode(TOOLS, handle_tool_errors=True))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    graph = builder.compile()
    state = graph.invoke({"messages": [HumanMessage("divide 1 by 0")]})
    last = state["messages"][-1]
    assert last.tool_calls == []
    assert last.text.startswith("divide failed: ")
    assert "division by zero" in last.text


@pytest.mark.clause("TOOLS-8")
@pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy, None])
@pytest.mark.asyncio
async def test_create_agent_with_a_response_format(chat: Chat, strategy: Any) -> None:
    wanted = City if strategy is None else strategy(City)
    agent = create_agent(chat(), tools=[get_weather], response_format=wanted)
    given: Any = {"messages": [("human", 'City with name "Bern" and 5 people')]}
    for state in (agent.invoke(given), await agent.ainvoke(given)):
        assert state["structured_response"] == City(name="Bern", people=5)
