"""Translates between Cursor's agent messages and the plain data of `runs`.

The field numbers were read from traffic of `cursor-sdk` 1.1.0. Messages and fields that a run
does not need are skipped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ._wire import (
    COMPRESSED,
    END_OF_STREAM,
    Fields,
    decode_fields,
    decode_frames,
    encode_field,
    encode_frame,
    get_bytes,
    get_message,
    get_text,
)
from .runs import ReceivedImage, Text, Thinking, ThinkingDone, Usage


@dataclass(frozen=True)
class RunRequest:
    """The content of a run request message."""

    text: str
    system_prompt: str | None
    images: tuple[ReceivedImage, ...]
    model: str
    agent_id: str


def read_append(body: bytes | bytearray) -> tuple[str, RunRequest | None]:
    """The request id of a BidiAppend call, and the run request if that is what it carries.

    Raises:
        ValueError: The body is not such a message.
    """
    append = decode_fields(body)
    client_message = decode_fields(get_bytes(append, 4) or bytes.fromhex(get_text(append, 1)))
    request_id = get_text(get_message(append, 2), 1)
    return request_id, _read_run_request(client_message) if 1 in client_message else None


def _read_run_request(client_message: Fields) -> RunRequest:
    run = get_message(client_message, 1)
    user_message = get_message(run, 2, 1, 1)
    context = get_message(user_message, 3)
    return RunRequest(
        text=get_text(user_message, 1),
        system_prompt=get_text(run, 8) if 8 in run else None,
        images=tuple(_read_image(image) for image in context.get(1, [])),
        model=get_text(get_message(run, 9), 1),
        agent_id=get_text(run, 5),
    )


def _read_image(value: int | memoryview) -> ReceivedImage:
    if isinstance(value, int):
        raise ValueError("an image is a number, expected a message")
    image = decode_fields(value)
    blob = get_message(image, 9)
    return ReceivedImage(
        data=bytes(get_bytes(image, 8) if 8 in image else get_bytes(blob, 2)),
        mime_type=get_text(image, 7),
    )


def read_stream_request(body: bytes | bytearray) -> str:
    """The request id that a RunSSE call asks for.

    Raises:
        ValueError: The body is not one uncompressed Connect frame with a request id.
    """
    frames = decode_frames(body)
    if len(frames) != 1 or frames[0][0] & (COMPRESSED | END_OF_STREAM):
        raise ValueError(f"expected one uncompressed frame, got flags {[f for f, _ in frames]}")
    request_id = get_text(decode_fields(frames[0][1]), 1)
    if not request_id:
        raise ValueError("the frame names no request id")
    return request_id


def encode_step(step: Text | Thinking | ThinkingDone | Usage) -> bytes:
    """The stream frame that carries a step."""
    match step:
        case Text(delta):
            update = encode_field(1, encode_field(1, delta))
        case Thinking(delta):
            update = encode_field(4, encode_field(1, delta))
        case ThinkingDone(duration_ms):
            update = encode_field(5, encode_field(1, duration_ms))
        case Usage():
            counts = encode_field(1, step.input_tokens) + encode_field(2, step.output_tokens)
            counts += encode_field(3, step.cache_read_tokens)
            counts += encode_field(4, step.cache_write_tokens)
            if step.reasoning_tokens is not None:
                counts += encode_field(5, step.reasoning_tokens)
            update = encode_field(14, counts)
    return encode_frame(encode_field(1, update))


def encode_end(code: str | None = None, message: str = "") -> bytes:
    """The frame that ends a stream: well, or with an error."""
    end = {} if code is None else {"error": {"code": code, "message": message}}
    return encode_frame(json.dumps(end).encode(), END_OF_STREAM)
