"""Faults of the bridge process, and of the way to it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cursor_sdk
import httpx
import pytest

from langchain_cursor import ChatCursor, CursorBridgeError, list_models
from langchain_cursor.loop import private_loop
from langchain_cursor_fakes import BridgeDies, Delay, Hang, Text
from tests.conftest import until
from tests.faults.conftest import (
    MODES,
    SYNC_MODES,
    Fake,
    Real,
    ask,
    check,
    pid_of,
    runtime_of,
    see,
)

bridge = pytest.mark.bridge


# --- The answers of the bridge --------------------------------------------------------------------


class Stream(httpx.AsyncByteStream):
    """An answer that begins well and goes on as a test wants it."""

    def __init__(self, response: httpx.Response, rest: bytes | Exception) -> None:
        self._response = response
        self._rest = rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.aiter_raw():
            yield chunk
            break
        if isinstance(self._rest, Exception):
            raise self._rest
        yield self._rest

    async def aclose(self) -> None:
        await self._response.aclose()


class Damaged(httpx.AsyncBaseTransport):
    """The way to the bridge, which spoils the answers to one method."""

    def __init__(self, inner: httpx.AsyncBaseTransport, method: str, spoil: Spoil) -> None:
        self._inner = inner
        self._method = method
        self._spoil = spoil

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if not request.url.path.endswith(f"/{self._method}"):
            return response
        return await self._spoil(response)


Spoil = Callable[[httpx.Response], Any]


def body(content: bytes, status: int = 200) -> Spoil:
    async def spoil(response: httpx.Response) -> httpx.Response:
        await response.aclose()
        return httpx.Response(status, stream=httpx.ByteStream(content))

    return spoil


def rest(content: bytes | Exception) -> Spoil:
    async def spoil(response: httpx.Response) -> httpx.Response:
        return httpx.Response(200, headers=response.headers, stream=Stream(response, content))

    return spoil


def broken(error: Exception) -> Spoil:
    async def spoil(response: httpx.Response) -> httpx.Response:
        await response.aclose()
        raise error

    return spoil


CUT_OFF = httpx.RemoteProtocolError("peer closed connection without sending complete message body")
PAGE = b"<html><body><h1>Bad gateway</h1></body></html>"

SPOILT: dict[str, tuple[str, str, Spoil, str]] = {
    "no JSON for an agent": ("FAULT-10", "CreateAgent", body(b'{"agentId": "ag'), ""),
    "no text for an agent": ("FAULT-10", "CreateAgent", body(b"\xff\xfe\xfd"), ""),
    "no object for an agent": ("FAULT-10", "CreateAgent", body(b"[1]"), ""),
    "no JSON in a run": ("FAULT-10", "Send", rest(b"\x00\x00\x00\x00\x05{oops"), ""),
    "no text in a run": ("FAULT-10", "Send", rest(b"\x00\x00\x00\x00\x03\xff\xfe\xfd"), ""),
    "an end in mid-frame": ("FAULT-10", "Send", rest(b"\x00\x00\x00\x01\x00{"), ""),
    "no JSON for a run": ("FAULT-10", "Send", body(b"\x00\x00\x00\x00\x05{oops"), ""),
    "an agent's answer cut off": ("FAULT-11", "CreateAgent", broken(CUT_OFF), ""),
    "a run's answer cut off": ("FAULT-11", "Send", broken(CUT_OFF), ""),
    "a run's stream cut off": ("FAULT-11", "Send", rest(CUT_OFF), ""),
    "HTTP 500 for an agent": ("FAULT-12", "CreateAgent", body(PAGE, 500), "CursorAPIError"),
    "HTTP 502 for an agent": ("FAULT-12", "CreateAgent", body(PAGE, 502), "CursorConnectionError"),
    "HTTP 500 for a run": ("FAULT-12", "Send", body(PAGE, 500), "CursorAPIError"),
    "HTTP 429 for a run": ("FAULT-12", "Send", body(b"", 429), "CursorRateLimitError"),
}


@pytest.mark.clause("SECURITY-17")
@bridge
@pytest.mark.parametrize(
    ("clause", "method", "spoil", "error"),
    [
        pytest.param(*case, marks=pytest.mark.clause(case[0]), id=name)
        for name, case in SPOILT.items()
    ],
)
def test_an_answer_of_the_bridge_is_spoilt(
    real: Real,
    monkeypatch: pytest.MonkeyPatch,
    clause: str,
    method: str,
    spoil: Spoil,
    error: str,
) -> None:
    model = real.model(timeout=5.0)
    assert model.invoke("say: before").text == "before"
    http = runtime_of(model)._bridge._http
    pid = pid_of(model)
    # A run of which Python was never told cannot be cancelled: it ends by itself.
    begun = method == "CreateAgent" or spoil.__qualname__.startswith("rest")
    real.script([Text("a"), Hang() if begun else Delay(0.2)])
    for mode in SYNC_MODES:
        with monkeypatch.context() as patch:
            patch.setattr(http, "_transport", Damaged(http._transport, method, spoil))
            seen = see(lambda mode=mode: ask(model, mode))
        check(seen, clause, 5.0, real.secrets(model), error=error)
    real.script([Text("works")])
    assert ask(model, "ainvoke") == "works"
    assert pid_of(model) == pid  # the bridge was not to blame


# --- The end of the bridge ------------------------------------------------------------------------


def kill(backend: Real | Fake, model: ChatCursor, number: int = signal.SIGKILL) -> None:
    if isinstance(backend, Real):
        os.kill(pid_of(model), number)
    else:
        backend.fake.kill_bridge()


@pytest.mark.clause("FAULT-13")
@pytest.mark.clause("RUNTIME-12")
def test_a_bridge_that_was_killed_before_the_call(backend: Real | Fake) -> None:
    model = backend.victim(timeout=20.0)
    backend.script([Text("works")])
    assert ask(model, "invoke") == "works"
    for mode in ("invoke", "astream"):
        kill(backend, model)
        assert ask(model, mode) == "works"


@bridge
@pytest.mark.clause("FAULT-13")
def test_a_bridge_that_is_given_up_between_agent_and_run(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = real.victim(timeout=20.0)
    real.script([Text("works")])
    assert ask(model, "invoke") == "works"
    first: Any = runtime_of(model)._bridge
    send = cursor_sdk.AsyncAgent.send

    async def send_late(agent: cursor_sdk.AsyncAgent, *given: Any) -> Any:
        await first.aclose()
        return await send(agent, *given)

    monkeypatch.setattr(cursor_sdk.AsyncAgent, "send", send_late)
    assert ask(model, "stream") == "works"
    assert runtime_of(model)._bridge is not first


@bridge
@pytest.mark.clause("FAULT-13")
def test_models_are_listed_after_the_bridge_was_killed(real: Real) -> None:
    model = real.victim()
    assert model.invoke("say: x").text == "x"
    os.kill(pid_of(model), signal.SIGKILL)
    assert until(lambda: runtime_of(model)._bridge.lost)
    listed = list_models(api_key=real.victims_key, base_url=real.cloud.url)
    assert "composer-2.5" in [known.id for known in listed]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that a fault meets under way."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@bridge
@pytest.mark.clause("FAULT-14")
@pytest.mark.clause("RUNTIME-12")
@pytest.mark.parametrize("mode", ["invoke", "astream"])
def test_a_bridge_that_is_killed_during_the_run(
    real: Real, pool: ThreadPoolExecutor, mode: str
) -> None:
    model = real.victim(timeout=20.0)
    assert model.invoke("say: x").text == "x"
    real.script([Text("half"), Hang()])
    real.cloud.clear()
    call = pool.submit(see, lambda: ask(model, mode))
    real.cloud.wait_for(lambda cloud: cloud.runs)
    secrets = real.secrets(model)
    os.kill(pid_of(model), signal.SIGKILL)
    check(call.result(5), "FAULT-14", 1.0, secrets)
    real.script([Text("works")])
    assert ask(model, mode) == "works"


@pytest.mark.clause("FAULT-14")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [[BridgeDies()], [Text("half"), BridgeDies()]])
def test_a_fake_bridge_that_dies_during_the_run(mode: str, steps: list[Any]) -> None:
    backend = Fake()
    backend.script(steps)
    model = backend.model(timeout=5.0)
    seen = see(lambda: ask(model, mode))
    check(seen, "FAULT-14", 1.0, backend.secrets(model))
    assert "FakeCursor ended this bridge" in str(seen.error)  # its last words
    backend.script([Text("works")])
    assert ask(model, mode) == "works"
    backend.close()


@pytest.mark.clause("FAULT-15")
@pytest.mark.parametrize("retries", [0, 2])
def test_many_calls_while_the_bridge_is_killed(backend: Real | Fake, retries: int) -> None:
    model = backend.victim(timeout=60.0, max_retries=retries)
    backend.script([Text("works")])
    ask(model, "invoke")
    backend.script([Delay(0.01), Text("works")])
    answered = threading.Semaphore(0)

    async def call() -> str:
        try:
            return str((await model.ainvoke("x")).content)
        except CursorBridgeError as error:
            return type(error).__name__
        finally:
            answered.release()

    async def main() -> list[str]:
        calls = [asyncio.create_task(call()) for _ in range(100)]
        await asyncio.to_thread(lambda: [answered.acquire(timeout=20) for _ in range(10)])
        kill(backend, model)
        return await asyncio.gather(*calls)

    answers = asyncio.run(main())
    expected = {"works"} if retries else {"works", "CursorBridgeError"}
    assert set(answers) == expected
    backend.script([Text("works")])
    assert ask(model, "invoke") == "works"


# --- Silence --------------------------------------------------------------------------------------

SILENCE, GRACE, PING = 0.4, 0.1, 0.3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of silence in tenths of seconds."""
    monkeypatch.setattr("langchain_cursor.bridge.watchdog.SILENCE_TIMEOUT", SILENCE)
    monkeypatch.setattr("langchain_cursor.bridge.watchdog.GRACE", GRACE)
    monkeypatch.setattr("langchain_cursor.bridge.launch.PING_TIMEOUT", PING)


