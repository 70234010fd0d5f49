"""One call's conversation with its agent: the prompt, the reply, its judgement, one re-ask."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from langchain_cursor.contract import Call, Contract, ContractViolation, JsonContract, Parsed
from langchain_cursor.errors import CursorContractError
from langchain_cursor.events import (
    Event,
    Finished,
    Started,
    TextDelta,
    ThinkingDelta,
    Usage,
    usage_metadata,
)
from langchain_cursor.serializer import Prompt


class Sends(Protocol):
    """An agent: a second prompt continues the conversation."""

    def send(self, prompt: Prompt) -> AsyncGenerator[Event, None]:
        """Send a prompt, and yield what the run says, ending with `Finished`."""


@dataclass(frozen=True)
class Answer:
    """What a conversation came to.

    Args:
        text: The answer, or the text around the calls.
        calls: The tool calls, in order.
        reasoning: The model's reasoning, of all turns.
        message_id: The run of the first turn, which all chunks of a stream carry.
        run_id: The run of the last turn.
        model: The model's id as Cursor resolved it.
        duration_ms: Milliseconds that the runs took together.
        usage: Tokens of all turns together.
        reply: The last reply as the model wrote it.
    """

    text: str
    calls: tuple[Call, ...]
    reasoning: str
    message_id: str
    run_id: str
    model: str
    duration_ms: int
    usage: Usage | None
    reply: str


Emit: TypeAlias = Callable[[Event], Awaitable[None] | None]
"""Takes an event; returns what to wait for before the next one, if anything."""


async def converse(
    agent: Sends,
    prompt: Prompt,
    contract: Contract | JsonContract | None = None,
    stop: tuple[str, ...] = (),
    emit: Emit | None = None,
) -> Answer:
    """Ask an agent, and ask once more if the reply breaks the contract.

    Args:
        agent: The agent.
        prompt: The prompt, with the contract's block in it.
        contract: What the reply is judged by; None takes every reply as an answer.
        stop: Texts that end an answer.
        emit: Gets what may be shown at once: `Started`, reasoning, and text that can neither be
            a part of a tool call nor lie behind a stop text. All its texts together are the
            answer's.

    Raises:
        CursorContractError: The second reply breaks the contract too.
    """
    talk = _Talk(agent, contract, StopCut(stop), emit)
    parsed = await talk.turn(prompt)
    if isinstance(parsed, ContractViolation):
        assert contract is not None  # without one nothing is violated
        parsed = await talk.turn(Prompt(None, contract.correction(parsed)))
    if isinstance(parsed, ContractViolation):
        raise CursorContractError(
            "The model broke the tool contract twice. "
            f"What was wrong with its last reply: {parsed.message}",
            reason=parsed.reason,
            llm_output=parsed.reply,
            run_id=talk.turns[-1].run_id,
            usage=usage_metadata(talk.usage()),
        ) from parsed
    return await talk.answer(parsed)


class _Talk:
    """The turns so far, and what of them has been shown."""

    def __init__(
        self,
        agent: Sends,
        contract: Contract | JsonContract | None,
        stop: StopCut,
        emit: Emit | None,
    ) -> None:
        self.turns: list[Finished] = []
        self._agent = agent
        self._contract = contract
        self._stop = stop
        self._emit = emit
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._first_run = ""
        self._began = False
        self._waits: list[Awaitable[None]] = []  # until what was shown may be followed by more

    async def turn(self, prompt: Prompt) -> Parsed | ContractViolation:
        """Send a prompt, show what may be shown, and judge the reply."""
        scanner = None if self._contract is None else self._contract.scanner()
        shown = 0
        # What was said before a reply broke the contract stays: a stream has shown it already.
        gap = "\n\n" if self._texts else ""
        async with aclosing(self._agent.send(prompt)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    text = event.text if scanner is None else scanner.feed(event.text)
                    if text:
                        self._show(gap + text)
                        shown, gap = shown + len(text), ""
                elif isinstance(event, ThinkingDelta):
                    self._reasoning.append(event.text)
                    self._tell(event)
                elif isinstance(event, Started):
                    if not self.turns:  # a run that was begun anew has another id
                        self._first_run = event.run_id
                else:
                    self.turns.append(event)
                if self._waits:
                    await self._room()
        if scanner is None:
            return Parsed((), self.turns[-1].text)
        try:
            parsed = scanner.parsed()
        except ContractViolation as violation:
            return violation
        if rest := parsed.text[shown:]:
            self._show(gap + rest)
            await self._room()
        return parsed

    async def answer(self, parsed: Parsed) -> Answer:
        """Show what was held for a stop text, and put everything together."""
        self._put(self._stop.finish())
        await self._room()
        last = self.turns[-1]
        return Answer(
            text="".join(self._texts),
            calls=parsed.calls,
            reasoning="".join(self._reasoning),
            message_id=self._first_run,
            run_id=last.run_id,
            model=last.model,
            duration_ms=sum(turn.duration_ms for turn in self.turns),
            usage=self.usage(),
            reply=last.text,
        )

    def usage(self) -> Usage | None:
        """The tokens of all turns together."""
        known = [turn.usage for turn in self.turns if turn.usage is not None]
        return sum(known[1:], known[0]) if known else None

    # These are called for every token, so they are no coroutines: `_room` waits for all of them.

    def _show(self, text: str) -> None:
        self._put(self._stop.feed(text))

    def _put(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._tell(TextDelta(text))

    def _tell(self, event: Event) -> None:
        if self._emit is None:
            return
        if not self._began:
            # Not before there is something to show: until then a failed call can be retried.
            self._began = True
            self._tell(Started(self._first_run))
        if (room := self._emit(event)) is not None:
            self._waits.append(room)

    async def _room(self) -> None:
        while self._waits:
            await self._waits.pop(0)


class StopCut:
    """Ends a text that comes in pieces before the first of the stop texts.

    Holds back no more than the beginning of a stop text that may be completed by what follows.

    Example:
        >>> cut = StopCut(("END",))
        >>> cut.feed("one E"), cut.feed("ach EN"), cut.feed("D two"), cut.finish()
        ('one ', 'Each ', '', '')
    """

    def __init__(self, stop: Iterable[str]) -> None:
        self._stop = tuple(text for text in stop if text)
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self._ended = False

    def feed(self, text: str) -> str:
        """Take the next piece; return what is certain to stand before a stop text."""
        if self._ended or not self._stop:
            return "" if self._ended else text
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            # The one that is complete first, as if the model had been stopped there.
            self._ended, self._held = True, ""
            return text[: min(found)[1]]
        keep = max(
            size
            for size in range(min(self._longest, len(text) + 1))
            if size == 0 or any(stop.startswith(text[-size:]) for stop in self._stop)
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text is complete: return what was held back."""
        held, self._held = self._held, ""
        return held
