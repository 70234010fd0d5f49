"""What a run says, in plain data: pieces of text and reasoning, and its end with the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata


@dataclass(frozen=True)
class Usage:
    """Tokens of one run, as Cursor counts them.

    The counts do not overlap, except that reasoning is a part of the output.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int | None = None

    def __add__(self, other: Usage) -> Usage:
        """The tokens of two runs together."""
        reasoning = (self.reasoning_tokens, other.reasoning_tokens)
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=(
                None if reasoning == (None, None) else sum(count or 0 for count in reasoning)
            ),
        )


@dataclass(frozen=True)
class Started:
    """A run has begun."""

    run_id: str


# One of these is made for every token: to freeze it would take three times as long.
@dataclass(slots=True)
class TextDelta:
    """A piece of the answer."""

    text: str


@dataclass(slots=True)
class ThinkingDelta:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The end of a run that went well.

    Args:
        run_id: The run.
        model: The model's id as Cursor resolved it.
        duration_ms: Milliseconds the run took, by the bridge's clock.
        usage: Tokens, if Cursor told.
        text: The whole answer.
    """

    run_id: str
    model: str
    duration_ms: int
    usage: Usage | None
    text: str


Event: TypeAlias = Started | TextDelta | ThinkingDelta | Finished


def usage_metadata(usage: Usage | None) -> UsageMetadata | None:
    """Write Cursor's token counts as LangChain's.

    Cursor counts tokens read from and written to the cache beside the input tokens, LangChain as
    a part of them; reasoning is a part of the output in both (cursor-sdk 1.1.0, `TokenUsage`).

    Example:
        >>> usage_metadata(Usage(input_tokens=5, output_tokens=2, cache_read_tokens=3))
        ... # doctest: +NORMALIZE_WHITESPACE
        {'input_tokens': 8, 'output_tokens': 2, 'total_tokens': 10,
         'input_token_details': {'cache_read': 3, 'cache_creation': 0}}
    """
    if usage is None:
        return None
    given = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    metadata: UsageMetadata = {
        "input_tokens": given,
        "output_tokens": usage.output_tokens,
        "total_tokens": given + usage.output_tokens,
        "input_token_details": InputTokenDetails(
            cache_read=usage.cache_read_tokens, cache_creation=usage.cache_write_tokens
        ),
    }
    if usage.reasoning_tokens is not None:
        metadata["output_token_details"] = OutputTokenDetails(reasoning=usage.reasoning_tokens)
    return metadata