@pytest.fixture
def frozen() -> Iterator[Callable[[ChatCursor], int]]:
    """Freezes a model's bridge; nothing that is frozen outlives the test."""
    stopped: list[int] = []

    def freeze(model: ChatCursor) -> int:
        stopped.append(pid_of(model))
        os.kill(stopped[-1], signal.SIGSTOP)
        return stopped[-1]

    yield freeze
    for pid in stopped:
        assert until(lambda pid=pid: not alive(pid)), "it was not ended"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@bridge
@pytest.mark.clause("FAULT-16")
@pytest.mark.usefixtures("impatient")
def test_a_bridge_that_freezes_during_a_run_fails_all_its_calls(
    real: Real, pool: ThreadPoolExecutor, frozen: Callable[[ChatCursor], int]
) -> None:
    model = real.victim(timeout=None)
    assert model.invoke("say: x").text == "x"
    real.script([Text("half"), Hang()])
    real.cloud.clear()
    secrets = real.secrets(model)
    calls = [pool.submit(see, lambda mode=mode: ask(model, mode)) for mode in MODES]
    real.cloud.wait_for(lambda cloud: len(cloud.runs) == 4)
    frozen(model)
    for call in calls:
        seen = call.result(10)
        check(seen, "FAULT-16", SILENCE + GRACE, secrets)
        assert "did not answer any more" in str(seen.error)
    real.script([Text("works")])
    assert ask(model, "invoke") == "works"


