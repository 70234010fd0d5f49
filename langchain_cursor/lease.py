"""Keep-alive: what holds the warm executor between calls, and until when.

The bridge keeps an executor as long as something that uses it is open. With the extension that is
a lease of the bridge's own, taken when the first call begins or before; on the stock bridge it is
the last finished agent, which stays open until the next one has finished. Either way it is given up
when nothing was called for a while.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Holder = TypeVar("Holder")


class Timer(Protocol):
    """Something scheduled that can be called off, such as `asyncio.TimerHandle`."""

    def cancel(self) -> None:
        """Call it off."""


class Lease(Generic[Holder]):
    """Who holds the warm executor.

    All methods are called from one thread; none of them waits.

    Args:
        schedule: Calls a function after a number of seconds, such as ``loop.call_later``.
        release: Gives a holder up; it must return at once and must not raise.
        clock: The seconds that `schedule` counts in, such as ``loop.time``.

    Example:
        >>> import asyncio
        >>> async def one_call():
        ...     lease = Lease(asyncio.get_running_loop().call_later, release=print)
        ...     lease.begin()
        ...     lease.end("agent", keep_alive=60)
        ...     held = lease.held
        ...     lease.give_up()
        ...     return held, lease.held
        >>> asyncio.run(one_call())
        agent
        (True, False)
    """

    def __init__(
        self,
        schedule: Callable[[float, Callable[[], None]], Timer],
        release: Callable[[Holder], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schedule = schedule
        self._release = release
        self._clock = clock
        self._holder: Holder | None = None
        self._timer: Timer | None = None
        self._running = 0
        # The latest moment that any call since the last release wanted the executor kept to.
        self._until = -math.inf

    @property
    def held(self) -> bool:
        """Whether the executor is held now."""
        return self._holder is not None

    def begin(self) -> None:
        """A call begins: the lease does not expire while it runs."""
        self._running += 1
        self._cancel()

    def end(self, holder: Holder | None, keep_alive: float) -> None:
        """A call has ended.

        A call can lengthen the lease, and never shortens what another one wanted: models that
        share a runtime may differ in `keep_alive`.

        Args:
            holder: What would hold the executor from now on; `None` if this call built none.
            keep_alive: Seconds that this call wants it held from now on; 0 asks for nothing.
        """
        self._running -= 1
        self._replace(holder, keep_alive)

    def hold(self, holder: Holder, keep_alive: float) -> None:
        """Something holds the executor from now on, without a call that ends.

        Args:
            holder: What holds it.
            keep_alive: Seconds that it is wanted from now on.
        """
        self._replace(holder, keep_alive)

    def _replace(self, holder: Holder | None, keep_alive: float) -> None:
        self._cancel()
        if holder is not None:
            # The new one is open already when the old one is given up: the executor stays.
            previous, self._holder = self._holder, holder
            if previous is not None:
                self._release(previous)
        if self._holder is None:
            return
        now = self._clock()
        if keep_alive > 0:
            self._until = max(self._until, now + keep_alive)
        if self._running == 0:
            if self._until <= now:
                self.give_up()
            else:
                self._timer = self._schedule(self._until - now, self.give_up)

    def give_up(self) -> None:
        """Give the executor up now."""
        self._cancel()
        self._until = -math.inf
        holder, self._holder = self._holder, None
        if holder is not None:
            self._release(holder)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
