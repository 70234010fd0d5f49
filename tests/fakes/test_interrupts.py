"""A signal that Python notes too late to wake the main thread is noticed all the same."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from langchain_cursor import ChatCursor
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
