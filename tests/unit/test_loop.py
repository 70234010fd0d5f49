"""The private loop: its edges, without a bridge."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
import weakref
from collections.abc import AsyncIterator

import pytest

from langchain_cursor import loop
from langchain_cursor.errors import CursorClosedError
from langchain_cursor.loop import Job, PrivateLoop, private_loop

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


async def _value() -> int:
    return 1


@pytest.mark.clause("RUNTIME-15")
def test_it_is_one_per_process_and_runs_in_a_daemon_thread() -> None:
    assert private_loop() is private_loop()
    assert private_loop().run(_value) == 1
    thread = next(t for t in threading.enumerate() if t.name == "langchain-cursor")
    assert thread.daemon


@pytest.mark.clause("RUNTIME-15")
def test_a_sync_call_from_its_own_thread_raises_instead_of_waiting_for_itself() -> None:
    async def nested() -> int:
        return private_loop().run(_value)

    with pytest.raises(RuntimeError, match="its own event loop"):
        private_loop().run(nested)


@pytest.mark.clause("RUNTIME-16")
def test_the_callers_context_does_not_come_along() -> None:
    async def read() -> str:
        return variable.get()

    token = variable.set("the caller's")
    try:
        assert private_loop().run(read) == "none"
    finally:
        variable.reset(token)


@pytest.mark.clause("RUNTIME-17")
def test_cancelling_the_awaiting_task_cancels_the_work() -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def main() -> None:
        task = asyncio.create_task(private_loop().arun(work))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended.wait(2)


@pytest.mark.clause("RUNTIME-17")
def test_work_that_was_cancelled_over_there_is_no_cancelled_error_here() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(CursorClosedError):
        private_loop().run(cancelled)


@pytest.mark.clause("RUNTIME-17")
@pytest.mark.asyncio
async def test_work_that_was_cancelled_over_there_does_not_cancel_the_awaiting_task() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(CursorClosedError):
        await private_loop().arun(cancelled)


@pytest.mark.clause("RUNTIME-17")
def test_cancelled_before_it_began_it_never_begins() -> None:
    began: list[int] = []
    blocked, go_on = threading.Event(), threading.Event()

    async def block() -> None:
        blocked.set()
        go_on.wait(5)  # keeps the loop from starting what comes next

    async def work() -> None:
        began.append(1)

    async def main() -> None:
        first = asyncio.create_task(private_loop().arun(block))
        assert await asyncio.to_thread(blocked.wait, 5)
        second = asyncio.create_task(private_loop().arun(work))
        await asyncio.sleep(0.01)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        go_on.set()
        await first

    asyncio.run(main())
    assert began == []


@pytest.mark.clause("RUNTIME-18")
def test_an_ended_loop_refuses_and_its_thread_is_gone() -> None:
    own = PrivateLoop()
    hanging = threading.Event()

    async def hang() -> None:
        hanging.set()
        await asyncio.sleep(60)

    failed: list[BaseException] = []

    def call() -> None:
        try:
            own.run(hang)
        except CursorClosedError as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    hanging.wait(2)
    own.end(timeout=2)
    thread.join(2)
    assert len(failed) == 1
    with pytest.raises(CursorClosedError, match="interpreter is ending"):
        own.run(_value)
    own.post(print)  # a finalizer that comes too late


@pytest.mark.clause("RUNTIME-18")
def test_generators_that_do_not_close_at_the_end_print_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = PrivateLoop()
    left: list[object] = []

    async def stubborn() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise RuntimeError("in the way of another one")

    async def leave() -> None:
        left.append(generator := stubborn())
        await anext(generator)

    own.run(leave)
    own.end(timeout=2)
    assert caplog.records == []


@pytest.mark.clause("RUNTIME-19")
def test_results_are_not_kept_alive() -> None:
    class Big:
        pass

    async def make() -> Big:
        return Big()

    result = private_loop().run(make)
    gone = weakref.ref(result)
    del result
    private_loop().run(_value)
    gc.collect()
    assert gone() is None


@pytest.mark.clause("RUNTIME-18")
def test_where_no_thread_can_be_started_there_is_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[asyncio.AbstractEventLoop] = []
    new_event_loop = asyncio.new_event_loop

    def keep() -> asyncio.AbstractEventLoop:
        made.append(new_event_loop())
        return made[-1]

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "new_event_loop", keep)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(CursorClosedError):
        PrivateLoop()
    assert [loop.is_closed() for loop in made] == [True]


@pytest.mark.clause("RUNTIME-18")
def test_a_loop_that_was_stopped_by_others_refuses_work_too() -> None:
    own = PrivateLoop()
    own.loop.call_soon_threadsafe(own.loop.stop)
    own._thread.join(5)
    with pytest.raises(CursorClosedError):
        own.run(_value)


@pytest.mark.clause("RUNTIME-18")
def test_who_waits_for_work_that_will_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_CANCEL_TIMEOUT", 0.1)
    own = PrivateLoop()
    began, finish = threading.Event(), asyncio.Event()

    async def stubborn() -> None:
        began.set()
        while not finish.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await finish.wait()

    job: Job[None] = Job(own.loop)
    own.submit(stubborn, job)
    assert began.wait(5)
    own.end(timeout=5)
    with pytest.raises(CursorClosedError):
        job.future.result(timeout=5)
    job.cancel()  # too late, and no harm


@pytest.mark.clause("RUNTIME-18")
def test_what_begins_while_the_loop_ends_is_cancelled_too() -> None:
    private = PrivateLoop()
    running = threading.Event()
    late: list[asyncio.Task[None]] = []

    async def work() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            late.append(asyncio.ensure_future(asyncio.sleep(60)))

    private.submit(work, Job(private.loop))
    assert running.wait(2)
    private.end(timeout=2)
    assert [task.cancelled() for task in late] == [True]
