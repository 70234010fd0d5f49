r"""The written form of a conversation: turns as tagged blocks, and the way back.

::

    <user>
    What is 6 * 7?
    </user>

    <assistant tool_calls="1">
    {"tool_calls": [{"id": "call_1", "name": "multiply", "arguments": {"a": 6, "b": 7}}]}
    </assistant>

    <tool_result name="multiply" call_id="call_1">
    42
    </tool_result>

Nothing in a turn can end its block or begin another: a text that looks like one of these tags gets
a backslash after its ``<``, which `parse` takes off again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, cast

PREAMBLE = (
    "The conversation so far follows in tagged blocks; inside them, <\\ marks text that only looks "
    "like such a tag. Write the assistant's next message: its text only, without tags."
)
"""What the model is told before the first block."""

_HEAD = PREAMBLE + "\n\n"

Role = Literal["system", "user", "assistant", "tool_result", "contract"]
"""The tag of a block. ``contract`` is never a message: see `parse`."""


@dataclass(frozen=True)
class ImageRef:
    """The place of an image in a text; `id` counts the prompt's images from 1."""

    id: int


@dataclass(frozen=True)
class Call:
    """A tool call in an assistant's turn.

    Attributes:
        id: The call's id, if it has one.
        name: The tool's name; None only for a call too broken to have one.
        arguments: A dict for a call. The raw text, or None, for an invalid one.
        error: What was wrong with an invalid call, if somebody said so.
    """

    id: str | None
    name: str | None
    arguments: object
    error: str | None = None


@dataclass(frozen=True)
class Turn:
    """One block.

    Attributes:
        role: The block's tag.
        content: Text, with an `ImageRef` wherever an image stands. Empty for an empty message.
        name: The speaker's name, or the tool's name in a tool result.
        speaker: The role of a message that has none of ours; such a turn is a user's.
        tool_call_id: The call that a tool result answers.
        status: ``"error"`` for the result of a tool that failed.
        tool_calls: What an assistant's turn called.
    """

    role: Role
    content: tuple[str | ImageRef, ...] = ()
    name: str | None = None
    speaker: str | None = None
    tool_call_id: str | None = None
    status: Literal["success", "error"] = "success"
    tool_calls: tuple[Call, ...] = ()

    @property
    def text(self) -> str:
        """The content without its images."""
        return "".join(part for part in self.content if isinstance(part, str))


# --- Escaping -----------------------------------------------------------------------------------

_NAMES = "system|user|assistant|tool_result|image|contract"
# Zero-width characters count as white space: a reader cannot see them either.
_GAP = r"[\s\u200b-\u200d\u2060\ufeff]"
# `(?:/GAP*)?` rather than `/?GAP*`: two runs of GAP in a row would make a failing match quadratic.
_TAG = rf"{_GAP}*(?:/{_GAP}*)?(?:{_NAMES})(?={_GAP}|[/>]|\Z)"
_BARE_TAG = re.compile(rf"<(?={_TAG})", re.IGNORECASE)
_ANY_TAG = re.compile(rf"<(?=\\*{_TAG})", re.IGNORECASE)
_ESCAPED_TAG = re.compile(rf"<\\(?=\\*{_TAG})", re.IGNORECASE)
# In JSON, white space and the end of a string may be written with a backslash or a quote, so any
# `<` that a backslash follows goes, too. The separators would break the line for some readers.
_JSON_SPECIAL = re.compile(
    rf"<(?={_GAP}*(?:\\|/{_GAP}*\\|(?:/{_GAP}*)?(?:{_NAMES})(?:{_GAP}|[/>\\\"])))"
    r"|[\x85\u2028\u2029]",
    re.IGNORECASE,
)
_ATTRIBUTE_SPECIAL = re.compile(r'[&<>"\x00-\x1f\x7f-\x9f\u2028\u2029]')
_ENTITY = re.compile(r"&(amp|lt|gt|quot|#[0-9]{1,7});")
_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot"}
_CHARACTERS = {name: character for character, name in _ENTITIES.items()}


def escape_tags(text: str) -> str:
    r"""Make every tag of ours in a text into something that is none, and still readable.

    Time is linear in the text's length. `unescape_tags` is the exact inverse.

    >>> print(escape_tags("<b>bold</b> </user> <user@example.com> <\\USER>"))
    <b>bold</b> <\/user> <user@example.com> <\\USER>
    """
    return _ANY_TAG.sub(r"<\\", text)


def unescape_tags(text: str) -> str:
    r"""Undo `escape_tags`.

    >>> print(unescape_tags("<\\/user>"))
    </user>
    """
    return _ESCAPED_TAG.sub("<", text)


def _escape_attribute(value: str) -> str:
    def entity(match: re.Match[str]) -> str:
        character = match[0]
        return f"&{_ENTITIES.get(character, f'#{ord(character)}')};"

    return _ATTRIBUTE_SPECIAL.sub(entity, value)


def _unescape_attribute(value: str) -> str:
    def character(match: re.Match[str]) -> str:
        name = match[1]
        return chr(int(name[1:])) if name.startswith("#") else _CHARACTERS[name]

    return _ENTITY.sub(character, value)


# --- Writing ------------------------------------------------------------------------------------


def join_blocks(blocks: Sequence[str]) -> str:
    """Put the preamble before blocks, and a blank line between them."""
    return _HEAD + "\n\n".join(blocks)


def insert_first(block: str, text: str) -> str:
    """Put a block before all others of a text, but after its preamble."""
    head = _HEAD if text.startswith(_HEAD) else ""
    return f"{head}{block}\n\n{text[len(head) :]}"


