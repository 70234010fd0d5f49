"""What changes while others watch: readable from any thread, and it can be waited for."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

SelfT = TypeVar("SelfT", bound="Watched")


class Watched(ABC):
    """Something that changes under its own lock and wakes whoever waits for a change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._listeners: set[Callable[[], object]] = set()

    def wait_for(self: SelfT, predicate: Callable[[SelfT], object], timeout: float = 5.0) -> None:
        """Blocks until `predicate(self)` is true; it is asked again after every change.

        Not for brains: nothing changes while one of them waits.

        Args:
            predicate: Gets this object. It must be quick and must not wait for anything.
            timeout: Seconds to wait at most.

        Raises:
            TimeoutError: It did not come true; the message tells what was recorded.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: predicate(self), timeout):
                raise TimeoutError(self._describe(timeout))

    async def await_for(
        self: SelfT, predicate: Callable[[SelfT], object], timeout: float = 5.0
    ) -> None:
        """The same for a coroutine, whose event loop goes on meanwhile."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        deadline = loop.time() + timeout
        timer = loop.call_at(deadline, changed.set)
        with self._listening(lambda: loop.call_soon_threadsafe(changed.set)):
            try:
                while not self._holds(predicate):
                    if loop.time() >= deadline:
                        raise TimeoutError(self._describe(timeout))
                    await changed.wait()
                    changed.clear()
            finally:
                timer.cancel()

    def _holds(self: SelfT, predicate: Callable[[SelfT], object]) -> bool:
        with self._changed:
            return bool(predicate(self))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds the lock for a change and wakes whoever waits for one."""
        with self._changed:
            yield
            self._changed.notify_all()
            for listener in self._listeners:
                with suppress(RuntimeError):  # its event loop was closed without notice
                    listener()

    @contextmanager
    def _listening(self, listener: Callable[[], object]) -> Iterator[None]:
        with self._changed:
            self._listeners.add(listener)
        try:
            yield
        finally:
            with self._changed:
                self._listeners.discard(listener)

    @abstractmethod
    def _describe(self, timeout: float) -> str:
        """What to say when something did not come true within `timeout` seconds."""
