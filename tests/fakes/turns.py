"""Event loops and threads that take turns, by a clock that only the test moves.

Nothing runs unless the test gives it a turn, and one thing runs at a time. So what happens is
decided by the test alone: it can stop after any turn of a loop, and hours take no time.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from langchain_cursor import channel, loop, users
from langchain_cursor.loop import PrivateLoop

T = TypeVar("T")

# Turns without a pause after which something is taken to run in circles.
_MOST_TURNS = 20_000
_LONGEST_TURN = 60.0


class Clock:
    """Seconds since the beginning."""

    now = 0.0


class TurnLoop(asyncio.SelectorEventLoop):
    """An event loop that runs one turn at a time; what blocks runs in a turn of its own."""

    def __init__(self, clock: Clock) -> None:
        self.complaints: list[str] = []
        self._clock = clock
        self._once = _OneTurn()
        super().__init__(self._once)
        self._once.stop = self.stop

    def time(self) -> float:
        return self._clock.now

    def turn(self) -> bool:
        """Run what is ready, once; tell whether there was anything."""
        self.run_forever()
        return not self._once.idle

    @property
    def due(self) -> float | None:
        """When the next timer fires, after a turn in which nothing was ready."""
        wait = self._once.wait
        return None if wait is None else self._clock.now + wait

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context['message']}: {context.get('exception')!r}")

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Any:
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_soon(work)
        return future


class _OneTurn(selectors.DefaultSelector):  # type: ignore[misc, valid-type] # differs by system
    """Never waits, and stops the loop that asks."""

    stop: Callable[[], None]
    idle = True
    wait: float | None = None

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        self.idle, self.wait = not events and timeout != 0, timeout
        self.stop()
        return events


class TurnThread:
    """A thread that runs until it would wait, and goes on when what it waits for has come."""

    def __init__(self, target: Callable[[], None]) -> None:
        self.ended = False
        self._target = target
        self._raises: BaseException | None = None
        self._ready: Callable[[], object] = lambda: True
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def turn(self) -> bool:
        """Let it run until it waits; tell whether it did anything."""
        if self.ended or not (self._raises or self._ready()):
            return False
        self._go.release()
        if not self._back.acquire(timeout=_LONGEST_TURN):
            raise AssertionError("It waits for something that is no matter of turns.")
        if self.ended:
            self._thread.join()
        return True

    def interrupt(self, error: BaseException) -> None:
        """Raise something where it waits, as Ctrl-C does."""
        self._raises = error

    def wait(self, ready: Callable[[], object]) -> None:
        """Called on the thread: wait until something is so."""
        self._ready = ready
        self._back.release()
        self._go.acquire()
        error, self._raises = self._raises, None
        if error is not None:
            raise error

    def _run(self) -> None:
        self._go.acquire()
        _here.thread = self
        try:
            self._target()
        finally:
            self.ended = True
            self._back.release()


_here = threading.local()


class _TurnFuture(Future[T]):
    """A future that a `TurnThread` can wait for."""

    def result(self, timeout: float | None = None) -> T:
        self._wait()
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait()
        return super().exception(0)

    def _wait(self) -> None:
        if not self.done():
            _here.thread.wait(self.done)


class _TurnEvent:
    """An event that a `TurnThread` can wait for."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            _here.thread.wait(lambda: self._set)
        return True


class _NoThread:
    """The thread of the private loop, in place of which the test drives it."""

    def __init__(self, **_: Any) -> None:
        self.ident = threading.get_ident()

    def start(self) -> None:
        pass


_REGISTRY: dict[str, Callable[[], Any]] = {
    "_runtimes": dict,
    "_alive": set,
    "_unused": dict,
    "_calls": dict,
    "_channels": weakref.WeakSet,
    "_ending": set,
}


class _Left(BaseException):
    """Ends a thread that a failed test has left waiting."""


class Stage:
    """The private loop, the loop of async callers, and the threads of sync callers."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.private = TurnLoop(self.clock)
        self.callers = TurnLoop(self.clock)
        self.threads: list[TurnThread] = []

    @property
    def complaints(self) -> list[str]:
        """What the loops have reported that nobody else has seen."""
        return self.private.complaints + self.callers.complaints

    def start_thread(self, target: Callable[[], None]) -> TurnThread:
        """Start the thread of a sync caller."""
        thread = TurnThread(target)
        self.threads.append(thread)
        return thread

    def start_task(self, make: Callable[[], Any]) -> asyncio.Task[Any]:
        """Start the task of an async caller."""
        return self.callers.create_task(make())

    def sleep(self, seconds: float) -> None:
        """Called on a thread: let time pass."""
        over = _TurnEvent()
        self.callers.call_later(seconds, over.set)
        over.wait()

    def turn(self) -> bool:
        """Give each a turn; tell whether anything was done."""
        busy = self.private.turn()
        busy = self.callers.turn() or busy
        return self.turn_threads() or busy

    def turn_threads(self) -> bool:
        """Give each thread a turn."""
        ran = [thread.turn() for thread in self.threads]
        self.threads = [thread for thread in self.threads if not thread.ended]
        return any(ran)

    def settle(self) -> None:
        """Give turns until nothing is left to do before time passes."""
        for _ in range(_MOST_TURNS):
            if not self.turn():
                return
        raise AssertionError("It runs in circles.")

    def let_pass(self, seconds: float) -> None:
        """Let time pass, stopping wherever something is due."""
        until = self.clock.now + seconds
        self.settle()
        while (due := self.due) is not None and due <= until:
            self.clock.now = due
            self.settle()
        self.clock.now = until
        self.settle()

    @property
    def due(self) -> float | None:
        """When the next timer fires."""
        dues = [turn_loop.due for turn_loop in (self.private, self.callers)]
        return min((due for due in dues if due is not None), default=None)

    def close(self) -> None:
        """End the threads and the loops."""
        while self.threads:
            for thread in self.threads:
                thread.interrupt(_Left())
            self.turn_threads()
        for turn_loop in (self.callers, self.private):
            turn_loop.close()


@contextmanager
def a_stage() -> Iterator[Stage]:
    """A stage whose private loop is that of the process meanwhile."""
    stage = Stage()
    with pytest.MonkeyPatch.context() as patch:
        with pytest.MonkeyPatch.context() as making:
            making.setattr(asyncio, "new_event_loop", lambda: stage.private)
            making.setattr(loop, "threading", SimpleNamespace(Thread=_NoThread))
            patch.setattr(loop, "_private", PrivateLoop())
        patch.setattr(loop, "Future", _TurnFuture)
        patch.setattr(channel, "threading", SimpleNamespace(Lock=threading.Lock, Event=_TurnEvent))
        for name, empty in _REGISTRY.items():  # what other tests have left belongs to their loop
            patch.setattr(users, name, empty())
        try:
            yield stage
        finally:
            stage.close()
