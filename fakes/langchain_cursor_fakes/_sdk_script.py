"""What a `FakeCursor` answers: replies in order, by rules, or by a function."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from .brain import answer, split_words
from .replies import Answer, BridgeDies, FakeReply, FakeStep, Match, Violation
from .runs import ReceivedRun, Step

# The keys are a `Match`; but a mapping's are invariant, and a dict of texts alone would not do.
Rules: TypeAlias = Mapping[Any, FakeReply]
Script: TypeAlias = Sequence[FakeReply] | Rules | Answer | None
"""What a `FakeCursor` answers: replies in order, rules, a function, or the default brain."""

_SHOWN = 200


class Player:
    """Gives each run its reply.

    Args:
        script: Replies, one a run; rules, of which the first that matches a run answers it; a
            function; or None for the default brain.

    Raises:
        TypeError: The script is none of these.
    """

    def __init__(self, script: Script = None) -> None:
        self._answer: Answer
        self._left: list[FakeReply] = []
        # By agent: a correction repeats neither the tools nor the question.
        self._good: dict[str, str] = {}
        if script is None:
            self._answer = answer
        elif callable(script) and not isinstance(script, type):
            self._answer = script
        elif isinstance(script, Mapping):
            self._answer = _by_rules(script)
        elif isinstance(script, Sequence) and not isinstance(script, (str, bytes)):
            self._left = list(script)
            self._answer = self._next
        else:
            raise TypeError(
                f"a script is a list of replies, a dict of rules or a function, not {script!r}"
            )

    @property
    def left(self) -> list[FakeReply]:
        """The replies in order that no run has had yet."""
        return list(self._left)

    def steps(self, run: ReceivedRun) -> Iterator[FakeStep]:
        """The steps of a run's reply, one by one.

        Raises:
            UnexpectedRun: The script has no reply for this run.
            TypeError: The reply is none.
            Exception: Whatever a function of the script raises.
        """
        yield from self._steps(self._answer(run), run)

    def _next(self, run: ReceivedRun) -> FakeReply:
        if not self._left:
            raise UnexpectedRun(run, "no reply of its script is left")
        return self._left.pop(0)

    def _steps(self, reply: FakeReply, run: ReceivedRun) -> Iterator[FakeStep]:
        if isinstance(reply, str):
            yield from split_words(reply)
        elif isinstance(reply, Violation):
            yield from split_words(self._broken(reply, run))
        elif _is_step(reply):
            yield _fresh(reply)
        elif callable(reply) and not isinstance(reply, type):
            yield from self._steps(reply(run), run)
        elif isinstance(reply, Iterable) and not isinstance(reply, (Mapping, bytes)):
            for step in reply:
                if not (isinstance(step, (str, Violation)) or _is_step(step)):
                    raise TypeError(f"a reply holds {step!r}, which is not a step: {_KINDS}")
                yield from self._steps(step, run)
        else:
            getattr(reply, "close", lambda: None)()  # a coroutine would warn that nobody awaits it
            raise TypeError(f"{reply!r} is no reply: {_KINDS}")

    def _broken(self, violation: Violation, run: ReceivedRun) -> str:
        from .contract_brain import MISBEHAVIOURS, contract_reply  # brings JSON Schema

        good = violation.of
        if good is None:
            good = contract_reply(run.text) or self._good.get(run.agent_id)
        if good is None:
            raise ValueError(
                f"violation({violation.kind!r}) has no good reply to break, as the prompt asks for "
                f"no call: give it one, violation({violation.kind!r}, tool_call(...))"
            )
        self._good[run.agent_id] = good
        return MISBEHAVIOURS[violation.kind](good)


class UnexpectedRun(AssertionError):
    """A run for which the script has no reply."""

    def __init__(self, run: ReceivedRun, why: str) -> None:
        question = run.newest
        if len(question) > _SHOWN:
            question = f"{question[:_SHOWN]}..."
        super().__init__(
            f"FakeCursor did not expect this run: {why}. The newest message was {question!r}, the "
            f"model {run.model!r}."
        )


_KINDS = (
    "a reply is a text, a step (Text, Thinking, Usage, Error, Delay, ...), an `Exception` that the "
    "SDK may raise, violation(...), a list of these, or a function (no coroutine function) that "
    "returns one"
)


def _is_step(reply: object) -> TypeGuard[FakeStep | type[Exception]]:
    if isinstance(reply, (Step, BridgeDies)):
        return True
    kind = reply if isinstance(reply, type) else type(reply)
    if not issubclass(kind, Exception) or issubclass(kind, (StopIteration, StopAsyncIteration)):
        return False  # another exception would end the event loop, or the script
    ours = getattr(sys.modules.get("langchain_cursor.errors"), "CursorError", ())
    if issubclass(kind, ours):
        raise TypeError(
            f"{kind.__name__} is what ChatCursor makes of a failure: script the failure itself, "
            "such as Error('resource_exhausted', ...) or cursor_sdk.RateLimitError(...)"
        )
    return True


def _fresh(step: FakeStep | type[Exception]) -> FakeStep:
    """An exception of its own for each time it is raised."""
    if isinstance(step, type):
        return step("scripted by FakeCursor")
    if isinstance(step, Exception):
        try:
            made = copy.copy(step)
        except TypeError:  # its constructor wants more than its arguments
            return step
        made.__cause__ = step.__cause__
        return made
    return step


def _by_rules(rules: Rules) -> Answer:
    matchers = [(_matcher(match), reply) for match, reply in rules.items()]
    for match, reply in rules.items():
        if isinstance(reply, Iterator):
            raise TypeError(
                f"the reply of the rule {_shown(match)} is an iterator, which the first run uses "
                "up: make it a list or a function"
            )

    def answer_by_rules(run: ReceivedRun) -> FakeReply:
        for matches, reply in matchers:
            if matches(run):
                return reply
        wanted = ", ".join(_shown(match) for match in rules) or "none"
        raise UnexpectedRun(run, f"no rule matches (rules: {wanted})")

    return answer_by_rules


def _matcher(match: Match) -> Callable[[ReceivedRun], object]:
    if isinstance(match, str):
        return lambda run: match in run.newest
    if isinstance(match, re.Pattern):
        return lambda run: match.search(run.newest)
    if callable(match):
        return match
    raise TypeError(f"a rule matches by a text, a regular expression or a function, not {match!r}")


def _shown(match: Match) -> str:
    if isinstance(match, re.Pattern):
        return f"re {match.pattern!r}"
    return repr(match)[:_SHOWN]
