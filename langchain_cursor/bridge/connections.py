"""Connections to the bridge, at a cost that does not grow with the number of calls.

httpx's pool looks at all its connections whenever a request begins or ends: with 128 calls at once
that was 40 % of the client's processor time (httpx 0.28, httpcore 1.0). So each request under way
has a pool of its own, with one connection in it. And the SDK leaves the last bytes of a run's
stream unread, which would cost a new connection for each call (cursor-sdk 1.1.0): they are read.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial

import anyio
import httpx

# Node closes an idle connection after 5 s; one that is reused at that moment fails.
KEEPALIVE_EXPIRY = 4.0
MOST_IDLE = 32
# Seconds that the last bytes of a stream may take. They come with the frame before them.
DRAIN_TIMEOUT = 0.1

# The last frame of a Connect stream that did not fail. JSON, as in all other frames, has no such
# bytes in it.
_END_OF_STREAM = b"\x02\x00\x00\x00\x02{}"

Transport = httpx.AsyncBaseTransport


def connections(url: str) -> Connections:
    """Make connections to a bridge.

    Args:
        url: Its address. Certificates are loaded, which takes 20 ms, only if it needs any.

    Example:
        ```python
        url = "http://127.0.0.1:4173"
        http = httpx.AsyncClient(transport=connections(url), trust_env=False)
        ```
    """
    if url.startswith("http:"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = httpx.create_ssl_context(trust_env=False)
    limits = httpx.Limits(keepalive_expiry=KEEPALIVE_EXPIRY)
    return Connections(partial(httpx.AsyncHTTPTransport, context, trust_env=False, limits=limits))


class Connections(Transport):
    """Any number of connections, for one event loop. The one that was used last is reused first.

    Args:
        make: Makes a transport, which gets one request at a time.
        clock: Returns seconds.
    """

    def __init__(
        self, make: Callable[[], Transport], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._clock = clock
        self._idle: deque[tuple[float, Transport]] = deque()
        self._busy: set[Transport] = set()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request over an idle connection, or a new one.

        Raises:
            httpx.ConnectError: The connections have been closed.
        """
        while self._idle and self._idle[0][0] <= self._clock() - KEEPALIVE_EXPIRY:
            await _close(self._idle.popleft()[1])
        self._refuse_if_closed(request)
        transport = self._idle.pop()[1] if self._idle else self._make()
        self._busy.add(transport)
        try:
            response = await transport.handle_async_request(request)
        except (Exception, asyncio.CancelledError):
            await self._done(transport, again=False)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Stream(response.stream, partial(self._done, transport))
        if self._closed:  # while it connected, when there was nothing to close yet
            await response.stream.aclose()
            self._refuse_if_closed(request)
        return response

    async def aclose(self) -> None:
        """Close all connections, also those in use. What is still connecting fails."""
        self._closed = True
        while self._idle:
            await _close(self._idle.pop()[1])
        for transport in list(self._busy):
            await _close(transport)

    def _refuse_if_closed(self, request: httpx.Request) -> None:
        if self._closed:
            raise httpx.ConnectError("The connections have been closed.", request=request)

    async def _done(self, transport: Transport, again: bool) -> None:
        self._busy.discard(transport)
        if not again or self._closed:
            await _close(transport)
            return
        self._idle.append((self._clock(), transport))
        if len(self._idle) > MOST_IDLE:
            await _close(self._idle.popleft()[1])


async def _close(transport: Transport) -> None:
    """Close what nobody uses: no failure is of interest, and a cancelled call must not keep it."""
    with anyio.CancelScope(shield=True), suppress(Exception):
        await transport.aclose()


class _Stream(httpx.AsyncByteStream):
    """An answer, which gives its connection back in the end."""

    def __init__(self, stream: httpx.AsyncByteStream, done: Callable[[bool], Awaitable[None]]):
        self._stream = stream
        self._done: Callable[[bool], Awaitable[None]] | None = done
        self._chunks: AsyncGenerator[bytes, None] | None = None
        self._last = b""
        self._whole = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._chunks = self._read()
        return self._chunks

    async def aclose(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        chunks, self._chunks = self._chunks, None  # the generator and this would keep each other
        again = False
        try:
            try:
                if chunks is not None and self._last.endswith(_END_OF_STREAM):
                    # The answer is there: what goes wrong now costs its connection alone.
                    with suppress(httpx.HTTPError), anyio.move_on_after(DRAIN_TIMEOUT):
                        async for _ in chunks:
                            pass
            finally:
                await self._stream.aclose()
            again = self._whole
        finally:
            await done(again)

    async def _read(self) -> AsyncGenerator[bytes, None]:
        async for chunk in self._stream:
            self._last = chunk
            yield chunk
        self._whole = True
