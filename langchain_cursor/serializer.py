"""Make one prompt for a Cursor agent out of LangChain messages.

A Cursor agent takes a text and images, not a list of messages. `transcript` says how the text is
written and read back, `content` what becomes of each content block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from langchain_cursor.content import (
    CALLS,
    REASONING,
    Block,
    Image,
    Position,
    UnsupportedContentError,
    read_call,
    read_document,
    read_image,
    read_string,
    refuse,
)
from langchain_cursor.transcript import (
    PREAMBLE,
    Call,
    ImageRef,
    Role,
    Turn,
    escape_tags,
    insert_first,
    join_blocks,
    parse,
    render,
    unescape_tags,
)

__all__ = [
    "PREAMBLE",
    "Call",
    "Image",
    "ImageRef",
    "Prompt",
    "Role",
    "Turn",
    "UnsupportedContentError",
    "escape_tags",
    "parse",
    "serialize",
    "unescape_tags",
]


@dataclass(frozen=True)
class Prompt:
    """A history as a Cursor agent takes it.

    Attributes:
        system: The system text that stands before the conversation, not escaped, for an agent
            that takes a system prompt natively. None if there is none.
        text: The conversation in tagged blocks.
        images: The images that the text refers to, the first as ``<image id="1"/>``.
    """

    system: str | None
    text: str
    images: tuple[Image, ...] = ()

    def inlined(self) -> Prompt:
        r"""Move the system text into the text, for an agent that takes no system prompt.

        >>> prompt = Prompt(system="Be brief.", text="<user>\nHi\n</user>").inlined()
        >>> print(prompt.text)
        <system>
        Be brief.
        </system>
        <BLANKLINE>
        <user>
        Hi
        </user>
        >>> print(prompt.system)
        None
        """
        if self.system is None:
            return self
        block = render(Turn("system", (self.system,)))
        return replace(self, system=None, text=insert_first(block, self.text))


def serialize(messages: Sequence[BaseMessage]) -> Prompt:
    """Make one prompt of a history.

    Args:
        messages: The history, oldest first.

    Returns:
        The prompt. `parse(prompt.text)` gives the history back, except for the system messages
        before the conversation, which are in `prompt.system`.

    Raises:
        UnsupportedContentError: A content block cannot be sent (an image URL, audio, ...).
        ValueError: There is nothing to send; or a message is no part of a conversation; or it
            holds what cannot be written as UTF-8 or as JSON.
        TypeError: An element is not a LangChain message.

    >>> from langchain_core.messages import HumanMessage, SystemMessage
    >>> prompt = serialize([SystemMessage("Be brief."), HumanMessage("Hi", name="bob")])
    >>> prompt.system
    'Be brief.'
    >>> [turn] = parse(prompt.text)
    >>> turn.role, turn.name, turn.content
    ('user', 'bob', ('Hi',))
    """
    if not messages:
        raise ValueError("there are no messages to send: pass at least one")
    history = _History()
    leading: list[str] = []
    blocks: list[str] = []
    for index, message in enumerate(messages):
        for turn in history.turns(index, message):
            if turn.role == "system" and not turn.text.strip():
                continue
            block = _checked_block(turn, Position(index, message.type))
            # A native system prompt has no place for a name, so a named message stays a block.
            if turn.role == "system" and turn.name is None and not blocks:
                leading.append(turn.text)
            else:
                blocks.append(block)
    system = "\n\n".join(leading) or None
    if blocks:
        return Prompt(system, join_blocks(blocks), tuple(history.images))
    if system is None:
        raise ValueError("there is nothing to send: every message is a blank system message")
    # An agent must be sent some text, so instructions alone are the conversation.
    return Prompt(None, join_blocks([render(Turn("system", (system,)))]))


def _checked_block(turn: Turn, position: Position) -> str:
    """Render a turn; say which message it was if it cannot be written."""
    try:
        block = render(turn)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{position}: the arguments of a tool call cannot be written as JSON: {error}"
        ) from error
    try:
        block.encode()
    except UnicodeEncodeError as error:
        around = block[max(0, error.start - 20) : error.start + 20]
        raise ValueError(
            f"{position}: contains the lone surrogate {block[error.start]!a}, which UTF-8 cannot "
            f"carry (near {around!a}). Replace it first, for example with "
            'text.encode("utf-8", "replace").decode()'
        ) from None
    return block


_Piece = str | ImageRef | Call | Turn

_ROLES: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "ai": "assistant",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


def _role(message: BaseMessage, position: Position) -> tuple[Role, str | None]:
    """The tag of a message, and its own role if that is another."""
    if isinstance(message, ChatMessage):
        role = _ROLES.get(message.role.lower())
        return (role, None) if role else ("user", message.role)
    if isinstance(message, HumanMessage):
        return "user", None
    if isinstance(message, AIMessage):
        return "assistant", None
    if isinstance(message, SystemMessage):
        return "system", None
    if isinstance(message, ToolMessage | FunctionMessage):
        return "tool_result", None
    if isinstance(message, RemoveMessage):
        raise ValueError(
            f"{position}: a RemoveMessage is an instruction to a LangGraph state, not a part of "
            "the conversation: apply it before calling the model"
        )
    raise ValueError(
        f"{position}: no role is known for a {type(message).__name__}: pass it as a human, AI, "
        "system, tool or ChatMessage"
    )


class _History:
    """Reads messages in order; numbers their images and remembers which call was of which tool."""

    def __init__(self) -> None:
        self.images: list[Image] = []
        self._tool_names: dict[str, str] = {}

    def turns(self, index: int, message: BaseMessage) -> list[Turn]:
        """The turns of one message: one, or more if it brings Anthropic's tool results."""
        if not isinstance(message, BaseMessage):
            raise TypeError(
                f"message {index} is a {type(message).__name__}, not a LangChain message: convert "
                "it first, for example with langchain_core.messages.convert_to_messages"
            )
        position = Position(index, message.type)
        role, speaker = _role(message, position)
        pieces = list(self._pieces(message.content, role, position))
        turn = Turn(role, name=message.name or None, speaker=speaker)
        if role == "assistant":
            return [self._assistant_turn(turn, message, pieces, position)]
        if role == "tool_result":
            return [self._tool_turn(turn, message, pieces)]
        return _split(turn, pieces)

    def _assistant_turn(
        self, turn: Turn, message: BaseMessage, pieces: Iterable[_Piece], position: Position
    ) -> Turn:
        calls = _declared_calls(message, position)
        calls += _undeclared(calls, [piece for piece in pieces if isinstance(piece, Call)])
        for call in calls:
            if call.id is not None and call.name:
                self._tool_names[call.id] = call.name
        # What a model wrote in several blocks (around citations, say) was one text.
        return replace(turn, content=_join(pieces, ""), tool_calls=tuple(calls))

    def _tool_turn(self, turn: Turn, message: BaseMessage, pieces: Iterable[_Piece]) -> Turn:
        turn = replace(turn, content=_join(pieces, "\n"))
        if not isinstance(message, ToolMessage):
            return turn
        return replace(
            turn,
            name=turn.name or self._tool_names.get(message.tool_call_id),
            tool_call_id=message.tool_call_id,
            status=message.status,
        )

    def _pieces(self, content: object, role: Role, position: Position) -> Iterator[_Piece]:
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            for place, block in enumerate(content):
                piece = self._piece(block, role, position.inside(place))
                if piece is not None:
                    yield piece
        else:
            raise ValueError(
                f"{position}: content must be a string or a list, not {type(content).__name__}"
            )

    def _piece(self, block: Any, role: Role, position: Position) -> _Piece | None:
        """Read one block; None for one that has nothing to say here."""
        if isinstance(block, str):
            return block
        if not isinstance(block, dict):
            position.refuse(type(block).__name__, "content is made of strings and dicts")
        if block.get("type") == "non_standard" and isinstance(block.get("value"), dict):
            # LangChain wraps what it does not know; what we know may be inside.
            block = block["value"]
        kind = block.get("type")
        if not isinstance(kind, str):
            position.refuse("untyped", f"its 'type' must be a string, not {type(kind).__name__}")
        if kind == "text":
            return read_string(block, "text", position)
        if kind in ("image", "image_url"):
            if role == "system":
                position.refuse(kind, "system text has no images: put it into a human message")
            self.images.append(read_image(block, position))
            return ImageRef(len(self.images))
        if (document := read_document(block, position)) is not None:
            return document
        if role == "assistant":
            if kind in REASONING:
                return None
            if kind == "refusal":
                return read_string(block, "refusal", position)
            if kind in CALLS:
                return read_call(block, position)
        if role == "user" and kind == "tool_result":
            return self._tool_result(block, position)
        refuse(block, position)

    def _tool_result(self, block: Block, position: Position) -> Turn:
        """Read Anthropic's tool result, which comes in a human message."""
        call_id = read_string(block, "tool_use_id", position)
        content = block.get("content")
        pieces = self._pieces("" if content is None else content, "tool_result", position)
        return Turn(
            "tool_result",
            content=_join(pieces, "\n"),
            name=self._tool_names.get(call_id),
            tool_call_id=call_id,
            status="error" if block.get("is_error") else "success",
        )


