"""One run on a fake bridge: plays the steps of its reply as the messages of the run's stream."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal

from ._sdk_clock import wake
from ._sdk_errors import Refused, hung_up, unknown_run, unreachable
from ._sdk_events import Json, RunEvents, run_result
from ._sdk_record import FakeRun, Outcome
from .replies import BridgeDies, FakeStep
from .runs import Delay, Drop, Error, Garbage, Hang, Step, Text, Thinking, ThinkingDone, Usage

if TYPE_CHECKING:
    from ._sdk_bridge import FakeBridge

Status = Literal["FINISHED", "ERROR", "CANCELLED"]
Failure = tuple[str | None, str]
"""Code and message of a run that failed."""

_OUTCOMES: dict[Status, Outcome] = {
    "FINISHED": "finished",
    "ERROR": "error",
    "CANCELLED": "cancelled",
}

# Connect's codes, and the SDK's own (`SdkErrorCode`); any other arrives as `unknown`.
_CODES = (
    "canceled unknown invalid_argument deadline_exceeded not_found already_exists "
    "permission_denied resource_exhausted failed_precondition aborted out_of_range unimplemented "
    "internal unavailable data_loss unauthenticated "
    "unauthorized api_key_not_found plan_required role_forbidden feature_unavailable "
    "agent_not_found run_not_found validation_error invalid_model usage_limit_exceeded agent_busy "
    "rate_limit_exceeded upstream_error internal_error client_cancelled"
)
# What the SDK makes of a stream from the cloud that is cut, or that holds what it should not.
_CUT: Failure = (None, "[unknown] [aborted] aborted")
_GARBLED: Failure = (None, "[invalid_argument] protocol error: incomplete envelope")
# A silent bridge sends an empty message after 15 s, and gives a silent cloud up after 30.
_KEEPALIVE = 15.0
_STALL = 30.0
_STALLED: Failure = ("connection_stalled", "Connection stalled")

# Messages after which the event loop gets a turn: a script of texts alone never waits.
_BATCH = 64


class Run:
    """A run, which goes on as far as somebody reads or awaits it.

    Args:
        bridge: Where it runs.
        record: What is kept of it.
        model: The model as it was selected.
        steps: The steps of its reply.
    """

    def __init__(
        self,
        bridge: FakeBridge,
        record: FakeRun,
        model: Json,
        steps: Iterator[FakeStep],
    ) -> None:
        self.record = record
        self.result: Json | None = None
        self._bridge = bridge
        self._model = model
        self._steps = steps
        self._plain = self._plain_steps()
        self._left: Iterator[Step] = self._plain
        self._events = RunEvents(record.agent.id, record.id)
        self._created_at = time.time()
        self._block: list[str] = []  # the texts since the last thinking
        self._thought = False
        self._usages: list[Usage] = []
        self._cancelled = False
        self._begun = False
        self._dies_after = False
        self._sleeper: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._reading = False

    async def stream(self) -> AsyncGenerator[Json, None]:
        """Play the run, or the rest of it: its messages, as they come."""
        self._reading = True
        try:
            if not self._begun:
                first = next(self._plain, None)  # what goes wrong here fails `send`
                self._begun = True
                if first is not None:
                    self._left = itertools.chain((first,), self._plain)
                yield self._events.status("RUNNING")
            async with aclosing(self._play()) as messages:
                async for message in messages:
                    yield message
        except Exception:
            self._note("error" if self._bridge.alive else "died")
            self._ended.set()
            raise
        finally:
            self._reading = False
        if self._dies_after:
            self._bridge.end()

    async def wait(self) -> Json:
        """Wait for the result, playing the run if nobody else does.

        Raises:
            NetworkError: (the SDK's) The bridge has died.
            Refused: Its stream has failed.
        """
        if not (self._reading or self._ended.is_set()):
            async with aclosing(self.stream()) as messages:
                async for _ in messages:
                    pass
        await self._ended.wait()
        if self.result is None:
            self._check_alive(after_begin=False)
            raise Refused(unknown_run(self.record.id))
        return self.result

    async def replay(self) -> AsyncGenerator[Json, None]:
        """What a second look at a run that has ended shows: its end."""
        events = RunEvents(self.record.agent.id, self.record.id)
        yield events.result(await self.wait())
        yield events.done()

    def cancel(self) -> None:
        """Stop it, unless it has ended."""
        if self.result is None:
            self._cancelled = True
            self._finish("CANCELLED")
            self._plain.close()
            self.interrupt()

    def interrupt(self) -> None:
        """Wake it, to see that it is cancelled or that the bridge has died."""
        if self._sleeper is not None:
            wake(self._sleeper)
        if not self._bridge.alive:
            self._note("died")
            self._ended.set()

    @property
    def active(self) -> bool:
        """Whether it has not ended."""
        return self.record.outcome == "running"

    async def _play(self) -> AsyncGenerator[Json, None]:
        failure: Failure | None = None
        pause = self._bridge.phases.first_token
        for number, step in enumerate(self._left, 1):
            if isinstance(step, (Text, Thinking)):
                await self._sleep(pause)
                pause = self._bridge.phases.per_token
            elif isinstance(step, Delay):
                await self._sleep(step.seconds)
            elif isinstance(step, Hang):
                await self._sleep(_KEEPALIVE, real=True)
                if not self._cancelled:
                    yield {}
                    await self._sleep(_STALL - _KEEPALIVE, real=True)
            if number % _BATCH == 0:
                await asyncio.sleep(0)
            self._check_alive(after_begin=True)
            if self._cancelled:
                break
            message = self._message(step)
            if message is not None:
                yield message
            failure = _failure(step)
            if failure is not None or self._cancelled:
                break
        if not (failure or self._cancelled or self._usages):
            yield self._use(self._counted())
        if not self._cancelled:
            self._finish("FINISHED" if failure is None else "ERROR", failure)
        assert self.result is not None
        self._plain.close()  # so that the `finally` of a generator runs now
        status = self.result["status"].rpartition("_")[2]
        yield self._events.status(status, None if self._cancelled or not failure else failure[1])
        yield self._events.result(self.result)
        yield self._events.done()

    def _plain_steps(self) -> Generator[Step, None, None]:
        """The steps, up to one that ends more than the run."""
        sdk = self._bridge.sdk
        try:
            while True:
                try:
                    step = next(self._steps)
                except StopIteration:
                    return
                except BaseException as error:
                    failed = self._bridge.script_failed(error)
                    if failed is error:
                        raise
                    raise failed from error
                if isinstance(step, BridgeDies):
                    if step.when == "after":
                        self._dies_after = True
                        continue
                    self._bridge.end()
                    raise (
                        unreachable(sdk)
                        if step.when == "before"
                        else hung_up(sdk, after_begin=self._begun)
                    )
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            close = getattr(self._steps, "close", None)
            if close is not None:
                close()

    def _message(self, step: Step) -> Json | None:
        if isinstance(step, Text):
            if self._thought:
                self._block.clear()
                self._thought = False
            self._block.append(step.delta)
            self._bridge.note_delta(self.record, step.delta)
            return self._events.text(step.delta)
        if isinstance(step, Thinking):
            self._thought = True
            return self._events.thinking(step.delta)
        if isinstance(step, ThinkingDone):
            return self._events.thinking_done(step.duration_ms)
        return self._use(step) if isinstance(step, Usage) else None

    def _use(self, usage: Usage) -> Json:
        self._usages.append(usage)
        return self._events.usage(usage)

    def _counted(self) -> Usage:
        return Usage(len(self.record.text.split()), len(self.record.answer.split()))

    def _finish(self, status: Status, failure: Failure | None = None) -> None:
        passed = self._bridge.clock.now - self.record.started_at
        self.result = run_result(
            (self.record.agent.id, self.record.id),
            status,
            text="".join(self._block) if status == "FINISHED" else "",
            model=self._model,
            duration_ms=max(1, round(passed * 1000)),  # the bridge never tells 0
            created_at=self._created_at,
            usages=self._usages,
            error=failure if self._bridge.tells_run_errors else None,
        )
        self._note(_OUTCOMES[status])
        self._ended.set()

    def _note(self, outcome: Outcome) -> None:
        self._bridge.note_end(self.record, outcome)

    async def _sleep(self, seconds: float, *, real: bool = False) -> None:
        if seconds <= 0 or self._cancelled:
            return
        loop = asyncio.get_running_loop()
        self._sleeper = sleeper = loop.create_future()
        timer = loop.call_later(seconds, wake, sleeper) if real else None
        if timer is None:
            self._bridge.wake_after(seconds, sleeper)
        try:
            await sleeper
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()
        self._check_alive(after_begin=True)

    def _check_alive(self, *, after_begin: bool) -> None:
        if not self._bridge.alive:
            raise hung_up(self._bridge.sdk, after_begin=after_begin)


def _failure(step: Step) -> Failure | None:
    if isinstance(step, Error):
        code = step.code if step.code in _CODES.split() else "unknown"
        return None, f"[{code}] {step.message}".rstrip()
    if isinstance(step, Hang):
        return _STALLED
    if isinstance(step, Drop):
        return _CUT
    return _GARBLED if isinstance(step, Garbage) else None
