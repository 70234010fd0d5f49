"""Tools, structured output and agents, through the real SDK and its real bridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.caches import InMemoryCache
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from typing_extensions import TypedDict

from langchain_cursor import ChatCursor
from langchain_cursor_fakes import CursorCloud
from tests.behaviour.test_tools import TOOLS, City, calls_of, get_weather

pytestmark = pytest.mark.bridge

Chat = Callable[..., ChatCursor]


@pytest.mark.clause("TOOLS-3")
@pytest.mark.parametrize(
    "choice", ["any", "required", True, "get_time", {"type": "tool", "name": "get_time"}]
)
def test_tool_choice_forces_a_call(chat: Chat, choice: Any) -> None:
    message = chat().bind_tools(TOOLS, tool_choice=choice).invoke("get_time")
    assert [name for name, _ in calls_of(message)] == ["get_time"]


@pytest.mark.clause("TOOLS-3")
def test_tool_choice_none_binds_nothing(chat: Chat, cloud: CursorCloud) -> None:
    message = chat().bind_tools(TOOLS, tool_choice="none").invoke("get_time")
    assert message.tool_calls == []
    assert "<contract>" not in cloud.runs[0].received.text


@pytest.mark.clause("TOOLS-3")
def test_an_unknown_tool_choice_is_refused_at_once(chat: Chat) -> None:
    with pytest.raises(ValueError, match=r"'get_wether'.*'get_weather'"):
        chat().bind_tools(TOOLS, tool_choice="get_wether")


METHODS = ["function_calling", "json_schema"]


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
