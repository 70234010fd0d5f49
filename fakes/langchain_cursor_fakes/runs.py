"""What a brain is given, and the steps of which its reply is made.

A *brain* is any function from a `ReceivedRun` to a reply: a text, one step, or an iterable of
steps (a generator runs step by step while the run lasts).

    >>> def parrot(run: ReceivedRun) -> Reply:
    ...     return [Thinking("hm"), Text(run.text), Usage(input_tokens=3, output_tokens=1)]
    >>> parrot(ReceivedRun("hello"))[1]
    Text(delta='hello')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ReceivedImage:
    """An image attached to a run: its bytes exactly as sent, and its MIME type.

    `cursor-sdk` 1.1.0 sends the type that it recognises in the bytes; for others it is empty.
    """

    data: bytes = field(repr=False)
    mime_type: str


@dataclass(frozen=True)
class ReceivedRun:
    """One run as the cloud received it.

    Attributes:
        text: The prompt.
        system_prompt: The custom system prompt sent natively; None where there was none.
        images: The attachments, in order.
        model: Id of the requested model.
        allowed_tools: Value of the header `x-cursor-agent-allowed-tools`: `""` means no built-in
            tool, None (no such header) means all of them.
        request_id: Id of this request; a retry of the SDK has a new one.
        agent_id: Id of the agent (the conversation).
        turn: 1 for the first message to an agent, 2 for the second; a retry does not count.
        headers: Header fields of the request, names in lower case, secrets as fingerprints.
        received_at: `time.monotonic()` when the run was complete, in seconds.
    """

    text: str
    system_prompt: str | None = None
    images: tuple[ReceivedImage, ...] = ()
    model: str = ""
    allowed_tools: str | None = None
    request_id: str = ""
    agent_id: str = ""
    turn: int = 1
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    received_at: float = 0.0


@dataclass(frozen=True)
class Text:
    """One text delta of the answer."""

    delta: str


@dataclass(frozen=True)
class Thinking:
    """One delta of the model's thinking."""

    delta: str


@dataclass(frozen=True)
class ThinkingDone:
    """The end of the thinking, which took `duration_ms` milliseconds."""

    duration_ms: int


@dataclass(frozen=True)
class Usage:
    """Token counts of the turn. Without this step the counts are the words of prompt and answer."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int | None = None


@dataclass(frozen=True)
class Error:
    """Ends the run with an error.

    `code` is a Connect code in lower snake case, such as `resource_exhausted`.
    """

    code: str
    message: str


@dataclass(frozen=True)
class Delay:
    """Waits for `seconds` before the next step."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """Sends nothing more until the other side hangs up or the cloud is closed."""


@dataclass(frozen=True)
class Drop:
    """Cuts the connection in the middle of the answer."""


@dataclass(frozen=True)
class Garbage:
    """Raw bytes in the place of a message of the stream."""

    data: bytes


Step = Text | Thinking | ThinkingDone | Usage | Error | Delay | Hang | Drop | Garbage
Reply = str | Step | Iterable[Step]
Brain = Callable[[ReceivedRun], Reply]


def to_steps(reply: Reply) -> Iterator[Step]:
    """The steps of a reply, one by one: a text is one `Text`, a single step a script of one.

    Raises:
        TypeError: The reply, or an item of it, is nothing that a brain may return.

    >>> list(to_steps("hello"))
    [Text(delta='hello')]
    """
    if isinstance(reply, str):
        yield Text(reply)
    elif isinstance(reply, Step):
        yield reply
    elif isinstance(reply, Iterable):
        for step in reply:
            if not isinstance(step, Step):
                raise TypeError(f"a brain's reply holds {step!r}, which is not a step")
            yield step
    else:
        raise TypeError(
            f"a brain must return a text, a step or an iterable of steps, not {reply!r}"
        )
