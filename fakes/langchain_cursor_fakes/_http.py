"""HTTP/1.1 on asyncio with h11: one request at a time on a connection, one task a request.

The task is cancelled the moment the other side hangs up. That is why this is a protocol and
not a pair of streams: a stream that nobody reads does not tell that its connection has gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

import h11


@dataclass(frozen=True)
class HttpRequest:
    """A complete request; header names in lower case, equal ones joined by a comma."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytearray


class HttpConnection(asyncio.Protocol):
    """One connection of a server.

    Args:
        handle: Answers a request on this connection: `respond`, or `start`, `write`, `finish`.
            It is cancelled when the connection goes.
        connections: The server's open connections; this one adds and removes itself.

    Attributes:
        hung_up_at: When the other side hung up (`time.monotonic()`), None if it did not.
    """

    def __init__(
        self,
        handle: Callable[[HttpRequest, HttpConnection], Awaitable[None]],
        connections: set[HttpConnection],
    ) -> None:
        self.hung_up_at: float | None = None
        self._handle = handle
        self._connections = connections
        self._h11 = h11.Connection(h11.SERVER)
        self._transport: asyncio.Transport
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._answers_head = False
        self._task: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._we_cut = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._h11.receive_data(data)
        if self._task is None:
            self._read_request()

    def eof_received(self) -> None:
        self._lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._lost()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def respond(self, status: int, content_type: str, body: bytes = b"") -> None:
        """Sends a whole response."""
        self._send(
            h11.Response(
                status_code=status,
                headers=[("content-type", content_type), ("content-length", str(len(body)))],
            ),
            h11.Data(data=b"" if self._answers_head else body),
            h11.EndOfMessage(),
        )

    def start(self, status: int, content_type: str) -> None:
        """Sends the head of a response whose body follows by `write`."""
        self._send(h11.Response(status_code=status, headers=[("content-type", content_type)]))

    async def write(self, data: bytes) -> None:
        """Sends a part of the body and waits until the other side keeps up.

        Other tasks run in between even if it does, and even with no data.
        """
        if data:
            self._send(h11.Data(data=data))
        await asyncio.sleep(0)
        await self._may_write.wait()

    def finish(self, data: bytes) -> None:
        """Sends the last part of the body and ends it, in one write."""
        self._send(h11.Data(data=data), h11.EndOfMessage())

    def cut(self) -> None:
        """Closes the connection after what was written, in the middle of a response or not."""
        self._we_cut = True
        self._transport.close()

    def abort(self) -> None:
        """Ends connection and task at once."""
        self._we_cut = True
        self._transport.abort()
        self._lost()

    def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._h11.send(event) or b"" for event in events)
        if data:
            self._transport.write(data)

    def _lost(self) -> None:
        if self.hung_up_at is None and not self._we_cut:
            self.hung_up_at = time.monotonic()
        if self._task is not None:
            self._task.cancel()

    def _read_request(self) -> None:
        try:
            while True:
                event = self._h11.next_event()
                if isinstance(event, h11.Request):
                    self._head = event
                    if self._h11.they_are_waiting_for_100_continue:
                        self._send(h11.InformationalResponse(status_code=100, headers=[]))
                elif isinstance(event, h11.Data):
                    self._body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self._task = asyncio.ensure_future(self._serve(self._take_request()))
                    return
                else:  # needs more data, or the other side is about to close
                    return
        except h11.RemoteProtocolError as error:
            self._refuse(error)

    def _take_request(self) -> HttpRequest:
        assert self._head is not None, "h11 gives the head before the end of a message"
        headers: dict[str, str] = {}
        for raw_name, raw_value in self._head.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        request = HttpRequest(
            method=self._head.method.decode("ascii"),
            path=self._head.target.decode("latin-1").partition("?")[0],
            headers=headers,
            body=self._body,
        )
        self._head, self._body = None, bytearray()
        self._answers_head = request.method == "HEAD"
        return request

    async def _serve(self, request: HttpRequest) -> None:
        try:
            await self._handle(request, self)
        except BaseException:
            self._transport.abort()
            raise
        finally:
            self._task = None
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
            self._read_request()
        else:  # HTTP/1.0, `Connection: close`, or cut
            self._transport.close()

    def _refuse(self, error: h11.RemoteProtocolError) -> None:
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.respond(error.error_status_hint, "text/plain", f"not HTTP/1.1: {error}".encode())
        self._transport.close()
