"""The watchdog: notices that nothing has been heard for too long while something is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

# Seconds of silence. A bridge with nothing to say sends an empty event every 15 s once a run's
# stream is open, and gives up a silent cloud after 30 s (cursor-sdk 1.1.0).
SILENCE_TIMEOUT = 45.0
# More seconds, in which is read what came while this process itself was stopped or busy.
GRACE = 1.0


class Watchdog:
    """Calls a function if nothing is heard for `SILENCE_TIMEOUT` seconds, and then some.

    A context manager, on a running event loop. It has one timer, which is set again only when it
    has run down, so that hearing something costs next to nothing.

    Args:
        on_silence: Called once, on the loop.

    Example:
        >>> async def run(events):
        ...     with Watchdog(on_silence=lambda: print("It is dead.")) as watchdog:
        ...         async for event in events:
        ...             watchdog.rest()
        ...             print(event)  # may take any time
        ...             watchdog.listen()
        >>> async def events():
        ...     yield "hello"
        >>> asyncio.run(run(events()))
        hello
    """

    def __init__(self, on_silence: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._on_silence = on_silence
        self._limit = SILENCE_TIMEOUT
        self._clock = loop.time
        self._schedule = loop.call_later
        self._since: float | None = self._clock()  # since when it listens, if it does
        self._doubted: float | None = None  # that moment, once the limit has passed
        self._timer = self._schedule(self._limit, self._look)

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()

    def rest(self) -> None:
        """Something was heard, and nothing is waited for until `listen` is called."""
        self._since = None

    def listen(self) -> None:
        """Something is waited for from now on."""
        self._since = self._clock()

    def _look(self) -> None:
        since = self._since
        left = self._limit if since is None else since + self._limit - self._clock()
        if left > 0:
            self._timer = self._schedule(left, self._look)
        elif self._doubted != since:
            self._doubted = since
            self._timer = self._schedule(GRACE, self._look)
        else:
            self._on_silence()
