"""The wire formats: protobuf fields and Connect frames."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_cursor_fakes._wire import (
    decode_fields,
    decode_frames,
    encode_field,
    encode_frame,
    encode_varint,
    get_bytes,
    get_message,
    get_text,
)

field_values = st.one_of(st.integers(0, 2**63), st.text(), st.binary())


@pytest.mark.clause("CLOUD-16")
@given(st.lists(st.tuples(st.integers(1, 2**28), field_values)))
def test_fields_are_read_as_they_were_written(fields: list[tuple[int, int | str | bytes]]) -> None:
    expected: dict[int, list[int | bytes]] = {}
    for number, value in fields:
        expected.setdefault(number, []).append(value.encode() if isinstance(value, str) else value)
    read = decode_fields(b"".join(encode_field(number, value) for number, value in fields))
    assert {
        number: [value if isinstance(value, int) else bytes(value) for value in values]
        for number, values in read.items()
    } == expected


@pytest.mark.clause("CLOUD-16")
@given(st.binary())
def test_any_bytes_are_a_message_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode_fields(data)


@pytest.mark.clause("CLOUD-16")
@given(st.lists(st.tuples(st.integers(0, 255), st.binary())))
def test_frames_are_read_as_they_were_written(frames: list[tuple[int, bytes]]) -> None:
    body = b"".join(encode_frame(payload, flags) for flags, payload in frames)
    assert decode_frames(body) == frames


@pytest.mark.clause("CLOUD-16")
@given(st.binary())
def test_any_bytes_are_frames_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode_frames(data)


@pytest.mark.clause("CLOUD-16")
def test_fixed_size_fields_are_kept_apart_from_what_follows() -> None:
    message = b"\x09" + b"8bytes.." + b"\x15" + b"4..." + encode_field(3, "next")
    read = decode_fields(message)
    assert (bytes(get_bytes(read, 1)), bytes(get_bytes(read, 2))) == (b"8bytes..", b"4...")
    assert get_text(read, 3) == "next"


@pytest.mark.clause("CLOUD-16")
def test_a_missing_message_is_one_without_fields() -> None:
    assert get_message(decode_fields(b""), 2, 1, 1) == {}


@pytest.mark.clause("CLOUD-16")
def test_of_several_values_of_a_single_field_the_last_one_counts() -> None:
    assert get_text(decode_fields(encode_field(1, "a") + encode_field(1, "b")), 1) == "b"


@pytest.mark.clause("CLOUD-16")
def test_a_number_where_bytes_are_expected_is_an_error() -> None:
    with pytest.raises(ValueError, match="field 1 is a number"):
        get_bytes(decode_fields(encode_field(1, 5)), 1)


@pytest.mark.clause("CLOUD-16")
def test_a_negative_number_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="negative"):
        encode_varint(-1)


@pytest.mark.clause("CLOUD-16")
@pytest.mark.parametrize("cut", [1, 4, 6])
def test_a_frame_that_is_cut_off_is_an_error(cut: int) -> None:
    with pytest.raises(ValueError, match="cut off"):
        decode_frames(encode_frame(b"payload")[:cut])
