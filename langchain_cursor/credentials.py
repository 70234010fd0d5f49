"""Where the API key comes from: an argument, ``CURSOR_API_KEY``, or a stored Cursor login."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from langchain_cursor.errors import CursorAuthenticationError

# What cursor-sdk 1.1.0 compares a stored login's backend with when CURSOR_BACKEND_URL is not set.
DEFAULT_BACKEND = "https://api2.cursor.sh"


def resolve_api_key(given: str | None, base_url: str | None = None) -> str:
    """Find the Cursor API key.

    Args:
        given: The key passed as an argument, if any. It comes first.
        base_url: The Cursor backend that will be used; a stored login belongs to one backend.

    Returns:
        The first key found: ``given``, the environment variable ``CURSOR_API_KEY``, then the
        login that the Cursor SDK stored in ``~/.cursor/sdk/auth.json``.

    Raises:
        CursorAuthenticationError: There is no usable key. The message names all three ways, and
            why a stored login, if there is one, was not used.

    Example:
        >>> resolve_api_key("crsr_example")
        'crsr_example'
    """
    for key in (given, os.environ.get("CURSOR_API_KEY")):
        if key and key.strip():
            return key.strip()
    key, why_not = _stored_login(base_url or os.environ.get("CURSOR_BACKEND_URL"))
    if key:
        return key
    raise CursorAuthenticationError(
        "No Cursor API key. Pass `ChatCursor(api_key=...)`, set the environment variable "
        f"CURSOR_API_KEY, or log in with the Cursor SDK ({why_not}).",
        code="missing_api_key",
    )


def login_file() -> Path:
    """Where the Cursor SDK stores a login: ``~/.cursor/sdk/auth.json`` (cursor-sdk 1.1.0)."""
    return Path.home() / ".cursor" / "sdk" / "auth.json"


def _stored_login(base_url: str | None) -> tuple[str | None, str]:
    path = login_file()
    where = "~/.cursor/sdk/auth.json"
    try:
        login: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, f"there is no stored login in {where}"
    except (OSError, ValueError):
        return None, f"the stored login in {where} cannot be read"
    if not isinstance(login, dict) or not isinstance(login.get("apiKey"), str):
        return None, f"the stored login in {where} holds no key"
    if login.get("version") != 1:
        return None, f"the stored login in {where} has version {login.get('version')!r}, not 1"
    backend = _normal(base_url or DEFAULT_BACKEND)
    if _normal(str(login.get("backendUrl", ""))) != backend:
        return None, (
            f"the stored login in {where} is for {login.get('backendUrl')!r}, not for {backend!r}"
        )
    expires = login.get("apiKeyExpiresAtMs")
    if isinstance(expires, (int, float)) and expires <= time.time() * 1000:
        when = time.strftime("%Y-%m-%d", time.gmtime(expires / 1000))
        return None, f"the stored login in {where} expired on {when}: log in again"
    return login["apiKey"].strip() or None, f"the stored login in {where} holds no key"


def _normal(url: str) -> str:
    return url.rstrip("/")
