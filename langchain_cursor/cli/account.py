"""Whose answers a command gets: Cursor's, or those of the offline stand-in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_cursor.cli.terminal import Problem, note

# No key at all: the stand-in takes any.
_OFFLINE_KEY = "offline"


@contextmanager
def account(offline: bool) -> Iterator[dict[str, Any]]:
    """The arguments of `ChatCursor` that say where answers come from.

    Args:
        offline: Whether to serve a stand-in for Cursor's cloud meanwhile.

    Raises:
        Problem: A bridge of the user's own would talk to Cursor all the same.
    """
    if not offline:
        yield {}
        return
    if os.environ.get("CURSOR_SDK_BRIDGE_URL"):
        raise Problem(
            "CURSOR_SDK_BRIDGE_URL names a bridge that is running, which does not talk to the "
            "offline stand-in. Unset it for --offline."
        )
    from langchain_cursor_fakes import CursorCloud

    note("Offline: the answers come from a stand-in on this machine, not from Cursor.")
    with CursorCloud() as cloud:
        yield {"api_key": _OFFLINE_KEY, "base_url": cloud.url, "cache_model_catalog": False}
