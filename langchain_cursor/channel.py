"""The channel: carries a stream from the private loop to its reader, a bounded way ahead."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Generic, TypeVar

from langchain_cursor.errors import CursorClosedError
from langchain_cursor.loop import keep_waiting

T = TypeVar("T")

# Items that may wait for a slow reader; then the run's stream is not read any further.
LIMIT = 256


class Channel(Generic[T]):
    """A bounded queue between the private loop, which puts, and one reader in another thread.

    `put` and `room` are called on the private loop, `end` anywhere, the rest by the reader.

    Args:
        loop: The private loop.
        limit: Items that may wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int = LIMIT) -> None:
        self.used = False
        self._loop = loop
        self._limit = limit
        self._items: deque[T] = deque()
        self._ended = False
        self._forked = False
        self._room = asyncio.Event()
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None  # of a reader that waits
        self._waking = False

    def put(self, item: T) -> bool:
        """Add an item.

        Returns:
            Whether too many wait now: then `room` is to be awaited before the next.
        """
        self.used = True
        with self._lock:
            self._items.append(item)
            full = len(self._items) >= self._limit
            if full:
                self._room.clear()
            to_wake = self._wake is not None and not self._waking
            if to_wake:
                self._waking = True
        if to_wake:
            # After this pass of the loop, so that what was received together crosses together.
            self._loop.call_soon(self._rouse)
        return full

    async def room(self) -> None:
        """Wait until the reader has taken what waits."""
        await self._room.wait()

    def end(self) -> None:
        """There is nothing more to come."""
        with self._lock:
            self._ended = True
        self._rouse()

    def abandon(self) -> None:
        """In a forked child: what was to come stays with the parent."""
        self._lock = threading.Lock()  # another thread may have held it when the process forked
        self._forked = self._ended = True

    def read(self) -> Iterator[list[T]]:
        """Read to the end, blocking this thread: each time all that has come meanwhile."""
        ready = threading.Event()
        while True:
            ready.clear()
            items, ended = self._take(ready.set)
            if items:
                yield items
            if ended:
                return
            if not items:
                keep_waiting(ready.wait)

    async def aread(self) -> AsyncGenerator[list[T], None]:
        """`read`, from another event loop."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(ready.set)
            except RuntimeError:  # the reader's loop has closed, and nobody reads any more
                return

        while True:
            ready.clear()
            items, ended = self._take(wake)
            if items:
                yield items
            if ended:
                return
            if not items:
                await ready.wait()

    def _rouse(self) -> None:
        with self._lock:
            wake, self._wake, self._waking = self._wake, None, False
        if wake is not None:
            wake()

    def _take(self, wake: Callable[[], None]) -> tuple[list[T], bool]:
        """Take what is there; if that is nothing, let what comes next wake the reader."""
        if self._forked:
            raise CursorClosedError(
                "This stream was begun before the process forked; its parent reads it. Begin "
                "another one here."
            )
        with self._lock:
            items = list(self._items)
            self._items.clear()
            ended = self._ended
            if not items:
                self._wake = wake
        if len(items) >= self._limit:
            try:
                self._loop.call_soon_threadsafe(self._room.set)
            except RuntimeError:  # the private loop has ended
                ended = True
        return items, ended
