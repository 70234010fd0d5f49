"""The clock of a `FakeCursor`: seconds that a script's delays take, real or not."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time

# Real seconds, and then turns of the event loop, without a call after which the clock jumps to the
# next moment at which something is due: enough for calls that were made together to reach their
# own delays. CPython lets another thread run after 5 ms.
_QUIET = 0.005
_TURNS = 10
# Real seconds after which it jumps though calls go on: some of them may wait for what is due.
_BUSY = 0.5


class FakeClock:
    """Tells how much time has passed for a `FakeCursor`.

    Unless the time is real, it passes only by what waits for it, and then at once.

    >>> FakeClock().now
    0.0
    """

    def __init__(self, *, real_time: bool = False) -> None:
        self.real_time = real_time
        self._began = time.monotonic()
        self._passed = 0.0

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began if self.real_time else self._passed

    def jump_to(self, moment: float) -> None:
        """Let time pass up to `moment`, unless it is real or has passed already."""
        self._passed = max(self._passed, moment)


class Timeline:
    """Wakes what waits on one event loop, in the order of the clock.

    Args:
        clock: What the seconds are counted by; several timelines may share it.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._ids = itertools.count()
        self._armed = False
        self._quiet_at = 0.0
        self._latest = 0.0

    def touch(self) -> None:
        """Something is going on: let it come to its own delay first."""
        self._quiet_at = self._loop.time() + _QUIET
        if self._armed:
            self._quiet_at = min(self._quiet_at, self._latest)

    def wake_after(self, seconds: float, sleeper: asyncio.Future[None]) -> None:
        """Resolve `sleeper`, if it has no result until then, when `seconds` have passed."""
        if self._clock.real_time:
            self._loop.call_later(seconds, wake, sleeper)
            return
        heapq.heappush(self._sleepers, (self._clock.now + seconds, next(self._ids), sleeper))
        self._arm()

    def _arm(self) -> None:
        if not self._armed:
            self._latest = self._loop.time() + _BUSY
            self._armed = True
            self.touch()
            self._loop.call_at(self._quiet_at, self._turn, _TURNS)
        else:
            self.touch()

    def _turn(self, left: int) -> None:
        if not left:
            self._armed = False
            self._jump()
        elif self._loop.time() >= self._quiet_at:
            self._loop.call_soon(self._turn, left - 1)
        else:
            self._loop.call_at(self._quiet_at, self._turn, _TURNS)

    def _jump(self) -> None:
        while self._sleepers:
            moment, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                self._clock.jump_to(moment)
                sleeper.set_result(None)
                break
        if self._sleepers:
            self._arm()


def wake(sleeper: asyncio.Future[None]) -> None:
    """Resolve a future, unless that has happened already."""
    if not sleeper.done():
        sleeper.set_result(None)
