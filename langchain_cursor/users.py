"""Who uses which runtime: shared by equal settings, kept as long as somebody uses it.

The registry is touched on the private loop only, so it needs no lock.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from langchain_cursor.bridge.launch import BridgeSettings
from langchain_cursor.catalog import ModelInfo
from langchain_cursor.channel import Channel
from langchain_cursor.errors import CursorClosedError
from langchain_cursor.loop import Job, call_at_end, call_in_child, current_loop, private_loop
from langchain_cursor.pool import Member, choose
from langchain_cursor.runtime import CallSettings, Runtime
from langchain_cursor.session import Agent

T = TypeVar("T")

# Seconds that `close` waits for the calls that it has cancelled.
_CANCEL_TIMEOUT = 3.0

_runtimes: dict[BridgeSettings, Runtime] = {}
_alive: set[Runtime] = set()  # those and the ones that are being ended
_unused: dict[Runtime, asyncio.TimerHandle] = {}
_calls: dict[int, set[asyncio.Task[Any]]] = {}
_channels: weakref.WeakSet[Channel[Any]] = weakref.WeakSet()
_inherited: list[Runtime] = []
_ending: set[asyncio.Task[None]] = set()
_ids = itertools.count(1)


class User:
    """One model's use of runtimes: it keeps them alive until it is closed or collected.

    Copying or pickling it gives a new user, which shares nothing but the process's runtimes.
    """

    def __init__(self) -> None:
        self._id = next(_ids)
        weakref.finalize(self, _collected, self._id).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (User, ())

    def call(
        self,
        bridge: BridgeSettings,
        settings: CallSettings,
        talk: Callable[[Agent], Awaitable[T]],
    ) -> T:
        """`Runtime.call` on the private loop, waiting for the result."""
        return private_loop().run(lambda: _call(self._id, bridge, settings, talk))

    async def acall(
        self,
        bridge: BridgeSettings,
        settings: CallSettings,
        talk: Callable[[Agent], Awaitable[T]],
    ) -> T:
        """`Runtime.call` on the private loop, awaited on the caller's."""
        return await private_loop().arun(lambda: _call(self._id, bridge, settings, talk))

    def stream(
        self,
        bridge: BridgeSettings,
        settings: CallSettings,
        talk: Callable[[Agent, Callable[[Any], Awaitable[None] | None]], Awaitable[T]],
    ) -> Generator[list[Any | T], None, None]:
        """Like `call`, yielding what `talk` emits as it comes, and its result as the last item.

        What has come together is yielded together, in lists.

        Closing or abandoning the iterator cancels the call.
        """
        private = private_loop()
        private.refuse_own_thread()
        channel: Channel[Any] = Channel(private.loop)
        _channels.add(channel)
        job: Job[T] = Job(private.loop)
        job.future.add_done_callback(lambda _: channel.end())
        try:
            private.submit(lambda: _produce(channel, self._id, bridge, settings, talk), job)
            yield from channel.read()
            yield [job.future.result()]
        finally:
            job.cancel()
            del job  # else an exception, its frames and the job would keep each other

    async def astream(
        self,
        bridge: BridgeSettings,
        settings: CallSettings,
        talk: Callable[[Agent, Callable[[Any], Awaitable[None] | None]], Awaitable[T]],
    ) -> AsyncGenerator[list[Any | T], None]:
        """`stream`, for another event loop."""
        private = private_loop()
        channel: Channel[Any] = Channel(private.loop)
        _channels.add(channel)
        job: Job[T] = Job(private.loop)
        job.future.add_done_callback(lambda _: channel.end())
        try:
            private.submit(lambda: _produce(channel, self._id, bridge, settings, talk), job)
            async with aclosing(channel.aread()) as batches:
                async for items in batches:
                    yield items
            await job.ended()
            yield [job.future.result()]
        finally:
            job.cancel()
            del job  # else an exception, its frames and the job would keep each other

    def prewarm(self, bridge: BridgeSettings, settings: CallSettings) -> None:
        """`Runtime.prewarm` on the private loop, waiting for it."""
        private_loop().run(lambda: _prewarm(self._id, bridge, settings))

    async def aprewarm(self, bridge: BridgeSettings, settings: CallSettings) -> None:
        """`Runtime.prewarm`, awaited."""
        await private_loop().arun(lambda: _prewarm(self._id, bridge, settings))

    def prewarm_beside(
        self,
        bridge: BridgeSettings,
        settings: CallSettings,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`Runtime.prewarm` in the background.

        Args:
            bridge: Which bridge.
            settings: What to warm.
            on_failure: Gets the exception, on another thread.
        """

        def done(future: Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None and not isinstance(error, CursorClosedError):
                on_failure(error)

        private = private_loop()
        job: Job[None] = Job(private.loop)
        private.submit(lambda: _prewarm(self._id, bridge, settings), job)
        job.future.add_done_callback(done)

    def models(self, bridge: BridgeSettings) -> tuple[ModelInfo, ...]:
        """`Runtime.models` on the private loop, waiting for the result."""
        return private_loop().run(lambda: _models(self._id, bridge))

    async def amodels(self, bridge: BridgeSettings) -> tuple[ModelInfo, ...]:
        """`Runtime.models`, awaited."""
        return await private_loop().arun(lambda: _models(self._id, bridge))

    def use(self, bridge: BridgeSettings, work: Callable[[Runtime], Awaitable[T]]) -> T:
        """Do something with the runtime itself on the private loop, waiting for the result."""
        return private_loop().run(lambda: _work(self._id, bridge, work))

    def close(self) -> None:
        """Cancel this user's calls; end every runtime that nobody else uses, and wait for it."""
        private = current_loop()
        if private is not None:
            private.run(lambda: _close(self._id))

    async def aclose(self) -> None:
        """`close`, awaited."""
        private = current_loop()
        if private is not None:
            await private.arun(lambda: _close(self._id))


async def _produce(
    channel: Channel[Any],
    user: int,
    bridge: BridgeSettings,
    settings: CallSettings,
    talk: Callable[[Agent, Callable[[Any], Awaitable[None] | None]], Awaitable[T]],
) -> T:
    def begin(agent: Agent) -> Awaitable[T]:
        async def room() -> None:
            # The time limit is for Cursor, not for a reader who takes time over what came.
            with agent.untimed():
                await channel.room()

        def emit(item: Any) -> Awaitable[None] | None:
            return room() if channel.put(item) else None

        return talk(agent, emit)

    return await _call(user, bridge, settings, begin, lambda: not channel.used)


async def _call(
    user: int,
    bridge: BridgeSettings,
    settings: CallSettings,
    talk: Callable[[Agent], Awaitable[T]],
    may_retry: Callable[[], bool] = lambda: True,
) -> T:
    with _use(user, _least_busy(bridge, settings.bridges)) as runtime:
        return await runtime.call(settings, talk, may_retry)


async def _prewarm(user: int, bridge: BridgeSettings, settings: CallSettings) -> None:
    with ExitStack() as stack:
        pool = [stack.enter_context(_use(user, one)) for one in _pool(bridge, settings.bridges)]
        await asyncio.gather(*(runtime.prewarm(settings) for runtime in pool))


async def _models(user: int, bridge: BridgeSettings) -> tuple[ModelInfo, ...]:
    with _use(user, bridge) as runtime:
        return await runtime.models()


async def _work(user: int, bridge: BridgeSettings, work: Callable[[Runtime], Awaitable[T]]) -> T:
    with _use(user, bridge) as runtime:
        return await work(runtime)


def _pool(bridge: BridgeSettings, bridges: int) -> list[BridgeSettings]:
    if bridges == 1 or bridge.own_url:  # one that runs already cannot be multiplied
        return [bridge]
    return [replace(bridge, number=number) for number in range(bridges)]


def _least_busy(bridge: BridgeSettings, bridges: int) -> BridgeSettings:
    pool = _pool(bridge, bridges)
    runtimes = [_runtimes.get(settings) for settings in pool]
    return pool[choose(runtime.member if runtime else Member() for runtime in runtimes)]


@contextmanager
def _use(user: int, bridge: BridgeSettings) -> Iterator[Runtime]:
    """The runtime for these settings, while the current task is one of the user's calls."""
    runtime = _runtimes.get(bridge)
    if runtime is None:
        runtime = _runtimes[bridge] = Runtime(bridge)
        _alive.add(runtime)
    runtime.users.add(user)
    _call_off(runtime)
    task = asyncio.current_task()
    assert task is not None
    calls = _calls.setdefault(user, set())
    calls.add(task)
    try:
        yield runtime
    finally:
        calls.discard(task)
        if not calls:
            _calls.pop(user, None)


async def _close(user: int) -> None:
    closing = _beside(_close_all(user))
    await asyncio.wait([closing])
    closing.result()


async def _close_all(user: int) -> None:
    calls = _calls.get(user, set()) - {asyncio.current_task()}
    for task in calls:
        task.cancel()
    if calls:
        await asyncio.wait(calls, timeout=_CANCEL_TIMEOUT)
    unused = [_runtimes.pop(runtime.settings) for runtime in _used_only_by(user)]
    ends = [_end_beside(runtime) for runtime in unused]
    if ends:
        await asyncio.wait(ends)
        for end in ends:
            end.result()


def _used_only_by(user: int) -> list[Runtime]:
    used = [runtime for runtime in _runtimes.values() if user in runtime.users]
    for runtime in used:
        runtime.users.discard(user)
    return [runtime for runtime in used if not runtime.users]


def _collected(user: int) -> None:
    # A finalizer: it may run anywhere, so it only posts.
    private = current_loop()
    if private is not None:
        private.post(_forget_user, user)


def _forget_user(user: int) -> None:
    # Applications make a model for each request: a runtime that nobody uses any more goes when
    # its executor would have gone.
    for runtime in _used_only_by(user):
        _call_off(runtime)
        _unused[runtime] = asyncio.get_running_loop().call_later(
            runtime.last_keep_alive, _end_unused, runtime
        )


def _call_off(runtime: Runtime) -> None:
    timer = _unused.pop(runtime, None)
    if timer is not None:
        timer.cancel()


def _end_unused(runtime: Runtime) -> None:
    del _unused[runtime]
    del _runtimes[runtime.settings]
    _end_beside(runtime)


def _end_beside(runtime: Runtime) -> asyncio.Task[None]:
    return _beside(_end(runtime))


def _beside(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Do it in a task of its own: who waits for it may give up, and then it is done too."""
    task = asyncio.ensure_future(work)
    _ending.add(task)
    task.add_done_callback(_ending.discard)
    return task


async def _end(runtime: Runtime) -> None:
    try:
        await runtime.aclose()
    finally:
        _alive.discard(runtime)


def _kill_all() -> None:
    for runtime in list(_alive):
        runtime.kill()


def _abandon_all() -> None:
    for runtime in _alive:
        runtime.abandon()
        _inherited.append(runtime)
    for state in (_runtimes, _alive, _unused, _calls):
        state.clear()
    for channel in list(_channels):
        channel.abandon()


call_at_end(_kill_all)
call_in_child(_abandon_all)
