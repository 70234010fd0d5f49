"""Where the API key comes from: an argument, ``CURSOR_API_KEY``, or a stored Cursor login."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from langchain_cursor.errors import CursorAuthenticationError, redact

# What cursor-sdk 1.1.0 compares a stored login's backend with when CURSOR_BACKEND_URL is not set.
DEFAULT_BACKEND = "https://api2.cursor.sh"

_WHERE = "~/.cursor/sdk/auth.json"

# The form that cursor-sdk 1.1.0 demands of a stored login, by the types of JSON.
_FORM: tuple[tuple[str, tuple[type, ...], bool], ...] = (
    ("version", (int, float), True),
    ("backendUrl", (str,), True),
    ("apiKey", (str,), True),
    ("createdAtMs", (int, float), True),
    ("apiKeyExpiresAtMs", (int, float), False),
    ("email", (str,), False),
)


def resolve_api_key(given: str | None, base_url: str | None = None) -> str:
    """Find the Cursor API key.

    Args:
        given: The key passed as an argument, if any. It comes first.
        base_url: The Cursor backend that will be used; a stored login belongs to one backend.

    Returns:
        The first key found: ``given``, the environment variable ``CURSOR_API_KEY``, then the
        login that the Cursor SDK stored in ``~/.cursor/sdk/auth.json``. Blanks around a key are
        taken off, and a blank key counts as none.

    Raises:
        CursorAuthenticationError: There is no key (code ``missing_api_key``; the message names
            all three ways, and why a stored login, if there is one, was not used), or the first
            one found cannot be sent (code ``invalid_api_key``). No message shows a key.

    Example:
        >>> resolve_api_key("crsr_example")
        'crsr_example'
    """
    return find_api_key(given, base_url)[0]


def find_api_key(given: str | None, base_url: str | None = None) -> tuple[str, str]:
    """Find the Cursor API key, and tell where it was found.

    Args:
        given: As for `resolve_api_key`.
        base_url: As for `resolve_api_key`.

    Returns:
        The key, and its place in words that show nothing of it.

    Raises:
        CursorAuthenticationError: As for `resolve_api_key`.

    Example:
        >>> find_api_key("crsr_example")
        ('crsr_example', 'in `api_key`')
    """
    for source, key in (
        ("in `api_key`", given),
        ("in CURSOR_API_KEY", os.environ.get("CURSOR_API_KEY")),
    ):
        if key and key.strip():
            return _sendable(key.strip(), source), source
    key, why_not = _stored_login(
        base_url or os.environ.get("CURSOR_BACKEND_URL") or DEFAULT_BACKEND
    )
    if key is None:
        raise CursorAuthenticationError(
            "No Cursor API key. Pass `ChatCursor(api_key=...)`, set the environment variable "
            f"CURSOR_API_KEY, or log in with the Cursor SDK ({why_not}).",
            code="missing_api_key",
        )
    source = f"stored in {_WHERE}"
    return _sendable(key, source), source


def login_file() -> Path:
    """Where the Cursor SDK stores a login: ``~/.cursor/sdk/auth.json`` (cursor-sdk 1.1.0).

    Raises:
        RuntimeError: This user has no home directory.
    """
    return Path.home() / ".cursor" / "sdk" / "auth.json"


def _stored_login(backend: str) -> tuple[str | None, str]:
    """The stored key, or None and why there is none."""
    login = f"the stored login in {_WHERE}"
    try:
        stored: Any = json.loads(login_file().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, f"there is no stored login in {_WHERE}"
    except OSError as error:
        return None, f"{login} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return None, f"{login} is not JSON"
    except RuntimeError:
        return None, "this user has no home directory to look for a stored login in"
    if fault := _fault_of(stored):
        return None, f"{login} is not in the SDK's form: {fault}"
    key = stored["apiKey"].strip()
    if not key:
        return None, f"{login} holds no key"
    if stored["version"] != 1:
        return None, f"{login} has version {_shown(stored['version'], key)}, not 1"
    theirs, ours = stored["backendUrl"].rstrip("/"), backend.rstrip("/")
    if theirs != ours:
        return None, f"{login} is for {_shown(theirs, key)}, not for {_shown(ours, key)}"
    expires = stored.get("apiKeyExpiresAtMs")
    if expires is not None and not expires > time.time() * 1000:
        return None, f"{login} expired{_day(expires)}: log in again"
    return key, ""


def _fault_of(stored: object) -> str:
    if not isinstance(stored, dict):
        return "it is no object"
    for name, types, required in _FORM:
        if name not in stored:
            if required:
                return f"`{name}` is missing"
        # A boolean is an `int` to Python, not to JSON.
        elif isinstance(stored[name], bool) or not isinstance(stored[name], types):
            return f"`{name}` is of another type"
    return ""


def _sendable(key: str, where: str) -> str:
    # It travels in an HTTP header; a line break from pasting would fail there without a reason.
    if not re.fullmatch("[!-~]+", key):
        raise CursorAuthenticationError(
            f"The Cursor API key {where} holds a blank, a line break or another character that "
            "no key has. Copy it again.",
            code="invalid_api_key",
        )
    return key


def _shown(value: object, key: str) -> str:
    return redact(repr(value)).replace(key, "***")


def _day(milliseconds: float) -> str:
    try:
        return time.strftime(" on %Y-%m-%d", time.gmtime(milliseconds / 1000))
    except (OverflowError, ValueError, OSError):
        return ""
