"""What the bridge checks before it creates an agent or sends a message, in its order."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from typing import Any

from . import _sdk_errors as errors
from ._sdk_errors import Refused
from .runs import ReceivedImage

_STORES = ("sqlite", "jsonl", "custom")
# All that it knows (measured with 27 kinds of bytes, cursor-sdk 1.1.0).
_SIGNATURES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_NO_BASE64 = re.compile("[^A-Za-z0-9+/]")
_WORD_BOUNDARY = re.compile("(?<=[a-z0-9])(?=[A-Z])")


def _known_tool_names() -> frozenset[str]:
    names = errors.TOOL_NAMES.split(", ")
    in_snake_case = [_WORD_BOUNDARY.sub("_", name).lower() for name in names]
    return frozenset(
        [*names, *(f"{n}ToolCall" for n in names), *(f"{n}_tool_call" for n in in_snake_case)]
    )


_TOOLS = _known_tool_names()


def check_store(options: Mapping[str, Any]) -> None:
    """Refuse a kind of store that there is not."""
    kind = options.get("local", {}).get("store", {}).get("type")
    if kind and kind not in _STORES:
        message = f"Unsupported local.store type: {kind}"
        raise Refused(errors.Refusal("invalid_argument", message, detailed=False))


def check_is_local(options: Mapping[str, Any]) -> None:
    """Refuse an agent in the cloud, of which there are none here."""
    if "cloud" in options:
        if "tools" in options:
            raise Refused(errors.TOOLS_IN_CLOUD)
        raise Refused(errors.unsupported("for agents in the cloud"))


def check_tools(options: Mapping[str, Any]) -> None:
    """Refuse names of built-in tools that there are not."""
    allowed = options.get("tools", {}).get("names", [])
    denied = options.get("disallowedTools", [])
    for field, names in (("tools", allowed), ("disallowedTools", denied)):
        unknown = [name for name in names if name not in _TOOLS]
        if unknown:
            raise Refused(errors.unknown_tools(field, unknown))


def check_model(model: Mapping[str, Any] | None, models: Collection[str]) -> None:
    """Refuse a model that the account has not."""
    if model is not None and model["id"] not in models:
        raise Refused(errors.unknown_model(model["id"], models))


def check_images(message: Mapping[str, Any]) -> None:
    """Refuse an image that is only an address."""
    if any("url" in image for image in message.get("images", [])):
        raise Refused(errors.URL_IMAGE)


def read_images(message: Mapping[str, Any]) -> tuple[ReceivedImage, ...]:
    """The images of a message, and no images without data."""
    images = message.get("images", [])
    if not all("data" in image for image in images):
        raise Refused(errors.EMPTY_IMAGE)
    decoded = (_decode(image["data"].get("data", "")) for image in images)
    return tuple(ReceivedImage(data, _recognised(data)) for data in decoded)


def _recognised(data: bytes) -> str:
    """The MIME type that the bridge finds in the bytes of an image, whatever the caller named."""
    return next((mime for start, mime in _SIGNATURES.items() if data.startswith(start)), "")


def _decode(text: str) -> bytes:
    """Base64 as Node reads it: both alphabets, without regard to padding and other characters."""
    plain = _NO_BASE64.sub("", text.replace("-", "+").replace("_", "/"))
    plain = plain[: len(plain) - (len(plain) % 4 == 1)]
    return base64.b64decode(plain + "=" * (-len(plain) % 4))
