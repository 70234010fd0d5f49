"""Where the examples ask: on your account if there is a key, else on the offline stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_cursor import CursorAuthenticationError
from langchain_cursor.credentials import resolve_api_key
from langchain_cursor_fakes import CursorCloud


@contextmanager
def account() -> Iterator[dict[str, str]]:
    """Arguments for `ChatCursor`: none if there is a key, else those of an offline stand-in.

    No key is among them. A worker finds it as this process does, so it never travels.
    """
    try:
        resolve_api_key(None)
    except CursorAuthenticationError:
        print("There is no key, so this asks the offline stand-in, through the real Cursor SDK.")
        with CursorCloud() as cloud:
            yield {"api_key": "offline", "base_url": cloud.url}
    else:
        yield {}
