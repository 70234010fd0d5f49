"""Connections to the bridge: reused, bounded, and closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint

from langchain_cursor.bridge import connections as module
from langchain_cursor.bridge.connections import KEEPALIVE_EXPIRY, MOST_IDLE, Connections

END = b"\x02\x00\x00\x00\x02{}"
FAILED = b'\x02\x00\x00\x00\x16{"error":{"code":"no"}}'


class Body(httpx.AsyncByteStream):
    """An answer in chunks, which may pause before one."""

    def __init__(
        self, chunks: Iterable[bytes], pause_before: bytes, fail_at: str, wait_at_end: bool
    ) -> None:
        self._chunks = chunks
        self._pause_before = pause_before
        self._fail_at = fail_at
        self._wait_at_end = wait_at_end
        self.ended = False
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            if chunk == self._pause_before:
                await asyncio.Event().wait()
            yield chunk
        if self._fail_at == "end":
            raise httpx.RemoteProtocolError("cut")
        self.ended = True

    async def aclose(self) -> None:
        if self._wait_at_end:
            await asyncio.Event().wait()
        if self._fail_at == "close":
            raise httpx.ReadError("cut")
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
        await checkpoint()  # a cancelled call gets no further without a shield
        self.closed = True
        if self._server.closing_fails:
            raise OSError("closed already")


class Server:
    """Makes transports, and gives all answers."""

    def __init__(self) -> None:
        self.made: list[One] = []
        self.requests = 0
        self.now = 100.0
        self.bodies: list[Body] = []
        self.chunks: list[bytes] = [b"whole"]
        self.pause_before = b"never"
        self.fail_at = ""
        self.wait_at_end = False
        self.closing_fails = False
        self.gate: asyncio.Event | None = None
        self.connections = Connections(self._make, lambda: self.now)
        self.http = httpx.AsyncClient(transport=self.connections)

    @property
    def open(self) -> int:
        """How many connections are open, when no request is under way."""
        assert self.connections._busy == set()
        idle = [one for _, one in self.connections._idle]
        left = [one for one in self.made if not one.closed]
        assert len(idle) == len(left)
        assert set(idle) == set(left)
        return len(left)

    def _make(self) -> One:
        self.made.append(One(self))
        return self.made[-1]

    async def before(self, request: httpx.Request) -> None:
        if request.url.path == "/refused":
            raise httpx.ConnectError("refused", request=request)
        if self.gate is not None:
            await self.gate.wait()

    def answer(self) -> Body:
        self.bodies.append(Body(self.chunks, self.pause_before, self.fail_at, self.wait_at_end))
        return self.bodies[-1]

    async def get(self, path: str = "/") -> bytes:
        return (await self.http.get(f"http://bridge{path}")).content

    async def at_once(self, count: int) -> list[bytes]:
        """The answers of so many requests, all of them under way at the same time."""
        self.gate = asyncio.Event()
        tasks = [asyncio.ensure_future(self.get()) for _ in range(count)]
        await anyio.wait_all_tasks_blocked()
        self.gate.set()
        return await asyncio.gather(*tasks)

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
    assert await server.at_once(MOST_IDLE + 8) == [b"whole"] * (MOST_IDLE + 8)
    assert server.requests == len(server.made) == MOST_IDLE + 8
    assert server.open == MOST_IDLE  # the others are closed


async def test_the_one_used_last_is_used_again(server: Server) -> None:
    await server.at_once(3)
    server.now += KEEPALIVE_EXPIRY / 2
    for _ in range(3):
        await server.get()
    server.now += KEEPALIVE_EXPIRY / 2
    await server.get()  # two have been idle for too long, and are closed
    assert server.open == 1
    assert len(server.made) == 3


async def test_of_too_many_the_oldest_are_closed(server: Server) -> None:
    await server.at_once(MOST_IDLE)
    await server.at_once(MOST_IDLE + 1)
    assert server.open == MOST_IDLE
    assert not server.made[-1].closed  # the one that was used last


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
    [
        ([b"a", b"b", END], b"a"),
        ([b"a", FAILED], FAILED),
        ([b"\x00\x00\x00\x00\x02{}", END], b"{}"),  # an empty frame, but not the last
    ],
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


async def test_in_a_cancelled_scope_nothing_is_left_open(server: Server) -> None:
    server.gate = asyncio.Event()
    with anyio.move_on_after(0.01) as scope:
        await server.get()
    assert scope.cancelled_caught
    assert server.open == 0


@pytest.mark.parametrize("fail_at", ["end", "close"])
async def test_an_answer_that_was_read_is_whole_whatever_comes_after(
    server: Server, fail_at: str
) -> None:
    server.chunks, server.fail_at = [b"a", END], fail_at
    if fail_at == "end":
        await server.read_to(END)
        assert server.bodies[0].closed
    else:
        with pytest.raises(httpx.ReadError):  # by its own stream, as without us
            await server.read_to(END)
    assert server.open == 0
    server.fail_at = ""
    await server.read_to(END)
    assert server.open == 1


async def test_an_answer_whose_end_is_cancelled_does_not_give_its_connection_back(
    server: Server,
) -> None:
    server.chunks, server.wait_at_end = [b"a", END], True
    task = asyncio.ensure_future(server.read_to(END))
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.open == 0


async def test_a_close_that_fails_is_of_no_interest(server: Server) -> None:
    server.closing_fails = True
    await server.get()
    server.now += KEEPALIVE_EXPIRY
    assert await server.get() == b"whole"
    assert server.open == 1
    await server.http.aclose()
    assert server.open == 0


async def test_a_stream_and_its_reader_do_not_keep_each_other(server: Server) -> None:
    server.chunks = [b"a", b"b"]
    async with server.http.stream("GET", "http://bridge/") as response:
        async for _ in response.aiter_raw():
            break
        stream = response.stream._stream  # type: ignore[attr-defined]  # under httpx's own
        assert stream._chunks is not None
    assert stream._chunks is None


async def test_closing_closes_idle_and_busy_ones(server: Server) -> None:
    await server.at_once(3)
    server.gate = asyncio.Event()
    late = asyncio.ensure_future(server.get())
    await anyio.wait_all_tasks_blocked()
    assert (len(server.connections._idle), len(server.connections._busy)) == (2, 1)
    await server.http.aclose()
    assert [one.closed for one in server.made] == [True] * 3
    server.gate.set()
    with pytest.raises(httpx.ConnectError, match="have been closed"):
        await late
    assert server.bodies[-1].closed
    assert server.open == 0


async def test_an_answer_read_while_they_close_is_not_kept(server: Server) -> None:
    async with server.http.stream("GET", "http://bridge/") as response:
        await server.http.aclose()
        assert await response.aread() == b"whole"
    assert server.open == 0


async def test_a_request_that_begins_while_they_close_is_refused(server: Server) -> None:
    await server.get()
    server.now += KEEPALIVE_EXPIRY
    late = asyncio.ensure_future(server.get())  # closes the expired one first
    await asyncio.sleep(0)
    await server.http.aclose()
    with pytest.raises(httpx.ConnectError, match="have been closed"):
        await late
    assert server.requests == 1
    assert server.open == 0


@pytest.mark.parametrize(("url", "certificates"), [("http://x", False), ("https://x", True)])
def test_certificates_are_loaded_for_https_only(url: str, certificates: bool) -> None:
    transport = module.connections(url)._make()
    context = transport._pool._ssl_context  # type: ignore[attr-defined]  # httpx shows it nowhere
    assert bool(context.cert_store_stats()["x509_ca"]) == certificates
    assert context.check_hostname
