"""A loopback HTTP server that runs on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress

from ._http import HttpConnection, HttpRequest

_START_SECONDS = 10.0
_BACKLOG = 1024  # connections that may wait to be accepted; a burst of runs opens many at once


class ServerThread:
    """Serves on 127.0.0.1 between `start` and `close`, which may be called again and again.

    Args:
        handle: Answers a request on its connection; it is called on the server's event loop.
        name: Name of the thread.
    """

    def __init__(
        self, handle: Callable[[HttpRequest, HttpConnection], Awaitable[None]], name: str
    ) -> None:
        self._handle = handle
        self._name = name
        self._lifecycle = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._port = 0

    @property
    def serving(self) -> bool:
        """Whether it has been started and not been closed."""
        return self._thread is not None

    def start(self, port: int) -> int:
        """Serves on `port`, 0 for a free one, and returns the port; no effect while it serves.

        Raises:
            OSError: The port is taken.
        """
        with self._lifecycle:
            if self._thread is None:
                started: Future[int] = Future()
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._serve(port, started)),
                    name=self._name,
                    daemon=True,
                )
                self._thread.start()
                try:
                    self._port = started.result(_START_SECONDS)
                except OSError:
                    self._thread.join()
                    self._thread = None
                    raise
            return self._port

    def close(self, timeout: float) -> None:
        """Cuts every connection and ends the thread; no effect when it does not serve.

        Args:
            timeout: Seconds to wait for the thread at most.

        Raises:
            TimeoutError: The handler blocks the event loop. `close` may be called again.
            RuntimeError: The handler itself called `close`.
        """
        if self._thread is threading.current_thread():
            raise RuntimeError("a server cannot be closed from its own event loop")
        with self._lifecycle:
            if self._thread is None:
                return
            with suppress(RuntimeError):  # the loop has ended since an earlier call
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(f"the event loop of {self._name} is blocked")
            self._thread = None

    async def _serve(self, port: int, started: Future[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        connections: set[HttpConnection] = set()
        try:
            server = await self._loop.create_server(
                lambda: HttpConnection(self._handle, connections),
                "127.0.0.1",
                port,
                backlog=_BACKLOG,
            )
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        # A server that is closed forgets what it has just accepted: first accept no more, and let
        # those connections come up. (Windows' loop has no readers; it accepts in one go.)
        with suppress(NotImplementedError):
            self._loop.remove_reader(server.sockets[0])
        await _pass_rounds()
        server.close()
        for connection in list(connections):
            connection.abort()
        await _pass_rounds()


async def _pass_rounds() -> None:
    """Lets the event loop carry out what is under way: opening and closing take up to three."""
    for _ in range(5):
        await asyncio.sleep(0)
