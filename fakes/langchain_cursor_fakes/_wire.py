"""Reads and writes the two wire formats of Cursor's cloud: protobuf fields and Connect frames.

Only what the stand-in needs: no schema, no code generation. A message is read into a mapping
from field number to the values found, in order; length-delimited values stay views of the
input, so a prompt of 40 MB is not copied once per nesting level.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

Value = int | memoryview
Fields = Mapping[int, list[Value]]

END_OF_STREAM = 0b10
"""Flag of the Connect frame that ends a stream."""
COMPRESSED = 0b01
"""Flag of a compressed Connect frame."""

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FRAME_HEAD = struct.Struct(">BI")


def encode_varint(value: int) -> bytes:
    r"""The protobuf varint of a non-negative integer.

    >>> encode_varint(300)
    b'\xac\x02'
    """
    if value < 0:
        raise ValueError(f"a varint cannot be negative here: {value}")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_field(number: int, value: int | str | bytes) -> bytes:
    r"""One protobuf field: an int as varint, text and bytes length-delimited.

    >>> encode_field(1, "hi")
    b'\n\x02hi'
    """
    if isinstance(value, int):
        return encode_varint(number << 3 | _VARINT) + encode_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return encode_varint(number << 3 | _LENGTH_DELIMITED) + encode_varint(len(data)) + data


def decode_fields(message: bytes | bytearray | memoryview) -> Fields:
    r"""All fields of a protobuf message, by number.

    Raises:
        ValueError: The bytes are not a protobuf message.

    >>> {number: [bytes(value) for value in values]
    ...  for number, values in decode_fields(b'\n\x02hi').items()}
    {1: [b'hi']}
    """
    view = memoryview(message)
    fields: dict[int, list[Value]] = {}
    at = 0
    while at < len(view):
        key, at = _decode_varint(view, at)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise ValueError(f"not a protobuf message: field number 0 at byte {at}")
        value: Value
        if wire_type == _VARINT:
            value, at = _decode_varint(view, at)
        else:
            if wire_type == _LENGTH_DELIMITED:
                size, at = _decode_varint(view, at)
            elif wire_type in (_FIXED64, _FIXED32):
                size = 8 if wire_type == _FIXED64 else 4
            else:
                raise ValueError(f"not a protobuf message: wire type {wire_type} at byte {at}")
            if at + size > len(view):
                raise ValueError(f"protobuf field {number} is cut off: {size} bytes at byte {at}")
            value, at = view[at : at + size], at + size
        fields.setdefault(number, []).append(value)
    return fields


def get_message(fields: Fields, *path: int) -> Fields:
    """The message nested at `path`; one without fields where there is none."""
    for number in path:
        fields = decode_fields(get_bytes(fields, number))
    return fields


def get_bytes(fields: Fields, number: int) -> memoryview:
    """The length-delimited value of a field (the last one counts); empty where there is none."""
    value = fields.get(number, [memoryview(b"")])[-1]
    if isinstance(value, int):
        raise ValueError(f"protobuf field {number} is a number, expected bytes")
    return value


def get_text(fields: Fields, number: int) -> str:
    """The text of a field; empty where there is none."""
    return str(get_bytes(fields, number), "utf-8")


def encode_frame(payload: bytes, flags: int = 0) -> bytes:
    """One frame of a Connect stream: flags, big-endian length, payload."""
    return _FRAME_HEAD.pack(flags, len(payload)) + payload


def decode_frames(body: bytes | bytearray) -> list[tuple[int, bytes]]:
    """The frames of a whole Connect stream as (flags, payload).

    Raises:
        ValueError: The last frame is cut off.
    """
    view = memoryview(body)
    frames = []
    at = 0
    while at < len(view):
        if at + _FRAME_HEAD.size > len(view):
            raise ValueError(f"Connect frame is cut off at byte {at}")
        flags, size = _FRAME_HEAD.unpack_from(view, at)
        at += _FRAME_HEAD.size
        if at + size > len(view):
            raise ValueError(f"Connect frame is cut off: {size} bytes at byte {at}")
        frames.append((flags, bytes(view[at : at + size])))
        at += size
    return frames


def _decode_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(view) or shift > 63:
            raise ValueError(f"protobuf varint is cut off or too long at byte {at}")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