def _split(turn: Turn, pieces: Iterable[_Piece]) -> list[Turn]:
    """Give each tool result among the pieces a turn of its own, in its place."""
    turns: list[Turn] = []
    own: list[_Piece] = []
    for piece in pieces:
        if isinstance(piece, Turn):
            if content := _join(own, "\n"):
                turns.append(replace(turn, content=content))
            turns.append(piece)
            own = []
        else:
            own.append(piece)
    content = _join(own, "\n")
    return turns if turns and not content else [*turns, replace(turn, content=content)]


def _join(pieces: Iterable[_Piece], separator: str) -> tuple[str | ImageRef, ...]:
    """Make content of the texts and images, with a separator between any two of them."""
    parts: list[str | ImageRef] = []
    texts: list[str] = []
    for piece in pieces:
        if piece == "" or not isinstance(piece, str | ImageRef):
            continue
        if parts or texts:
            texts.append(separator)
        if isinstance(piece, str):
            texts.append(piece)
        else:
            parts += filter(None, ["".join(texts)])
            parts.append(piece)
            texts = []
    parts += filter(None, ["".join(texts)])
    return tuple(parts)


def _declared_calls(message: BaseMessage, position: Position) -> list[Call]:
    """The calls in a message's fields: valid, then invalid, or else the one of the old API."""
    if not isinstance(message, AIMessage):
        return []
    calls = [Call(call.get("id"), call["name"], call["args"]) for call in message.tool_calls]
    calls += [
        Call(call.get("id"), call.get("name"), call.get("args"), call.get("error"))
        for call in message.invalid_tool_calls
    ]
    legacy = message.additional_kwargs.get("function_call")
    if not calls and isinstance(legacy, dict):
        calls.append(read_call({**legacy, "type": "function_call"}, position))
    return calls


def _undeclared(declared: Iterable[Call], found: Iterable[Call]) -> list[Call]:
    """The calls found in content that are none of those in the message's fields."""
    ids = {call.id for call in declared if call.id is not None}
    without_id = [call for call in declared if call.id is None]
    undeclared = []
    for call in found:
        if call.id is None and call in without_id:
            without_id.remove(call)
        elif call.id not in ids:
            undeclared.append(call)
    return undeclared
