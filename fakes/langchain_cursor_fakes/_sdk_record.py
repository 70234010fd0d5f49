"""What a `FakeCursor` has seen: agents, runs, and assertions about them that fail readably."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ._sdk_script import UnexpectedRun
from ._watch import Watched
from .runs import ReceivedImage, ReceivedRun

if TYPE_CHECKING:
    from langchain_cursor.serializer import Turn

Outcome = Literal["running", "finished", "error", "cancelled", "died"]

_SHOWN = 300  # characters
_LISTED = 10


@dataclass(eq=False)
class FakeAgent:
    """One agent that was created.

    Attributes:
        id: Its id.
        options: Its options as they came over the wire, with a fingerprint for the API key.
        model: Id of its model; "" if it has none.
        system_prompt: Its own system prompt.
        is_lease: Whether it only holds an executor warm (see `prewarm` of ChatCursor).
        is_open: Whether it has not been closed.
        runs: How many runs were sent to it.
        bridge: The bridge that it lives on, counted from 1.
    """

    id: str
    options: Mapping[str, Any] = field(repr=False)
    model: str = ""
    system_prompt: str | None = field(default=None, repr=False)
    is_lease: bool = False
    is_open: bool = True
    runs: int = 0
    bridge: int = 1


@dataclass(eq=False)
class FakeRun:
    """One run, kept up to date while it lasts.

    Attributes:
        id: Its id.
        agent: The agent it was sent to.
        received: What was asked.
        options: The options of `send`.
        deltas: The pieces of the answer so far.
        outcome: `running`; `finished`; `error`; `cancelled`; `died` (the bridge did).
        started_at: When it began, by the fake's clock.
        ended_at: When it ended; None while it runs.
    """

    id: str
    agent: FakeAgent
    received: ReceivedRun
    options: Mapping[str, Any] = field(repr=False)
    deltas: list[str] = field(default_factory=list, repr=False)
    outcome: Outcome = "running"
    started_at: float = 0.0
    ended_at: float | None = None

    @property
    def answer(self) -> str:
        """The answer so far."""
        return "".join(self.deltas)

    @property
    def text(self) -> str:
        """The prompt as it was sent."""
        return self.received.text

    @property
    def turns(self) -> list[Turn]:
        """The messages in the prompt, read with `langchain_cursor.serializer.parse`."""
        return self.received.turns

    @property
    def prompt(self) -> str:
        """The texts of the messages, system messages included, without tags and tool contract."""
        return self.received.prompt

    @property
    def question(self) -> str:
        """The text of the last user message; "" if there is none."""
        return self.received.question

    @property
    def system(self) -> str | None:
        """The system text: the agent's own system prompt, else the prompt's system messages."""
        return self.received.system

    @property
    def tools(self) -> list[str]:
        """The names of the tools offered to the model, in order."""
        return self.received.tools

    @property
    def images(self) -> tuple[ReceivedImage, ...]:
        """The images, in order."""
        return self.received.images

    @property
    def model(self) -> str:
        """Id of the model."""
        return self.received.model


class FakeRecord(Watched):
    """Agents, runs and failures in the order in which they came, and assertions about them."""

    def __init__(self) -> None:
        super().__init__()
        self._agents: list[FakeAgent] = []
        self._runs: list[FakeRun] = []
        self._failures: list[BaseException] = []
        self._executor_builds = 0
        self._bridge_starts = 0

    @property
    def agents(self) -> list[FakeAgent]:
        """All agents so far, leases included."""
        with self._changed:
            return list(self._agents)

    @property
    def runs(self) -> list[FakeRun]:
        """All runs so far."""
        with self._changed:
            return list(self._runs)

    @property
    def failures(self) -> list[BaseException]:
        """Runs that the script did not expect, and what its functions have raised."""
        with self._changed:
            return list(self._failures)

    @property
    def executor_builds(self) -> int:
        """How many executors were built."""
        with self._changed:
            return self._executor_builds

    @property
    def bridge_starts(self) -> int:
        """How many bridges were started."""
        with self._changed:
            return self._bridge_starts

    def clear(self) -> None:
        """Forget what is over: runs, closed agents, failures, and the count of executors built."""
        with self._changing():
            self._agents = [agent for agent in self._agents if agent.is_open]
            self._runs = [run for run in self._runs if run.outcome == "running"]
            self._failures.clear()
            self._executor_builds = 0

    def assert_prompted(self, wanted: str | re.Pattern[str], *, times: int | None = None) -> None:
        """Assert that the model was asked something.

        Args:
            wanted: A text or a match that a prompt's messages contain. The whole conversation
                counts, so a question is seen again in each later run of an agent's loop.
            times: In how many runs; None for one or more.

        Raises:
            AssertionError: It was not; the message lists what was asked.
        """
        self._assert_seen("prompt", wanted, times, lambda run: run.prompt)

    def assert_system(self, wanted: str | re.Pattern[str], *, times: int | None = None) -> None:
        """Assert that the model was given a system text, natively or in the prompt.

        Args:
            wanted: A text or a match that it contains.
            times: In how many runs; None for one or more.

        Raises:
            AssertionError: It was not; the message lists what was given.
        """
        self._assert_seen("system text", wanted, times, lambda run: run.system or "")

    def assert_tools_offered(self, names: Iterable[str]) -> None:
        """Assert that a run was offered exactly these tools, in any order.

        Raises:
            AssertionError: None was; the message lists what was offered.
        """
        if isinstance(names, str):
            raise TypeError(f"the names of tools are a list of texts, not the text {names!r}")
        names = sorted(names)
        runs = self.runs
        if not any(sorted(run.tools) == names for run in runs):
            offered = _listed(", ".join(run.tools) or "no tools" for run in runs)
            raise AssertionError(f"No run was offered exactly the tools {names}. {offered}")

    def assert_closed(self, timeout: float = 2.0) -> None:
        """Assert that no agent is open, except for one on each bridge that holds the executor.

        Agents are closed behind a caller's back, so this waits.

        Args:
            timeout: Seconds to wait for it.

        Raises:
            AssertionError: Agents stay open; the message lists them.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._left_open(), timeout):
                agents = [f"{agent.id} (runs: {agent.runs})" for agent in self._left_open()]
                raise AssertionError(f"Agents are still open: {', '.join(agents)}.")

    def _left_open(self) -> list[FakeAgent]:
        """The open agents, but for one on each bridge that may hold its executor."""
        active = {run.agent.id for run in self._runs if run.outcome == "running"}
        left: list[FakeAgent] = []
        for bridge in range(1, self._bridge_starts + 1):
            opened = [a for a in self._agents if a.is_open and a.bridge == bridge]
            idle = [agent for agent in opened if agent.id not in active]
            holder = next((agent for agent in idle if agent.is_lease), idle[-1] if idle else None)
            left += [agent for agent in opened if agent is not holder]
        return left

    def _note_failure(self, error: BaseException) -> Exception:
        """Keep what the script has raised, and make of it what the caller gets."""
        with self._changing():
            if isinstance(error, UnexpectedRun):
                error = AssertionError(f"{error} {self._circumstances()}")
            elif not isinstance(error, Exception):
                # Such as what `pytest.fail` raises: no `except Exception` on the way would see it.
                error = AssertionError(str(error))
            self._failures.append(error)
        if isinstance(error, AssertionError):
            return error
        # Else a `TimeoutError` would be taken for Cursor's, and tried again.
        return AssertionError(f"FakeCursor's script raised {type(error).__name__}: {error}")

    def _circumstances(self) -> str:
        """How the newest run came about."""
        *before, run = self._runs
        told = f"It was run {len(self._runs)}"
        same = [other for other in before if other.agent is run.agent]
        if same:  # an agent gets a second message only if its answer has broken the contract
            shown = same[-1].answer[-_SHOWN:]
            return f"{told}, which asks for a correction of the reply {shown!r}."
        for number, other in enumerate(before, 1):
            if other.text == run.text and other.outcome in ("error", "died"):
                return f"{told}, with the prompt of run {number}, which failed: perhaps a retry."
        return f"{told}."

    def _assert_seen(
        self,
        what: str,
        wanted: str | re.Pattern[str],
        times: int | None,
        read: Callable[[FakeRun], str],
    ) -> None:
        if not isinstance(wanted, (str, re.Pattern)):
            raise TypeError(f"what is looked for is a text or a compiled pattern, not {wanted!r}")
        texts = [read(run) for run in self.runs]
        if isinstance(wanted, str):
            seen = sum(wanted in text for text in texts)
            described = f"contains {wanted!r}"
        else:
            seen = sum(wanted.search(text) is not None for text in texts)
            described = f"matches {wanted.pattern!r}"
        if seen == times or (times is None and seen):
            return
        found = "No run has" if times is None else f"Of the runs {seen}, not {times}, have"
        raise AssertionError(f"{found} a {what} that {described}. {_listed(texts)}")

    def _describe(self, timeout: float) -> str:
        with self._changed:
            runs = [f"{run.outcome}: {run.question[:80]!r}" for run in self._runs[-10:]]
            return (
                f"not so within {timeout} s. Recorded: {len(self._agents)} agents, "
                f"{len(self._runs)} runs, the last of them: {runs}"
            )


def _listed(texts: Iterable[str]) -> str:
    texts = list(texts)
    if not texts:
        return "There was no run."
    lines = [
        # What is new stands at the end of a long conversation.
        f"\n  run {number}: {text if len(text) <= _SHOWN else '...' + text[-_SHOWN:]!r}"
        for number, text in enumerate(texts, 1)
    ]
    last = "" if len(lines) <= _LISTED else f", the last {_LISTED} of {len(lines)}"
    return f"The runs so far{last}:{''.join(lines[-_LISTED:])}"
