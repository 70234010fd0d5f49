"""A LangGraph agent with tools and a memory, written out as a graph.

`langchain.agents.create_agent` builds much the same in one line; take the graph when you want nodes
and edges of your own. Needs `pip install langgraph`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from account import account
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from langchain_cursor import ChatCursor


@tool
def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"It is sunny in {city}, 21 degrees."


@tool
def get_time(city: str) -> str:
    """Tell the local time in a city."""
    return f"It is noon in {city}."


def build(llm: ChatCursor) -> CompiledStateGraph[Any]:
    """A graph that asks the model, calls the tools that it wants, and asks again."""
    tools = [get_weather, get_time]
    model = llm.bind_tools(tools)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    return graph.compile(checkpointer=InMemorySaver())


async def converse(llm: ChatCursor) -> None:
    """Ask twice in one conversation, and print each step as it comes."""
    agent = build(llm)
    thread = {"configurable": {"thread_id": "1"}}
    for question in (
        'What is the weather in "Bern"? Use get_weather.',
        'And what time is it in "Oslo"? Use get_time.',
    ):
        print(f"You:   {question}")
        asked = {"messages": [("human", question)]}
        async for step in agent.astream(asked, thread, stream_mode="updates"):
            for node, update in step.items():
                for message in update["messages"]:
                    calls = getattr(message, "tool_calls", [])
                    wanted = ", ".join(f"{call['name']}({call['args']})" for call in calls)
                    print(f"{node + ':':6} {message.text or wanted}")


def main() -> None:
    """Run the conversation on your account, or on the stand-in."""
    with account() as arguments, ChatCursor(**arguments) as llm:
        asyncio.run(converse(llm))


if __name__ == "__main__":
    main()
