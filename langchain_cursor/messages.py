"""What comes back to LangChain: the message of an answer, and the chunks of a stream."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from langchain_cursor.events import Started, TextDelta, ThinkingDelta, usage_metadata

if TYPE_CHECKING:
    from langchain_cursor.conversation import Answer
    from langchain_cursor.events import Event


def message_of(answer: Answer, *, with_reply: bool) -> AIMessage:
    """Make the message of an answer.

    Args:
        answer: What the conversation came to.
        with_reply: Whether to keep the reply as the model wrote it, in ``response_metadata``.
    """
    return AIMessage(
        content=answer.text,
        id=answer.message_id,
        tool_calls=[
            tool_call(name=call.name, args=call.arguments, id=_call_id()) for call in answer.calls
        ],
        usage_metadata=usage_metadata(answer.usage),
        response_metadata=_metadata(answer, with_reply=with_reply),
        additional_kwargs={"reasoning_content": answer.reasoning} if answer.reasoning else {},
    )


class Chunks:
    """Makes the chunks of one stream; they add up to what `message_of` gives.

    Args:
        with_reply: As for `message_of`.
    """

    def __init__(self, with_reply: bool) -> None:
        self._with_reply = with_reply
        self._id: str | None = None

    def of(self, events: Iterable[Event | Answer]) -> Iterator[ChatGenerationChunk]:
        """The chunks of events, or of the answer at the end."""
        for event in events:
            if isinstance(event, TextDelta):
                yield self._chunk(event.text)
            elif isinstance(event, ThinkingDelta):
                yield self._chunk(additional_kwargs={"reasoning_content": event.text})
            elif isinstance(event, Started):
                self._id = self._id or event.run_id
            else:
                yield from self._end(event)

    def _end(self, answer: Any) -> Iterator[ChatGenerationChunk]:
        self._id = answer.message_id
        for index, call in enumerate(answer.calls):
            arguments = json.dumps(call.arguments, ensure_ascii=False)
            yield self._chunk(
                tool_call_chunks=[
                    tool_call_chunk(name=call.name, args=arguments, id=_call_id(), index=index)
                ]
            )
        yield self._chunk(
            usage_metadata=usage_metadata(answer.usage),
            response_metadata=_metadata(answer, with_reply=self._with_reply),
            chunk_position="last",
        )

    def _chunk(self, content: str = "", **fields: Any) -> ChatGenerationChunk:
        return ChatGenerationChunk(message=AIMessageChunk(content=content, id=self._id, **fields))


def _metadata(answer: Answer, *, with_reply: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "model_name": answer.model,
        "model_provider": "cursor",
        "run_id": answer.run_id,
        "duration_ms": answer.duration_ms,
    }
    if with_reply:
        metadata["raw_reply"] = answer.reply
    return metadata


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex}"