@bridge
@pytest.mark.clause("FAULT-17")
@pytest.mark.usefixtures("impatient")
def test_a_bridge_that_froze_before_the_call_is_replaced(
    real: Real, frozen: Callable[[ChatCursor], int]
) -> None:
    model = real.victim(timeout=None)
    real.script([Text("works")])
    assert ask(model, "invoke") == "works"
    first = frozen(model)
    started = time.monotonic()
    assert ask(model, "stream") == "works"
    assert SILENCE < time.monotonic() - started < SILENCE + GRACE + PING + 3
    assert pid_of(model) != first


@bridge
@pytest.mark.clause("FAULT-18")
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_frozen_bridge_does_not_outlive_the_call_that_it_kept(
    real: Real,
    pool: ThreadPoolExecutor,
    frozen: Callable[[ChatCursor], int],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    monkeypatch.setattr("langchain_cursor.bridge.launch.PING_TIMEOUT", PING)
    model = real.victim(timeout=0.5)
    real.script([Text("works")])
    assert ask(model, "invoke", timeout=20.0) == "works"
    secrets = real.secrets(model)
    real.script([Text("half"), Hang()])
    real.cloud.clear()
    if when == "before":
        frozen(model)
    call = pool.submit(see, lambda: ask(model, "invoke"))
    if when == "during":
        real.cloud.wait_for(lambda cloud: cloud.runs)
        frozen(model)
    check(call.result(5), "FAULT-18", 0.5, secrets)
    real.script([Text("works")])
    assert ask(model, "invoke", timeout=10.0) == "works"


@pytest.mark.clause("FAULT-19")
@pytest.mark.usefixtures("impatient")
def test_a_call_survives_that_this_process_was_busy_or_stopped(backend: Real | Fake) -> None:
    model = backend.model(timeout=None)
    backend.script([Text("be"), Delay(0.2), Text("gun"), Delay(0.1), Text("!")])
    if isinstance(backend, Fake):
        backend.fake.clock.real_time = True
    stream = model.stream("x")
    assert next(stream).content == "be"
    # The loop's timers are due before it has read what has come.
    private_loop().post(time.sleep, SILENCE + 0.2)
    assert "".join(str(chunk.content) for chunk in stream) == "gun!"


@pytest.mark.clause("FAULT-19")
@pytest.mark.usefixtures("impatient")
def test_a_call_survives_a_reader_that_pauses(backend: Real | Fake) -> None:
    model = backend.model(timeout=None)
    backend.script([Text(f"{number} ") for number in range(2000)])
    stream = model.stream("x")
    assert next(stream).content == "0 "
    time.sleep(SILENCE + GRACE + 0.2)
    assert [str(chunk.content) for chunk in stream][-2:] == ["1999 ", ""]
