"""Replies for a `FakeCursor`: what a test says that the model answers, and how things go wrong.

>>> tool_call("add", {"a": 1, "b": 2})
'{"tool_calls":[{"name":"add","arguments":{"a":1,"b":2}}]}'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .runs import ReceivedRun, Step


@dataclass(frozen=True)
class BridgeDies:
    """The bridge process ends.

    Args:
        when: ``"during"``: where this step stands in the reply; as the first or only one, before
            the run has said anything. ``"before"``: it is found dead when the run is sent, so that
            the run certainly did not begin. ``"after"``: once the run has finished.
    """

    when: Literal["before", "during", "after"] = "during"

    def __post_init__(self) -> None:
        if self.when not in ("before", "during", "after"):
            raise ValueError(f"BridgeDies is 'before', 'during' or 'after', not {self.when!r}")


@dataclass(frozen=True)
class Violation:
    """A reply that breaks the tool contract; made by `violation`.

    Args:
        kind: A name from `contract_brain.MISBEHAVIOURS`.
        of: The good reply that is broken; None for the one that the default brain would give.
    """

    kind: str
    of: str | None = None


FakeStep: TypeAlias = Step | BridgeDies | Exception
"""A step of a reply. An exception is raised where it stands: as the first step by `send`, else by
the stream."""

FakeReply: TypeAlias = (
    "str | FakeStep | type[Exception] | Violation | Answer"
    " | Iterable[str | FakeStep | type[Exception] | Violation]"
)
"""What a run is answered with. A text comes in one delta a word; a class of exceptions is one."""

Answer: TypeAlias = Callable[[ReceivedRun], FakeReply]
"""A function from what was asked to what is answered."""

Match: TypeAlias = str | re.Pattern[str] | Callable[[ReceivedRun], object]
"""What a run must be like: its newest message (the user's, or a tool's result) contains this text,
or a match of this regular expression; or the function says so."""


def tool_call(name: str, arguments: Mapping[str, Any] | None = None) -> str:
    """The reply that calls one tool, in the JSON of the tool contract.

    Args:
        name: The tool's name.
        arguments: Its arguments, as JSON has them.

    Raises:
        TypeError: The arguments hold something that JSON has not.
    """
    return tool_calls([(name, arguments or {})])


def tool_calls(calls: Iterable[tuple[str, Mapping[str, Any]] | Mapping[str, Any]]) -> str:
    """The reply that calls several tools.

    Args:
        calls: Each a name and arguments, or a LangChain `ToolCall`, whose id is dropped.

    Raises:
        TypeError: The arguments hold something that JSON has not.

    Example:
        >>> tool_calls([("now", {}), {"name": "add", "args": {"a": 1}, "id": "x"}])
        '{"tool_calls":[{"name":"now","arguments":{}},{"name":"add","arguments":{"a":1}}]}'
    """
    from langchain_cursor.contract import Call, render_calls  # not at import

    pairs = [(call["name"], call["args"]) if isinstance(call, Mapping) else call for call in calls]
    return render_calls(Call(name, dict(arguments)) for name, arguments in pairs)


def violation(kind: str, of: str | None = None) -> Violation:
    """A reply that breaks the tool contract in a way that models really do.

    Args:
        kind: A name from `contract_brain.MISBEHAVIOURS`, such as ``"wrong_tool"``.
        of: The good reply that is broken; None for the one that the default brain would give.

    Raises:
        ValueError: There is no such kind.
    """
    from .contract_brain import MISBEHAVIOURS  # not at import

    if kind not in MISBEHAVIOURS:
        raise ValueError(f"There is no violation {kind!r}. There are: {sorted(MISBEHAVIOURS)}.")
    return Violation(kind, of)
