"""LangChain chat model that runs prompts through Cursor agents with the official cursor-sdk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_cursor.catalog import ModelInfo
    from langchain_cursor.chat_models import ChatCursor
    from langchain_cursor.errors import (
        CursorAPIError,
        CursorAuthenticationError,
        CursorBridgeError,
        CursorCancelledError,
        CursorClosedError,
        CursorConnectionError,
        CursorContractError,
        CursorError,
        CursorInvalidRequestError,
        CursorModelNotFoundError,
        CursorPermissionDeniedError,
        CursorRateLimitError,
        CursorStartupError,
        CursorTimeoutError,
    )
    from langchain_cursor.models import alist_models, list_models
    from langchain_cursor.serializer import UnsupportedContentError

__all__ = [
    "ChatCursor",
    "CursorAPIError",
    "CursorAuthenticationError",
    "CursorBridgeError",
    "CursorCancelledError",
    "CursorClosedError",
    "CursorConnectionError",
    "CursorContractError",
    "CursorError",
    "CursorInvalidRequestError",
    "CursorModelNotFoundError",
    "CursorPermissionDeniedError",
    "CursorRateLimitError",
    "CursorStartupError",
    "CursorTimeoutError",
    "ModelInfo",
    "UnsupportedContentError",
    "alist_models",
    "list_models",
]

_HOME = {
    "ChatCursor": "chat_models",
    "ModelInfo": "catalog",
    "UnsupportedContentError": "serializer",
    "alist_models": "models",
    "list_models": "models",
}


def __getattr__(name: str) -> Any:
    # Names are looked up when they are used, so that importing the package costs next to nothing.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
