"""Follows one JSON value through a text that arrives in pieces, in a single forward pass.

The reader of model replies needs three things that `json` does not give: to know at once when a
text stops being JSON (so that prose is not held back), to go on where the last piece ended, and
to be bounded in depth and in the length of numbers. Values that have passed are then decoded by
`json` itself.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Mapping
from typing import Any, Final, Literal

MAX_DEPTH: Final = 100
"""Containers inside each other. Python's own decoder fails at about 1,000, some readers earlier."""

MAX_NUMBER: Final = 4_300
"""Characters in one number: the limit that Python 3.11 and later put on digits of an integer."""

_TOOL_CALLS: Final = "tool_calls"
_QUOTES: Final = "'`\u2018\u2019\u201c\u201d"
_SPACES = re.compile(r"[ \t\r\n]*")
_STRING_STOP = re.compile(r'["\\]')
_SCALAR_RUN = re.compile(r'[^ \t\r\n,:{}\[\]"]*')
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# Letters too: the message about True or None shows the whole word.
_SCALAR_START: Final = frozenset(f"-+.0123456789{string.ascii_letters}")
_AFTER_MISWRITTEN_KEY = re.compile(rf"[{_QUOTES}\"]?[ \t\r\n]{{0,8}}:?")
_SURROGATE = re.compile("[\ud800-\udfff]")

# Where the scan is: what may come next, or which token it is inside of.
_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COLON, _COMMA = range(6)
_STRING, _ESCAPE, _HEX, _SCALAR_TOKEN, _MISWRITTEN_KEY = range(6, 11)

_EXPECTED: Final = {
    _VALUE: "a value",
    _FIRST_VALUE: 'a value or "]"',
    _KEY: "a key in double quotes",
    _FIRST_KEY: 'a key in double quotes or "}"',
    _COLON: '":" after the key',
}


