"""The private event loop: one a process, in a daemon thread, for all I/O with the SDK.

No SDK object ever meets a caller's event loop, so `asyncio.run()` twice, threads, notebooks and
web servers all work alike. Sync callers wait for a coroutine here; async callers await it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as TimedOut
from contextlib import suppress
from typing import Any, Generic, TypeVar

from langchain_cursor.errors import CursorClosedError

T = TypeVar("T")

# Seconds, when the process ends: for the loop's thread, and there for what is cancelled.
_END_TIMEOUT = 2.0
_CANCEL_TIMEOUT = 1.0
# Seconds after which a wait in the main thread looks whether there was a Ctrl-C.
_LOOK = 0.5

_ENDING = "The Python interpreter is ending: ChatCursor takes no more calls."


class PrivateLoop:
    """An event loop that runs in a daemon thread of its own until the process ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_report)
        self._closing = False
        self._jobs: dict[Future[Any], Job[Any]] = {}
        self._thread = threading.Thread(target=self._serve, name="langchain-cursor", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no new threads while the interpreter ends
            self.loop.close()
            raise CursorClosedError(_ENDING) from error

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine here and wait for its result.

        If the wait is interrupted (Ctrl-C), the coroutine is cancelled.

        Raises:
            RuntimeError: Called from the private loop's own thread, where waiting would never end.
            CursorClosedError: The interpreter is ending.
        """
        self.refuse_own_thread()
        job: Job[T] = Job(self.loop)
        try:
            self.submit(make, job)
            keep_waiting(job.ends_within)
            return job.future.result()
        except BaseException:
            job.cancel()
            raise
        finally:
            del job  # else an exception, its frames and the job would keep each other

    async def arun(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine here and await its result on the caller's loop.

        If the caller's task is cancelled, so is the coroutine.
        """
        job: Job[T] = Job(self.loop)
        try:
            self.submit(make, job)
            await job.ended()
            return job.future.result()
        except (asyncio.CancelledError, KeyboardInterrupt):
            job.cancel()
            raise
        finally:
            del job

    def refuse_own_thread(self) -> None:
        """Raise if called from the private loop's own thread, where waiting would never end.

        Raises:
            RuntimeError: It is.
        """
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError(
                "A sync call of ChatCursor was made from its own event loop, where it would wait "
                "for itself. Use the async method, or call from another thread."
            )

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function on the loop soon. Never waits and never locks, so finalizers may."""
        try:
            self.loop.call_soon_threadsafe(function, *args, context=contextvars.Context())
        except RuntimeError:  # the loop has closed: its runtimes have been ended
            return

    def end(self, timeout: float) -> None:
        """Cancel what runs, stop the loop and wait for its thread, `timeout` seconds at most."""
        self._closing = True
        self.post(self.loop.stop)
        if threading.get_ident() != self._thread.ident:
            self._thread.join(timeout)

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]], job: Job[T]) -> None:
        """Start a coroutine here.

        Args:
            make: Makes it, on the loop.
            job: What becomes of it. The caller has it already: Ctrl-C may come when the coroutine
                is on its way and this has not returned.

        Raises:
            CursorClosedError: The interpreter is ending.
        """
        if self._closing:
            raise CursorClosedError(_ENDING)
        self._jobs[job.future] = job
        job.future.add_done_callback(self._forget)
        try:
            # The empty context: nothing that lives on here may carry the caller's variables.
            self.loop.call_soon_threadsafe(job.start, make, context=contextvars.Context())
        except RuntimeError as error:
            self._forget(job.future)
            raise CursorClosedError(_ENDING) from error

    def _forget(self, future: Future[Any]) -> None:
        self._jobs.pop(future, None)

    def _serve(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(_cancel_all())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(_cancel_all())
        finally:
            loop.close()
            for job in list(self._jobs.values()):
                job.abandon()


async def _cancel_all() -> None:
    """Cancel every other task, also those that begin meanwhile."""
    deadline = time.monotonic() + _CANCEL_TIMEOUT
    cancelled = {asyncio.current_task()}
    while (left := asyncio.all_tasks() - {asyncio.current_task()}) and (
        seconds := deadline - time.monotonic()
    ) > 0:
        # anyio's children, cancelled before they have begun, complain that nobody awaited them.
        begun = {task for task in left if not _is_new(task)}
        for task in begun - cancelled:
            task.cancel()
        cancelled |= begun
        if left == begun:
            await asyncio.wait(left, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(0)


def _is_new(task: asyncio.Task[Any]) -> bool:
    coro = task.get_coro()
    return inspect.iscoroutine(coro) and inspect.getcoroutinestate(coro) == inspect.CORO_CREATED


def keep_waiting(wait: Callable[[float | None], bool]) -> None:
    """Wait for an end that is sure to come, and stay open to Ctrl-C meanwhile.

    Signals are handled in the main thread. One that comes just as that begins to wait does not wake
    it, nor does any on Windows (CPython 3.11): so it looks up now and then.

    Args:
        wait: Waits so many seconds, None for no limit, and returns whether the end has come.
    """
    main = threading.current_thread() is threading.main_thread()
    while not wait(_LOOK if main else None):
        pass


async def in_thread(function: Callable[[], T]) -> T:
    """Run a function that blocks in a worker thread, or here when there are no threads any more."""
    loop = asyncio.get_running_loop()
    try:
        running = loop.run_in_executor(None, function)
    except RuntimeError:  # the interpreter is ending
        return function()
    return await running


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # httpx leaves nested generators behind when a response is closed early, and the loop closes
    # some of them a second time. Nothing is lost by it (cursor-sdk 1.1.0, httpx 0.28).
    # When the loop ends it closes those that are left all at once, in each other's way.
    if "asyncgen" not in context and "asynchronous generator is already running" not in str(
        context.get("exception")
    ):
        loop.default_exception_handler(context)


class Job(Generic[T]):
    """A coroutine on the private loop, and the future that its caller waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: Future[T] = Future()
        self._loop = loop
        self._task: asyncio.Task[T] | None = None

    def start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Begin, on the loop, unless cancelled before."""
        if self.future.set_running_or_notify_cancel():
            self._task = self._loop.create_task(make())
            self._task.add_done_callback(self._done)

    def ends_within(self, seconds: float | None) -> bool:
        """Wait for its end, blocking this thread, and return whether it has come in time."""
        try:
            self.future.exception(seconds)
        except TimedOut:
            return False
        except CancelledError:
            return True
        return True

    async def ended(self) -> None:
        """Wait for its end, on the caller's loop."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def wake(_: object) -> None:
            with suppress(RuntimeError):  # the caller's loop has been closed
                loop.call_soon_threadsafe(_resolve, ended)

        # `asyncio.wrap_future` would make a cycle of both futures that keeps the result.
        self.future.add_done_callback(wake)
        await ended

    def cancel(self) -> None:
        """Cancel it, from any thread and without waiting. Nothing happens if it has ended."""
        if self.future.cancel() or self.future.done():
            return
        try:
            self._loop.call_soon_threadsafe(self._cancel_task)
        except RuntimeError:
            return

    def abandon(self) -> None:
        """The loop has ended without running it to its end: tell who waits."""
        if self._task is None and not self.future.set_running_or_notify_cancel():
            return  # the caller has cancelled it
        if not self.future.done():
            self.future.set_exception(CursorClosedError(_ENDING))

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[T]) -> None:
        # A CancelledError is a BaseException: it must not reach a caller who cancelled nothing.
        if task.cancelled():
            self.future.set_exception(CursorClosedError("The call was cancelled by a close."))
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_private: PrivateLoop | None = None
_lock = threading.Lock()
_ended = False
_at_end: list[Callable[[], None]] = []
_in_child: list[Callable[[], None]] = []
_inherited: list[PrivateLoop] = []


