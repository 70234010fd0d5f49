"""Read single content blocks, in every shape that LangChain uses, or refuse them with a reason."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from langchain_cursor.transcript import Call

Block = Mapping[Any, Any]


class UnsupportedContentError(ValueError):
    """A content block that cannot be sent to a local Cursor agent.

    Attributes:
        position: Where the block stands, ``"message 2 (human), block 1"``. Both numbers count
            from 0, as indexes into the messages and into the message's content do.
        block_type: The block's ``type``.
        reason: Why it cannot be sent, and what to do instead.
    """

    def __init__(self, position: str, block_type: str, reason: str) -> None:
        super().__init__(position, block_type, reason)
        self.position = position
        self.block_type = block_type
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.position}: cannot send this {self.block_type!r} block: {self.reason}"


@dataclass(frozen=True)
class Position:
    """Where in the history something stands, for error messages.

    >>> print(Position(2, "human").inside(1))
    message 2 (human), block 1
    """

    index: int
    kind: str
    path: tuple[int, ...] = ()

    def __str__(self) -> str:
        message = f"message {self.index} ({self.kind})"
        return f"{message}, block {'.'.join(map(str, self.path))}" if self.path else message

    def inside(self, place: int) -> Position:
        """The position of a block within this one."""
        return replace(self, path=(*self.path, place))

    def refuse(self, block_type: str, reason: str) -> NoReturn:
        """Raise the error that says why the block here cannot be sent."""
        raise UnsupportedContentError(str(self), block_type, reason)


@dataclass(frozen=True)
class Image:
    """An image that goes along with the prompt.

    Attributes:
        data: Base64 (standard alphabet, padded, no white space).
        mime_type: ``image/...``, in lower case.
    """

    data: str = field(repr=False)
    mime_type: str


# What a model thought was meant for nobody else; providers want it back only with a signature of
# their own, and here it would read as something said.
REASONING = frozenset({"reasoning", "thinking", "redacted_thinking", "reasoning_content"})

# Blocks that are tool calls: LangChain's, Anthropic's, and that of OpenAI's Responses API; and
# where each keeps its id and its arguments.
CALLS = {
    "tool_call": ("id", "args"),
    "tool_call_chunk": ("id", "args"),
    "invalid_tool_call": ("id", "args"),
    "tool_use": ("id", "input"),
    "function_call": ("call_id", "arguments"),
}

_FILE = "a Cursor agent takes text and images only: extract its text and pass that"
_AUDIO = "a Cursor agent takes no sound: pass a transcript as text"
_VIDEO = "a Cursor agent takes no film: pass single frames as base64 images"
_SERVER_TOOL = (
    "it belongs to a tool that another provider ran on its side: remove it from the history, or "
    "put what the tool found into a text block"
)
_UNKNOWN = "this type is not known: pass its content as text or as a base64 image"
_REASONS = {
    "audio": _AUDIO,
    "input_audio": _AUDIO,
    "video": _VIDEO,
    "video_url": _VIDEO,
    "file": _FILE,
    "document": _FILE,
    "text-plain": _FILE,
    "server_tool_call": _SERVER_TOOL,
    "server_tool_call_chunk": _SERVER_TOOL,
    "server_tool_result": _SERVER_TOOL,
    "server_tool_use": _SERVER_TOOL,
    "tool_result": "it belongs into a human message; elsewhere pass a ToolMessage",
    **dict.fromkeys(CALLS, "only an AI message calls tools"),
    **dict.fromkeys(REASONING, "only an AI message has reasoning"),
}


def refuse(block: Block, position: Position) -> NoReturn:
    """Raise the error for a block that nothing here can read."""
    position.refuse(block["type"], _REASONS.get(block["type"], _UNKNOWN))


def read_string(block: Block, key: str, position: Position) -> str:
    """Read a field that must be there and must be a string."""
    value = block.get(key)
    if not isinstance(value, str):
        wrong = type(value).__name__
        position.refuse(str(block["type"]), f"its {key!r} must be a string, not {wrong}")
    return value


def read_document(block: Block, position: Position) -> str | None:
    """Read a plain-text document: its title and context, if any, and its text.

    Returns:
        The lines of all three; None if the block is no document, or none of plain text.
    """
    source = block.get("source")
    if block["type"] == "text-plain" and "text" in block:
        text = read_string(block, "text", position)
    elif block["type"] == "text-plain" and "base64" in block:
        data = base64.b64decode(_read_base64(block["base64"], "text-plain", position))
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            position.refuse("text-plain", f"its text is not UTF-8: {error}")
    elif block["type"] == "file" and block.get("source_type") == "text":
        text = read_string(block, "text", position)
    elif block["type"] == "document" and isinstance(source, dict) and source.get("type") == "text":
        text = read_string({**source, "type": "document"}, "data", position)
    else:
        return None
    headings = (block.get(key) for key in ("title", "context"))
    return "\n".join([*(heading for heading in headings if isinstance(heading, str)), text])


# --- Tool calls ---------------------------------------------------------------------------------


def read_call(block: Block, position: Position) -> Call:
    """Read a block whose type is one of `CALLS`."""
    id_key, arguments_key = CALLS[block["type"]]
    for key in (id_key, "name", "error"):
        if not isinstance(block.get(key), str | None):
            position.refuse(block["type"], f"its {key!r} must be a string")
    arguments = block.get(arguments_key)
    if block["type"] != "invalid_tool_call":
        arguments = _read_arguments(arguments)
    return Call(block.get(id_key), block.get("name"), arguments, block.get("error"))


def _read_arguments(value: object) -> object:
    """Read arguments that came as text, too; text that is no JSON object stays as it is."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return parsed if isinstance(parsed, dict) else value
    return value


