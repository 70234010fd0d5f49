"""Recognises tool calls in the shapes in which models write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from langchain_cursor._json_scan import decode
from langchain_cursor._reply_scan import SPACE, Reading

KEY: Final = "tool_calls"
"""The key of the contract's own form."""

_OTHER_KEYS: Final = ("toolCalls", "tool_call", "function_call")
_NAME_KEYS: Final = ("name", "tool_name", "tool", "function")
_ARGUMENT_KEYS: Final = ("arguments", "args", "parameters", "input")
_CALL_KEYS: Final = frozenset({*_NAME_KEYS, *_ARGUMENT_KEYS, "id", "type", "index"})


@dataclass(frozen=True)
class Shape:
    """A call as it was written, before it is judged.

    Args:
        name: The tool's name.
        arguments: What stood for the arguments, None if nothing did.
        foreign: Keys that have no place in a call.
        has_arguments: Whether there was a key for arguments at all.
    """

    name: str
    arguments: object
    foreign: tuple[str, ...]
    has_arguments: bool


def shape_of(entry: object) -> Shape | None:
    """Return the call that `entry` is, or None if it has not even a name.

    Args:
        entry: A decoded JSON value.

    Example:
        >>> shape_of({"type": "function", "function": {"name": "now", "arguments": "{}"}})
        Shape(name='now', arguments='{}', foreign=(), has_arguments=True)
    """
    if not isinstance(entry, dict):
        return None
    fields = entry
    inner = entry.get("function")
    if isinstance(inner, dict):
        fields = {key: value for key, value in entry.items() if key != "function"} | inner
    name = next((fields[key] for key in _NAME_KEYS if isinstance(fields.get(key), str)), None)
    if name is None:
        return None
    given = [fields[key] for key in _ARGUMENT_KEYS if key in fields]
    return Shape(
        name,
        next((value for value in given if value is not None), None),
        tuple(key for key in fields if key not in _CALL_KEYS),
        bool(given),
    )


def arguments_of(shape: Shape) -> object:
    """Return the arguments of a call, decoded if they were written as a string.

    Nothing, null and an empty string are all no arguments.

    Args:
        shape: The call.

    Raises:
        JSONError: They are a string that is not JSON.
    """
    arguments = shape.arguments
    if isinstance(arguments, str):
        arguments = decode(arguments) if arguments.strip(SPACE) else None
    return {} if arguments is None else arguments


class CallReader:
    """Tells the calls in a reply from other JSON.

    An object with the key ``tool_calls`` is meant as calls. A bare call or a list of them is
    only if it has nothing else in it and names a known tool; where a call is due, further keys
    and unknown names are taken too, to be told what is wrong with them.

    Args:
        knows: Whether a name is that of a tool.
        must_call: Whether a call is due.
        holds_all: Whether no text may be shown before the whole reply is there.
    """

    takes_lists: Final = False
    watch: Final = frozenset({KEY, *_NAME_KEYS, *_ARGUMENT_KEYS})

    def __init__(self, knows: Callable[[str], bool], *, must_call: bool, holds_all: bool) -> None:
        self.holds_all = holds_all
        self._knows = knows
        self._must_call = must_call

    def read(self, value: object) -> Reading | None:
        """Return the calls in `value`, or None if it is other JSON."""
        if isinstance(value, dict) and KEY in value:
            content = value.get("content")
            return Reading(_entries(value[KEY]), content if isinstance(content, str) else "")
        if isinstance(value, list) and value and all(_is_full(item) for item in value):
            return Reading([entry for item in value for entry in _entries(item[KEY])])
        if isinstance(value, dict):
            value = next((value[key] for key in _OTHER_KEYS if key in value), value)
        entries = _entries(value)
        shapes = [shape_of(entry) for entry in entries]
        calls = [shape for shape in shapes if shape is not None and self._is_call(shape)]
        if not calls or len(calls) < len(entries):
            return None
        if self._must_call or any(self._knows(call.name) for call in calls):
            return Reading(entries, full=False)
        return None

    def tried(self, seen: Mapping[str, str], *, has_parts: bool) -> bool:
        """Tell whether a broken value was meant as calls."""
        if KEY in seen:
            return True
        name = next((seen[key] for key in _NAME_KEYS if seen.get(key)), None)
        if name is None or not any(key in seen for key in _ARGUMENT_KEYS):
            return False
        return self._must_call or self._knows(name)

    def _is_call(self, shape: Shape) -> bool:
        return not shape.foreign or (self._must_call and shape.has_arguments)


def _is_full(value: object) -> bool:
    return isinstance(value, dict) and KEY in value


def _entries(value: object) -> list[object]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
