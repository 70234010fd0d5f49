"""Tests of an application with FakeCursor: no account, no network, milliseconds.

Run them with `pytest test_application.py`. The fixture `fake_cursor` comes with the package.
"""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import tool

from langchain_cursor import ChatCursor, CursorRateLimitError
from langchain_cursor_fakes import Error, FakeCursor, tool_call

# --- the application ---

STOCK = {"apple": 3, "pear": 0}


@tool
def in_stock(fruit: str) -> int:
    """How many of a fruit are in stock."""
    return STOCK[fruit]


def answer_customer(llm: ChatCursor, question: str) -> str:
    """Answer a question, with a look at the stock if the model wants one."""
    agent = create_agent(llm, [in_stock], system_prompt="You sell fruit. Be polite.")
    try:
        state = agent.invoke({"messages": [("human", question)]})
    except CursorRateLimitError:
        return "Please come back in a minute."
    return state["messages"][-1].text


# --- its tests ---


def test_the_stock_is_looked_up(fake_cursor: FakeCursor) -> None:
    """The model asks for a tool; the application runs it, and tells the model."""
    fake_cursor.reply_with([tool_call("in_stock", {"fruit": "apple"}), "Yes, we have three."])
    llm = ChatCursor(sdk_loader=fake_cursor.sdk)
    assert answer_customer(llm, "Any apples?") == "Yes, we have three."
    fake_cursor.assert_system("Be polite")
    fake_cursor.assert_prompted("Any apples?")
    assert "3" in fake_cursor.runs[-1].received.text  # the tool's result


def test_a_busy_hour_is_told_politely(fake_cursor: FakeCursor) -> None:
    """Cursor refuses; the customer sees a sentence, not a traceback."""
    fake_cursor.reply_with([Error("resource_exhausted", "slow down")])
    llm = ChatCursor(sdk_loader=fake_cursor.sdk, max_retries=0)
    assert answer_customer(llm, "Any pears?") == "Please come back in a minute."