# --- Images -------------------------------------------------------------------------------------

_IMAGE_ADVICE = (
    'pass the image itself: {"type": "image", "base64": "...", "mime_type": "image/png"}'
)
_MIME_TYPE = re.compile(r"image/[a-z0-9][a-z0-9.+_-]*")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")
_TO_STANDARD_ALPHABET = str.maketrans("-_", "+/")


def read_image(block: Block, position: Position) -> Image:
    """Read an image in OpenAI's shape, either of LangChain's, or Anthropic's.

    Raises:
        UnsupportedContentError: It is not there but somewhere else (a URL, a file id), it is no
            base64, or its type is no image's.
    """
    kind: str = block["type"]
    fields = block.get("image_url") if kind == "image_url" else block.get("source", block)
    if isinstance(fields, str):
        fields = {"url": fields}
    if not isinstance(fields, dict):
        position.refuse(kind, f"it holds no image: {_IMAGE_ADVICE}")
    mime_type = fields.get("media_type") or fields.get("mime_type") or fields.get("mimeType")
    for key in ("base64", "data"):
        if fields.get(key) is not None:
            return _make_image(fields[key], mime_type, kind, position)
    if fields.get("url") is not None:
        return _image_from_url(fields["url"], mime_type, kind, position)
    if "file_id" in fields or fields.get("source_type") == "id":
        position.refuse(kind, f"a file id means nothing to Cursor: {_IMAGE_ADVICE}")
    position.refuse(kind, f"it holds no image: {_IMAGE_ADVICE}")


def _image_from_url(url: object, mime_type: object, kind: str, position: Position) -> Image:
    if not isinstance(url, str):
        position.refuse(kind, f"its URL must be a string, not {type(url).__name__}")
    if url[:5].lower() != "data:":
        position.refuse(
            kind,
            f"a local Cursor agent does not fetch image URLs ({url[:80]!a}): download it and "
            + _IMAGE_ADVICE,
        )
    head, comma, payload = url[5:].partition(",")
    if not comma:
        position.refuse(kind, "its data: URL has no comma, so no data")
    declared, *parameters = [part.strip() for part in head.lower().split(";")]
    encoded = payload
    if "base64" not in parameters or "%" in payload:
        try:
            decoded = unquote_to_bytes(payload)
        except UnicodeEncodeError as error:
            position.refuse(kind, f"its data: URL is not UTF-8: {error.reason}")
        in_base64 = decoded if "base64" in parameters else base64.b64encode(decoded)
        encoded = in_base64.decode("latin-1")
    return _make_image(encoded, declared or mime_type, kind, position)


def _make_image(data: object, mime_type: object, kind: str, position: Position) -> Image:
    encoded = _read_base64(data, kind, position)
    if not mime_type:
        mime_type = _detect_mime_type(encoded)
        if mime_type is None:
            position.refuse(
                kind, "it has no mime_type and is neither PNG, JPEG, GIF nor WebP: say what it is"
            )
    if not isinstance(mime_type, str):
        position.refuse(kind, f"its MIME type must be a string, not {type(mime_type).__name__}")
    normalised = mime_type.strip().lower()
    if not _MIME_TYPE.fullmatch(normalised):
        position.refuse(kind, f"its MIME type must be image/..., not {mime_type[:50]!a}")
    # A common slip, which image readers refuse.
    return Image(encoded, "image/jpeg" if normalised == "image/jpg" else normalised)


def _read_base64(data: object, kind: str, position: Position) -> str:
    """Check base64 and bring it into its usual form: standard alphabet, padded, no white space."""
    if not isinstance(data, str):
        position.refuse(kind, f"its data must be a base64 string, not {type(data).__name__}")
    compact = "".join(data.split()).translate(_TO_STANDARD_ALPHABET)
    digits = compact.rstrip("=")
    padding = len(compact) - len(digits)
    if wrong := _NOT_BASE64.search(digits):
        position.refuse(
            kind,
            f"its data is not base64: character {wrong.start()} (white space not counted) "
            f"is {wrong[0]!a}",
        )
    if not digits:
        position.refuse(kind, "its data is empty")
    if len(digits) % 4 == 1 or padding > 2:
        position.refuse(
            kind,
            f"its data is not base64: {len(digits)} digits and {padding} '=' make no whole number "
            "of bytes, so it may have been cut off",
        )
    return digits + "=" * (-len(digits) % 4)


def _detect_mime_type(encoded: str) -> str | None:
    start = base64.b64decode(encoded[:16])
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if start.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "image/webp"
    return None
