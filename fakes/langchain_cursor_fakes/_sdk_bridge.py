"""A bridge in this process: what cursor-sdk's transport seam talks to, and its life and time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import _sdk_errors as errors
from ._sdk_clock import FakeClock, wake
from ._sdk_errors import Refused
from ._sdk_events import Json
from ._sdk_record import FakeRun, Outcome
from ._sdk_service import Service

if TYPE_CHECKING:
    from .sdk import FakeCursor, Phases


class FakeBridge:
    """One bridge: a transport for the SDK, and the process that would be behind it.

    It lives on the event loop that it is made on.

    Args:
        cursor: Whose it is: the account, the script and the record.
        sdk: The SDK module, for its exceptions.
        extended: Whether it runs with ChatCursor's extension.
        on_death: Called on the loop when it has ended.
    """

    def __init__(
        self,
        cursor: FakeCursor,
        sdk: ModuleType,
        *,
        extended: bool,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.sdk = sdk
        self.alive = True
        self.loop = asyncio.get_running_loop()
        self._cursor = cursor
        self._on_death = on_death
        self._timeline = cursor._timeline()
        with cursor._changing():
            cursor._bridge_starts += 1
            number = cursor._bridge_starts
        self._service = Service(self, cursor, extended=extended, number=number)
        self._sleepers: set[asyncio.Future[None]] = set()

    @property
    def clock(self) -> FakeClock:
        """The clock that its delays count by."""
        return self._cursor.clock

    @property
    def phases(self) -> Phases:
        """How long things take."""
        return self._cursor.phases

    @property
    def tells_run_errors(self) -> bool:
        """Whether a run's result tells why it failed."""
        return self._cursor.features.run_errors

    # --- its life ---

    def end(self) -> None:
        """End at once, as a process that is killed; from any thread."""
        if self.alive:
            self.alive = False
            try:
                self.loop.call_soon_threadsafe(self._ended)
            except RuntimeError:  # the loop has closed: nothing goes on there
                self._service.forget_agents()

    def _ended(self) -> None:
        for sleeper in self._sleepers:
            wake(sleeper)
        self._service.end()
        self._on_death()

    async def spend(self, seconds: float) -> None:
        """Let time pass, if any.

        Raises:
            NetworkError: (the SDK's) The bridge has died meanwhile.
        """
        if seconds > 0:
            sleeper: asyncio.Future[None] = self.loop.create_future()
            self._sleepers.add(sleeper)
            self.wake_after(seconds, sleeper)
            try:
                await sleeper
            finally:
                self._sleepers.discard(sleeper)
        if not self.alive:
            raise errors.hung_up(self.sdk, after_begin=False)

    def wake_after(self, seconds: float, sleeper: asyncio.Future[None]) -> None:
        """Resolve a future when some time has passed."""
        self._timeline.wake_after(seconds, sleeper)

    # --- the record ---

    def note_delta(self, record: FakeRun, delta: str) -> None:
        """Keep a piece of a run's answer."""
        with self._cursor._changing():
            record.deltas.append(delta)

    def note_end(self, record: FakeRun, outcome: Outcome) -> None:
        """Keep how a run ended."""
        with self._cursor._changing():
            if record.outcome == "running":
                record.outcome = outcome
                record.ended_at = self.clock.now

    def script_failed(self, error: BaseException) -> BaseException:
        """Keep what the script itself has raised, and make of it what the caller gets."""
        is_reply = isinstance(error, self.sdk.CursorAgentError)  # raised by a function
        return error if is_reply else self._cursor._note_failure(error)

    # --- its service: cursor-sdk's `AsyncTransport` ---

    async def unary(self, service: str, method: str, message: Mapping[str, Any]) -> Json:
        """Answer a call."""
        self._timeline.touch()
        if not self.alive:
            raise errors.unreachable(self.sdk)
        try:
            # Through JSON, as on the wire: nothing is shared, and what is no JSON is refused.
            return await self._service.answer(method, json.loads(json.dumps(message)))
        except Refused as refused:
            raise refused.refusal.as_sdk_error(self.sdk, in_stream=False) from None

    async def stream(
        self, service: str, method: str, message: Mapping[str, Any]
    ) -> AsyncGenerator[Json, None]:
        """Answer a call with a stream."""
        return self._stream(method, json.loads(json.dumps(message)))

    async def aclose(self) -> None:
        """Close the connection, of which there is none."""

    def with_options(self, **options: Any) -> FakeBridge:
        """Return a view with other time limits, which are not kept here."""
        return self

    async def _stream(self, method: str, message: Json) -> AsyncGenerator[Json, None]:
        self._timeline.touch()
        if not self.alive:
            raise errors.unreachable(self.sdk)
        try:
            async with aclosing(await self._service.stream(method, message)) as messages:
                async for event in messages:
                    yield event
        except Refused as refused:
            raise refused.refusal.as_sdk_error(self.sdk, in_stream=True) from None
