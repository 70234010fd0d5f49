"""What a brain is given, and the steps of which its reply is made.

A *brain* is any function from a `ReceivedRun` to a reply: a text, one step, or an iterable of
steps (a generator runs step by step while the run lasts).

    >>> def parrot(run: ReceivedRun) -> Reply:
    ...     return [Thinking("hm"), Text(run.text), Usage(input_tokens=3, output_tokens=1)]
    >>> parrot(ReceivedRun("hello"))[1]
    Text(delta='hello')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langchain_cursor.serializer import Turn


@dataclass(frozen=True)
class ReceivedImage:
    """An image attached to a run: its bytes exactly as sent, and its MIME type.

    `cursor-sdk` 1.1.0 sends the type that it recognises in the bytes; for others it is empty.
    """

    data: bytes = field(repr=False)
    mime_type: str


@dataclass(frozen=True)
class ReceivedRun:
    r"""One run as the cloud received it.

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

    Example:
        >>> run = ReceivedRun("<user>\nHi\n</user>\n\n<user>\nWho are you?\n</user>")
        >>> run.question
        'Who are you?'
        >>> [turn.text for turn in run.turns]
        ['Hi', 'Who are you?']
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

    @property
    def turns(self) -> list[Turn]:
        """The messages in the prompt, read with `langchain_cursor.serializer.parse`."""
        from ._sdk_prompt import read_turns  # not at import

        return read_turns(self.text)

    @property
    def prompt(self) -> str:
        """The texts of the messages, system messages included, without tags and tool contract."""
        return "\n\n".join(turn.text for turn in self.turns)

    @property
    def newest(self) -> str:
        """The text of the newest message, the user's or a tool's result; "" if there is none."""
        turns = self.turns
        return turns[-1].text if turns else ""

    @property
    def question(self) -> str:
        """The text of the last user message; "" if there is none."""
        said = [turn.text for turn in self.turns if turn.role == "user"]
        return said[-1] if said else ""

    @property
    def system(self) -> str | None:
        """The system text: the agent's own system prompt, else the prompt's system messages."""
        if self.system_prompt is not None:
            return self.system_prompt
        return "\n\n".join(turn.text for turn in self.turns if turn.role == "system") or None

    @property
    def tools(self) -> list[str]:
        """The names of the tools offered to the model, in order."""
        from ._sdk_prompt import read_tools  # not at import

        return read_tools(self.text)


@dataclass(frozen=True)
class Text:
    """One text delta of the answer."""

    delta: str

    def __post_init__(self) -> None:
        _check_text(self, self.delta)


@dataclass(frozen=True)
class Thinking:
    """One delta of the model's thinking."""

    delta: str

    def __post_init__(self) -> None:
        _check_text(self, self.delta)


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

    def __post_init__(self) -> None:
        _check_text(self, self.code)
        _check_text(self, self.message)


@dataclass(frozen=True)
class Delay:
    """Waits for `seconds` before the next step."""

    seconds: float

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, (int, float)) or not 0 <= self.seconds < math.inf:
            raise ValueError(f"Delay takes 0 or more seconds, not {self.seconds!r}")


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


def _check_text(step: object, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{type(step).__name__} takes a text, not {value!r}")


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
