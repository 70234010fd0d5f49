"""The account and the model of every call, and the `ChatCursor` that makes it."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from langchain_cursor import ChatCursor

KEY = "crsr_benchmark_0123456789abcdef"
MODEL = "composer-2.5"


def chat(url: str, **options: Any) -> ChatCursor:
    """Make a model that talks to the cloud at `url`; those with the same URL share a bridge."""
    return ChatCursor(model=MODEL, api_key=SecretStr(KEY), base_url=url, **options)
