"""Reads a prompt as a test thinks of it: messages, the newest of them, the tools on offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langchain_cursor.serializer import Turn


def read_turns(text: str) -> list[Turn]:
    r"""The messages of a prompt. A prompt that ChatCursor did not write is one user message.

    >>> [(turn.role, turn.text) for turn in read_turns("<system>\nBe brief.\n</system>")]
    [('system', 'Be brief.')]
    >>> [(turn.role, turn.text) for turn in read_turns("Hi")]
    [('user', 'Hi')]
    """
    from langchain_cursor.serializer import Turn, parse  # brings LangChain: not at import

    try:
        turns = parse(text)
    except ValueError:
        return [Turn("user", (text,))]
    return [turn for turn in turns if turn.role != "contract"]


def read_tools(text: str) -> list[str]:
    """The names of the tools that a prompt offers, in order; of a forced tool that one alone."""
    from langchain_cursor.contract import Contract, read  # brings JSON Schema: not at import

    contract = read(text)
    return list(contract.names) if isinstance(contract, Contract) else []