def render(turn: Turn) -> str:
    r"""Write a turn as a block.

    Raises:
        TypeError, ValueError, RecursionError: The arguments of a call cannot be written as JSON.

    >>> print(render(Turn("user", ("Look: ", ImageRef(1)), name="bob")))
    <user name="bob">
    Look: <image id="1"/>
    </user>
    """
    attributes = {
        "name": turn.name,
        "role": turn.speaker,
        "call_id": turn.tool_call_id,
        "status": None if turn.status == "success" else turn.status,
        "tool_calls": str(len(turn.tool_calls)) if turn.tool_calls else None,
    }
    tag = turn.role + "".join(
        f' {key}="{_escape_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    body = "".join(
        escape_tags(part) if isinstance(part, str) else f'<image id="{part.id}"/>'
        for part in turn.content
    )
    if turn.tool_calls:
        body = f"{body}\n{_calls_line(turn.tool_calls)}" if body else _calls_line(turn.tool_calls)
    return f"<{tag}>\n{body}\n</{turn.role}>"


def _calls_line(calls: Iterable[Call]) -> str:
    entries = []
    for call in calls:
        entry = {"id": call.id, "name": call.name, "arguments": call.arguments}
        if call.id is None:
            del entry["id"]
        if call.error is not None:
            entry["error"] = call.error
        entries.append(entry)
    line = json.dumps({"tool_calls": entries}, ensure_ascii=False)
    return _JSON_SPECIAL.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


# --- Reading ------------------------------------------------------------------------------------

_CONTRACT_OPEN = "<contract>\n"
_CONTRACT_CLOSE = "\n</contract>"
_OPEN = re.compile(
    r"<(?P<role>system|user|assistant|tool_result)"
    r'(?P<attributes>(?: [a-z_]+="[^"<>\n]*")*)>\n'
)
_ATTRIBUTE = re.compile(r' ([a-z_]+)="([^"]*)"')
_PLACEHOLDER = re.compile(r'<image id="([1-9][0-9]*)"/>')
_STATUSES: dict[str | None, Literal["success", "error"]] = {None: "success", "error": "error"}
_MALFORMED = (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)
_BROKEN = "not a serialized prompt: at character {}: {}"


def parse(text: str) -> list[Turn]:
    r"""Read a prompt's text back into the turns that it was made of.

    Args:
        text: The prompt's text, with or without the preamble. A block ``<contract>`` may stand
            last: it becomes a turn of role ``contract`` whose content is the block's text as it
            is, and may contain anything, since no message can begin such a block.

    Raises:
        ValueError: The text is not one that was made of turns; says where it breaks off.

    >>> turn, contract = parse(
    ...     "<user>\na <\\user> tag\n</user>\n\n<contract>\nReply in JSON.\n</contract>"
    ... )
    >>> turn.content, contract.role, contract.content
    (('a <user> tag',), 'contract', ('Reply in JSON.',))
    """
    turns: list[Turn] = []
    start = len(_HEAD) if text.startswith(_HEAD) else 0
    while True:
        if text.startswith(_CONTRACT_OPEN, start):
            if not text.endswith(_CONTRACT_CLOSE):
                _broken(start, "the contract has no end")
            inner = text[start + len(_CONTRACT_OPEN) : -len(_CONTRACT_CLOSE)]
            return [*turns, Turn("contract", (inner,) if inner else ())]
        opening = _OPEN.match(text, start)
        if opening is None:
            _broken(start, "no block begins here")
        closing = f"\n</{opening['role']}>"
        end = text.find(closing, opening.end())
        if end < 0:
            _broken(start, f"the <{opening['role']}> block has no end")
        try:
            turns.append(_read_turn(opening, text[opening.end() : end]))
        except _MALFORMED as error:
            raise ValueError(_BROKEN.format(start, error)) from error
        start = end + len(closing)
        if start == len(text):
            return turns
        if not text.startswith("\n\n", start):
            _broken(start, "no blank line after the block")
        start += 2


def _broken(start: int, reason: str) -> NoReturn:
    raise ValueError(_BROKEN.format(start, reason))


def _read_turn(opening: re.Match[str], body: str) -> Turn:
    attributes = {
        key: _unescape_attribute(value) for key, value in _ATTRIBUTE.findall(opening["attributes"])
    }
    calls: tuple[Call, ...] = ()
    if count := attributes.pop("tool_calls", None):
        body, _, line = body.rpartition("\n")
        calls = tuple(
            Call(entry.get("id"), entry["name"], entry["arguments"], entry.get("error"))
            for entry in json.loads(line)["tool_calls"]
        )
        if len(calls) != int(count):
            raise ValueError(f"{count} tool calls announced, {len(calls)} found")
    turn = Turn(
        role=cast("Role", opening["role"]),
        content=_read_content(body),
        name=attributes.pop("name", None),
        speaker=attributes.pop("role", None),
        tool_call_id=attributes.pop("call_id", None),
        status=_STATUSES[attributes.pop("status", None)],
        tool_calls=calls,
    )
    if attributes:
        raise ValueError(f"unknown attributes {sorted(attributes)}")
    return turn


def _read_content(body: str) -> tuple[str | ImageRef, ...]:
    parts: list[str | ImageRef] = []
    for place, piece in enumerate(_PLACEHOLDER.split(body)):
        if place % 2:
            parts.append(ImageRef(int(piece)))
        elif piece:
            if bare := _BARE_TAG.search(piece):
                raise ValueError(f"a tag inside a block: {piece[bare.start() :][:30]!r}")
            parts.append(unescape_tags(piece))
    return tuple(parts)
