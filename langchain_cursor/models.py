"""The models that an account may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_cursor.chat_models import ChatCursor

if TYPE_CHECKING:
    from langchain_cursor.catalog import ModelInfo


def list_models(**arguments: Any) -> tuple[ModelInfo, ...]:
    """List the models that the account may use, with their aliases and parameters.

    Args:
        **arguments: As for `ChatCursor`: which account and backend, such as ``api_key`` and
            ``base_url``. The bridge is shared with models of the same settings.

    Raises:
        CursorError: Cursor could not be asked; see `langchain_cursor.errors`.

    Example:
        >>> [model.id for model in list_models()]
        ['composer-2.5', 'auto']
    """
    with ChatCursor(**arguments) as llm:
        return llm._as_user().models(llm._bridge_settings())


async def alist_models(**arguments: Any) -> tuple[ModelInfo, ...]:
    """`list_models`, without blocking the event loop."""
    async with ChatCursor(**arguments) as llm:
        return await llm._as_user().amodels(llm._bridge_settings())
