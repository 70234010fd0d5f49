"""One call of a model on FakeCursor, against LangChain's own fake model."""

from __future__ import annotations

import itertools
from functools import partial

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from benchmarks.measure import Ratio, compare
from langchain_cursor import ChatCursor
from langchain_cursor_fakes import FakeCursor

_CALLS = 100
_ANSWER = "Hello from a fake."


def run() -> list[Ratio]:
    """Calls of `invoke` and `stream`, a hundred at a time."""
    fake = FakeCursor(lambda run: _ANSWER)
    theirs = GenericFakeChatModel(messages=itertools.repeat(AIMessage(_ANSWER)))
    with ChatCursor(sdk_loader=fake.sdk) as ours:

        def invoke(model: ChatCursor | GenericFakeChatModel) -> None:
            for _ in range(_CALLS):
                assert model.invoke("Hi").text == _ANSWER
            fake.clear()

        def stream(model: ChatCursor | GenericFakeChatModel) -> None:
            for _ in range(_CALLS):
                assert "".join(chunk.text for chunk in model.stream("Hi")) == _ANSWER
            fake.clear()

        return [
            compare(
                f"{way.__name__} on FakeCursor, against GenericFakeChatModel, {_CALLS} calls",
                partial(way, ours),
                partial(way, theirs),
                limit=15.0,
                pairs=15,
            )
            for way in (invoke, stream)
        ]