class JSONError(ValueError):
    """A text that is not JSON within the limits.

    Args:
        message: What was expected or found.
        position: Index of the character in the text, from 0.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position


class JsonScan:
    """One JSON value, from its first character until it is complete or cannot be JSON.

    Args:
        start: Index of the value's first character in the whole text.
        watch: Keys of the outermost object (or of the objects in the outermost list) to note.
        objects_only: A list must begin with an object, anything else is no JSON of interest.

    Attributes:
        position: Index of the next character to read.
        status: ``"open"``, ``"done"`` or ``"failed"``.
        seen: The watched keys met so far, each with its value if that was a string, else "".
        has_parts: Whether it got as far as a ":" or ",", which a bracket in prose seldom does.
        error: What was wrong, when failed.
        error_at: Index of the character that was wrong, when failed.
        last_string: Start and end of the string directly before ``error_at``, if there is one.
    """

    def __init__(
        self, start: int, *, watch: frozenset[str] = frozenset(), objects_only: bool = False
    ) -> None:
        self.start = start
        self.position = start
        self.status: Literal["open", "done", "failed"] = "open"
        self.seen: dict[str, str] = {}
        self.has_parts = False
        self.error = ""
        self.error_at = start
        self.last_string: tuple[int, int] | None = None
        self._watch = watch
        self._objects_only = objects_only
        self._state = _VALUE
        self._stack: list[str] = []
        self._token_start = start
        self._token: list[str] = []
        self._token_length = 0
        self._token_is_key = False
        self._token_matters = False
        self._key = ""
        self._hex_left = 0

    def advance(self, text: str, index: int) -> int:
        """Read on in `text` from `index`, which stands at `position`, and return where it stopped.

        Args:
            text: The piece of the whole text that holds `position`.
            index: Index of `position` in this piece.

        Returns:
            The index after the last character read. When failed, the character that was wrong
            has not been read.
        """
        offset = self.position - index
        size = len(text)
        while index < size and self.status == "open":
            state = self._state
            if state == _STRING:
                index = self._read_string(text, index, offset)
            elif state <= _COMMA:
                index = self._read_structure(text, index, offset)
            elif state == _SCALAR_TOKEN:
                index = self._read_scalar(text, index)
            elif state == _MISWRITTEN_KEY:
                index = self._read_miswritten_key(text, index)
            else:
                index = self._read_escape(text, index, offset)
        self.position = index + offset
        return index

    def end(self) -> None:
        """Say that no more text will come: a value that is still open is complete or failed."""
        if self.status == "open" and self._state == _SCALAR_TOKEN:
            self._close_scalar()
        if self.status == "open":
            self.last_string = None
            self._fail_at_end()

    def _fail_at_end(self) -> None:
        depth = len(self._stack)
        if self._state == _MISWRITTEN_KEY:
            self._fail(self._token_start, _EXPECTED[_KEY], self._token[0])
        elif not depth:
            self._fail_with(self.position, "there is no text")
        else:
            inside = "inside a string, " if self._state in (_STRING, _ESCAPE, _HEX) else ""
            brackets = "1 bracket" if depth == 1 else f"{depth} brackets"
            self._fail_with(self.position, f"the text ends {inside}with {brackets} still open")

    def _read_structure(self, text: str, index: int, offset: int) -> int:
        char = text[index]
        if char in " \t\r\n":
            spaces = _SPACES.match(text, index)
            return spaces.end() if spaces else index + 1
        state = self._state
        position = index + offset
        if char == '"' and state < _COLON:
            if self._objects_only and self._in_outer_list() and state == _FIRST_VALUE:
                return self._refuse(position, char, index)
            self._open_string(position, is_key=state in (_KEY, _FIRST_KEY))
            return index + 1
        if state == _COMMA:
            return self._read_after_value(char, index, position)
        if state == _COLON:
            if char != ":":
                return self._refuse(position, char, index)
            self._state = _VALUE
            self.has_parts = True
        elif state in (_KEY, _FIRST_KEY):
            if char == "}" and state == _FIRST_KEY:
                self._close_container()
            elif self._at_root_object() and (char in _QUOTES or char == "t"):
                self._state = _MISWRITTEN_KEY
                self._token_start, self._token, self._token_length = position, [], 0
                return index
            else:
                return self._refuse(position, char, index)
        elif char == "]" and state == _FIRST_VALUE:
            self._close_container()
        elif char in "{[":
            if self._objects_only and char == "[" and self._in_outer_list():
                return self._refuse(position, char, index)
            if len(self._stack) >= MAX_DEPTH:
                self._fail_with(position, f"nested more than {MAX_DEPTH} deep")
                return index
            self._stack.append(char)
            self._state = _FIRST_KEY if char == "{" else _FIRST_VALUE
        elif char in _SCALAR_START:
            if self._objects_only and self._in_outer_list() and state == _FIRST_VALUE:
                return self._refuse(position, char, index)
            self._state = _SCALAR_TOKEN
            self._token_start, self._token, self._token_length = position, [], 0
            return index
        else:
            return self._refuse(position, char, index)
        self.last_string = None
        return index + 1

    def _read_after_value(self, char: str, index: int, position: int) -> int:
        inside = self._stack[-1]
        if char == ",":
            self._state = _KEY if inside == "{" else _VALUE
            self.has_parts = True
        elif char == ("}" if inside == "{" else "]"):
            self._close_container()
        else:
            closer = "}" if inside == "{" else "]"
            self._fail(position, f'"," or "{closer}" after the value', char)
            return index
        self.last_string = None
        return index + 1

    def _read_string(self, text: str, index: int, offset: int) -> int:
        stop = _STRING_STOP.search(text, index)
        end = stop.start() if stop else len(text)
        if self._token_matters:
            self._token.append(text[index:end])
        if stop is None:
            return end
        if text[end] == "\\":
            self._state = _ESCAPE
            return end + 1
        if self._token_matters:
            self._note_string("".join(self._token))
        self.last_string = (self._token_start, end + 1 + offset)
        if self._token_is_key:
            self._state = _COLON
        else:
            self._close_value()
        return end + 1

    def _read_escape(self, text: str, index: int, offset: int) -> int:
        char = text[index]
        if self._state == _HEX:
            if char not in "0123456789abcdefABCDEF":
                self._fail(index + offset, "four hexadecimal digits after \\u", char)
                return index
            self._hex_left -= 1
            if not self._hex_left:
                self._state = _STRING
        elif char == "u":
            self._state, self._hex_left = _HEX, 4
        elif char in '"\\/bfnrt':
            self._state = _STRING
        else:
            self._fail_with(index + offset, f"\\{char} is no escape in JSON; write \\\\ for \\")
            return index
        # An escaped key or name is not noted: it matters only in replies that are not JSON.
        self._token_matters = False
        return index + 1

    def _read_scalar(self, text: str, index: int) -> int:
        run = _SCALAR_RUN.match(text, index)
        end = run.end() if run else index
        self._token.append(text[index:end])
        self._token_length += end - index
        if self._token_length > MAX_NUMBER:
            self._fail_with(self._token_start, f"a number of more than {MAX_NUMBER} characters")
        elif end < len(text):
            self._close_scalar()
        return end

    def _close_scalar(self) -> None:
        scalar = "".join(self._token)
        if not _SCALAR.fullmatch(scalar):
            self._fail(self._token_start, "a value", scalar)
        elif scalar[-1] in "0123456789" and not math.isfinite(float(scalar)):
            # An integer beyond the floats is finite and exact in JSON and in Python.
            if scalar.lstrip("-").isdigit():
                self._close_value()
            else:
                self._fail_with(self._token_start, "a number beyond the range of floats")
        else:
            self._close_value()

    def _read_miswritten_key(self, text: str, index: int) -> int:
        """Tell {'tool_calls': ...} and {tool_calls: ...} from other text in braces."""
        self._token.append(text[index])
        token = "".join(self._token)
        body = token[1:] if token[0] in _QUOTES else token
        name, rest = body[: len(_TOOL_CALLS)], body[len(_TOOL_CALLS) :]
        if not _TOOL_CALLS.startswith(name) or not _AFTER_MISWRITTEN_KEY.fullmatch(rest):
            self._fail(self._token_start, _EXPECTED[_KEY], token[0])
        elif rest.endswith(":"):
            self.seen[_TOOL_CALLS] = ""
            self._fail(self._token_start, _EXPECTED[_KEY], token[0])
        return index + 1

    def _open_string(self, position: int, *, is_key: bool) -> None:
        self._state = _STRING
        self._token_start, self._token = position, []
        self._token_is_key = is_key
        if is_key:
            self._key = ""
        self._token_matters = self._at_root_object() and (is_key or self._key in self._watch)

    def _note_string(self, text: str) -> None:
        if self._token_is_key:
            self._key = text
            if text in self._watch:
                self.seen[text] = ""
        elif self._key in self._watch:
            self.seen[self._key] = text

    def _close_container(self) -> None:
        self._stack.pop()
        self._close_value()

    def _close_value(self) -> None:
        if self._stack:
            self._state = _COMMA
        else:
            self.status = "done"

    def _at_root_object(self) -> bool:
        return self._stack in (["{"], ["[", "{"])

    def _in_outer_list(self) -> bool:
        return self._stack == ["["]

    def _refuse(self, position: int, char: str, index: int) -> int:
        self._fail(position, _EXPECTED[self._state], char)
        return index

    def _fail(self, position: int, expected: str, found: str) -> None:
        shown = json.dumps(found if len(found) <= 20 else found[:20] + "...", ensure_ascii=False)
        self._fail_with(position, f"expected {expected}, found {shown}")

    def _fail_with(self, position: int, message: str) -> None:
        self.status = "failed"
        self.error = message
        self.error_at = position


def decode(text: str) -> Any:
    """Decode one JSON value, with nothing but white space around it.

    The limits of `JsonScan` hold, so deep nesting, huge numbers and values that are not JSON
    (``NaN``, ``Infinity``) are errors. Line breaks inside strings are taken as they are, because
    models write them. Of equal keys in one object the last wins.

    Args:
        text: The JSON text.

    Raises:
        JSONError: The text is not one JSON value within the limits.

    Example:
        >>> decode('{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
    """
    spaces = _SPACES.match(text)
    index = spaces.end() if spaces else 0
    scan = JsonScan(index)
    index = scan.advance(text, index)
    scan.end()
    if scan.status == "failed":
        raise JSONError(scan.error, scan.error_at)
    rest = _SPACES.match(text, index)
    if rest and rest.end() < len(text):
        raise JSONError("more text after the JSON value", rest.end())
    return decode_scanned(text)


def decode_scanned(text: str) -> Any:
    """Decode a value that `JsonScan` has found to be complete.

    Args:
        text: The JSON text.

    Raises:
        JSONError: A string holds half of a surrogate pair, which UTF-8 cannot carry, or this
            interpreter is set to lower limits than `MAX_DEPTH` and `MAX_NUMBER`.
    """
    try:
        value = json.loads(text, strict=False)
    except RecursionError:
        raise JSONError("nested too deep for the stack that is left", 0) from None
    except ValueError as error:  # an interpreter with a lower limit on digits
        raise JSONError(str(error), 0) from None
    if ("\\u" in text or not text.isascii()) and _has_surrogate(value):
        raise JSONError("a string holds half of a surrogate pair", 0)
    return value


def _has_surrogate(value: object) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if _SURROGATE.search(item):
                return True
        elif isinstance(item, Mapping):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False