def private_loop() -> PrivateLoop:
    """The private loop of this process, started if need be.

    Raises:
        CursorClosedError: The interpreter is ending.
    """
    global _private
    if _private is None:
        with _lock:
            if _ended:
                raise CursorClosedError(_ENDING)
            if _private is None:
                _private = PrivateLoop()
                if "multiprocessing.util" in sys.modules:
                    # Children made by multiprocessing skip atexit and run only these.
                    from multiprocessing.util import Finalize

                    Finalize(None, _end, exitpriority=100)
    return _private


def current_loop() -> PrivateLoop | None:
    """The private loop of this process if it has been started. Never locks."""
    return _private


def refuse_at_end() -> None:
    """Raise if the interpreter is ending, when nothing new may be started.

    Raises:
        CursorClosedError: It is.
    """
    if _ended:
        raise CursorClosedError(_ENDING)


def call_at_end(function: Callable[[], None]) -> None:
    """Register what ends processes and deletes files, synchronously, before the process ends."""
    _at_end.append(function)


def call_in_child(function: Callable[[], None]) -> None:
    """Register what a forked child does first, to let go of what belongs to its parent."""
    _in_child.append(function)


def _end() -> None:
    global _ended, _private
    private, _private, _ended = _private, None, True
    if private is None:
        return
    private._closing = True
    for function in _at_end:
        function()
    private.end(_END_TIMEOUT)
    for function in _at_end:  # what the loop was just starting
        function()


def _forget() -> None:
    """After a fork: the loop's thread does not exist in the child, and its lock may be held."""
    global _private, _lock, _ended
    if _private is not None:
        # Closing it would change the parent's epoll, which the child shares: keep it untouched.
        _inherited.append(_private)
    for function in _in_child:
        function()
    _private, _lock, _ended = None, threading.Lock(), False


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
