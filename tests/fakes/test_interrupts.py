"""A signal that Python notes too late to wake the main thread is noticed all the same."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from langchain_cursor import ChatCursor
from langchain_cursor.loop import Job, private_loop
from langchain_cursor_fakes import FakeCursor, Hang, Text


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Interrupts the main thread while it waits, in a way that does not wake it.

    Python runs handlers in the main thread only. A signal that another thread gets, or the main
    thread just before it begins to wait, is noted, and seen when the main thread wakes.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threads: list[threading.Thread] = []

    def later() -> None:
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def start() -> None:
        threads.append(threading.Thread(target=later))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(5)
    signal.signal(signal.SIGINT, before)


@pytest.mark.clause("RUNTIME-21")
@pytest.mark.fake
@pytest.mark.parametrize("mode", ["invoke", "stream"])
def test_ctrl_c_that_comes_when_a_call_is_on_its_way_cancels_it(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    fake = FakeCursor(lambda _: [Text("a"), Hang()])
    model = ChatCursor(sdk_loader=fake.sdk, timeout=20.0)
    model.prewarm()
    loop = private_loop().loop
    plain = loop.call_soon_threadsafe

    def interrupted(callback: Any, *arguments: Any, **named: Any) -> Any:
        plain(callback, *arguments, **named)
        if getattr(callback, "__func__", None) is Job.start:
            fake.wait_for(lambda fake: fake.runs)
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    call = {"invoke": model.invoke, "stream": lambda text: list(model.stream(text))}[mode]
    with pytest.raises(KeyboardInterrupt):
        call("x")
    fake.wait_for(lambda fake: fake.runs[0].outcome == "cancelled")
    monkeypatch.undo()
    model.close()


@pytest.mark.clause("RUNTIME-23")
@pytest.mark.fake
@pytest.mark.skipif(sys.platform == "win32", reason="signals go to threads on POSIX only")
@pytest.mark.parametrize("mode", ["invoke", "stream"])
def test_ctrl_c_that_wakes_nobody_ends_the_call_soon(
    interrupt: Callable[[], None], mode: str
) -> None:
    fake = FakeCursor(lambda _: [Text("a"), Hang()])
    model = ChatCursor(sdk_loader=fake.sdk, timeout=6.0)
    call = {"invoke": model.invoke, "stream": lambda text: list(model.stream(text))}[mode]
    started = time.monotonic()
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        call("x")
    assert time.monotonic() - started < 3
    model.close()
