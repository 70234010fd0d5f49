"""Connections to the bridge: reused, bounded, and closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import anyio
import httpx
import pytest

from langchain_cursor.bridge import connections as module
from langchain_cursor.bridge.connections import KEEPALIVE_EXPIRY, MOST_IDLE, Connections

END = b"\x02\x00\x00\x00\x02{}"
FAILED = b'\x02\x00\x00\x00\x16{"error":{"code":"no"}}'


class Body(httpx.AsyncByteStream):
    """An answer in chunks, which may pause before one."""

    def __init__(self, chunks: Iterable[bytes], pause_before: bytes = b"never") -> None:
        self._chunks = chunks
        self._pause_before = pause_before
        self.ended = False
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            if chunk == self._pause_before:
                await asyncio.Event().wait()
            yield chunk
        self.ended = True

    async def aclose(self) -> None:
        self.closed = True


class One(httpx.AsyncBaseTransport):
    """A transport that refuses a second request while one is under way."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._body: Body | None = None
        self.closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert not self.closed
        assert self._body is None or self._body.closed
        self._server.requests += 1
        await self._server.before(request)
        self._body = self._server.answer()
        return httpx.Response(200, stream=self._body)

    async def aclose(self) -> None:
        self.closed = True


class Server:
    """Makes transports, and gives all answers."""

    def __init__(self) -> None:
        self.made: list[One] = []
        self.requests = 0
        self.now = 100.0
        self.bodies: list[Body] = []
        self.chunks: list[bytes] = [b"whole"]
        self.pause_before = b"never"
        self.gate: asyncio.Event | None = None
        self.connections = Connections(self._make, lambda: self.now)
        self.http = httpx.AsyncClient(transport=self.connections)

    @property
    def open(self) -> int:
        return sum(not one.closed for one in self.made)

    def _make(self) -> One:
        self.made.append(One(self))
        return self.made[-1]

    async def before(self, request: httpx.Request) -> None:
        if request.url.path == "/refused":
            raise httpx.ConnectError("refused", request=request)
        if self.gate is not None:
            await self.gate.wait()

    def answer(self) -> Body:
        self.bodies.append(Body(self.chunks, self.pause_before))
        return self.bodies[-1]

    async def get(self, path: str = "/") -> bytes:
        return (await self.http.get(f"http://bridge{path}")).content

    async def read_to(self, last: bytes) -> None:
        """Read a stream as the SDK does: up to the chunk in which its last frame comes."""
        async with self.http.stream("GET", "http://bridge/") as response:
            async for chunk in response.aiter_raw():
                if chunk.endswith(last):
                    return


@pytest.fixture
def server() -> Server:
    return Server()


pytestmark = pytest.mark.clause("BRIDGE-12")


async def test_one_after_the_other_use_one_connection(server: Server) -> None:
    for _ in range(5):
        assert await server.get() == b"whole"
    assert len(server.made) == 1
    assert server.open == 1


async def test_each_request_under_way_has_its_own(server: Server) -> None:
    server.gate = asyncio.Event()
    tasks = [asyncio.ensure_future(server.get()) for _ in range(MOST_IDLE + 8)]
    await anyio.wait_all_tasks_blocked()
    assert server.requests == len(server.made) == len(tasks)
    server.gate.set()
    assert await asyncio.gather(*tasks) == [b"whole"] * len(tasks)
    assert server.open == MOST_IDLE  # the others are closed


async def test_the_one_used_last_is_used_again(server: Server) -> None:
    server.gate = asyncio.Event()
    tasks = [asyncio.ensure_future(server.get()) for _ in range(3)]
    await anyio.wait_all_tasks_blocked()
    server.gate.set()
    await asyncio.gather(*tasks)
    server.now += KEEPALIVE_EXPIRY / 2
    await server.get()
    server.now += KEEPALIVE_EXPIRY / 2
    await server.get()  # two have been idle for too long, and are closed
    assert server.open == 1
    assert len(server.made) == 3


async def test_what_was_idle_for_too_long_is_not_used(server: Server) -> None:
    await server.get()
    server.now += KEEPALIVE_EXPIRY
    await server.get()
    assert [one.closed for one in server.made] == [True, False]


@pytest.mark.parametrize("chunks", [[b"a", b"b" + END], [b"a", END], [END]])
async def test_a_stream_left_at_its_last_frame_is_read_to_the_end(
    server: Server, chunks: list[bytes]
) -> None:
    server.chunks = chunks
    for _ in range(3):
        await server.read_to(END)
    assert all(body.ended and body.closed for body in server.bodies)
    assert len(server.made) == 1


@pytest.mark.parametrize(
    ("chunks", "left_at"),
    [([b"a", b"b", END], b"a"), ([b"a", FAILED], FAILED), ([b'a\\u0002{}"}', END], b'{}"}')],
)
async def test_a_stream_left_before_is_closed(
    server: Server, chunks: list[bytes], left_at: bytes
) -> None:
    server.chunks = chunks
    await server.read_to(left_at)
    assert [body.ended for body in server.bodies] == [False]
    assert server.bodies[0].closed
    assert server.open == 0


async def test_an_end_that_does_not_come_is_not_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAIN_TIMEOUT", 0.01)
    server.chunks, server.pause_before = [END, b"late"], b"late"
    with anyio.fail_after(5):
        await server.read_to(END)
    assert server.bodies[0].closed
    assert server.open == 0


async def test_an_unread_answer_is_closed(server: Server) -> None:
    async with server.http.stream("GET", "http://bridge/"):
        pass
    assert server.bodies[0].closed
    assert server.open == 0


async def test_a_request_that_fails_leaves_nothing_open(server: Server) -> None:
    with pytest.raises(httpx.ConnectError):
        await server.get("/refused")
    assert server.open == 0
    assert await server.get() == b"whole"


async def test_a_request_that_is_cancelled_leaves_nothing_open(server: Server) -> None:
    server.gate = asyncio.Event()
    task = asyncio.ensure_future(server.get())
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.open == 0


async def test_closing_closes_idle_and_busy_ones(server: Server) -> None:
    await server.get()
    server.gate = asyncio.Event()
    tasks = [asyncio.ensure_future(server.get()) for _ in range(2)]
    await anyio.wait_all_tasks_blocked()
    await server.http.aclose()
    assert len(server.made) == 2
    assert server.open == 0
    server.gate.set()
    await asyncio.gather(*tasks)
    assert server.open == 0  # not even what a late answer gives back


@pytest.mark.parametrize(("url", "certificates"), [("http://x", 0), ("https://x", True)])
def test_certificates_are_loaded_for_https_only(url: str, certificates: int) -> None:
    transport = module.connections(url)._make()
    context = transport._pool._ssl_context  # type: ignore[attr-defined]
    assert bool(context.cert_store_stats()["x509_ca"]) == bool(certificates)
    assert context.check_hostname
