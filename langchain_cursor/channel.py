"""The channel: carries a stream from the private loop to its reader, a bounded way ahead."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Generic, TypeVar

from langchain_cursor.errors import CursorClosedError

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
        self._room: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None

    def put(self, item: T) -> bool:
        """Add an item.

        Returns:
            Whether too many wait now: then `room` is to be awaited before the next.
        """
        self.used = True
        if self._room is None:
            self._room = asyncio.Event()
        with self._lock:
            self._items.append(item)
            full = len(self._items) >= self._limit
            if full:
                self._room.clear()
        self._wake()
        return full

    async def room(self) -> None:
        """Wait until the reader has taken what waits."""
        if self._room is not None:
            await self._room.wait()

    def end(self) -> None:
        """There is nothing more to come."""
        with self._lock:
            self._ended = True
        self._wake()

    def abandon(self) -> None:
        """In a forked child: what was to come stays with the parent."""
        self._lock = threading.Lock()  # another thread may have held it when the process forked
        self._forked = self._ended = True

    def read(self) -> Iterator[T]:
        """Read to the end, blocking this thread."""
        ready = threading.Event()
        self._wake = ready.set
        while True:
            ready.clear()
            items, ended = self._take()
            yield from items
            if ended:
                return
            if not items:
                ready.wait()

    async def aread(self) -> AsyncGenerator[T, None]:
        """Read to the end from another event loop."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(ready.set)
            except RuntimeError:  # the reader's loop has closed, and nobody reads any more
                return

        self._wake = wake
        while True:
            ready.clear()
            items, ended = self._take()
            for item in items:
                yield item
            if ended:
                return
            if not items:
                await ready.wait()

    def _take(self) -> tuple[list[T], bool]:
        if self._forked:
            raise CursorClosedError(
                "This stream was begun before the process forked; its parent reads it. Begin "
                "another one here."
            )
        with self._lock:
            items = list(self._items)
            self._items.clear()
            ended = self._ended
        if len(items) >= self._limit and self._room is not None:
            try:
                self._loop.call_soon_threadsafe(self._room.set)
            except RuntimeError:  # the private loop has ended
                ended = True
        return items, ended
