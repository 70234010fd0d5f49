"""The stand-in cloud: starting, closing, the command and the package."""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from langchain_cursor_fakes import (
    CursorCloud,
    Hang,
    ReceivedRun,
    Text,
)
from langchain_cursor_fakes import cloud as cloud_module
from tests.fakes.wire_client import (
    WireClient,
    outcomes,
    read_all,
)


def cloud_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "CursorCloud"}


# --- Life -----------------------------------------------------------------------------------------


@pytest.mark.clause("CLOUD-13")
def test_it_serves_on_loopback_only(cloud: CursorCloud) -> None:
    assert cloud.url.startswith("http://127.0.0.1:")


@pytest.mark.clause("CLOUD-13")
def test_a_cloud_that_was_not_started_has_no_url() -> None:
    with pytest.raises(RuntimeError, match=r"no URL before start\(\)"):
        _ = CursorCloud().url


@pytest.mark.clause("CLOUD-13")
def test_closing_ends_hanging_runs_the_thread_and_all_connections() -> None:
    threads = cloud_threads()
    cloud = CursorCloud(brain=lambda run: [Text("begun"), Hang()])
    cloud.start()
    with WireClient(cloud) as wire:
        connections = [*(wire.send_run() for _ in range(64)), wire.connect()]
        cloud.wait_for(lambda c: outcomes(c) == ["running"] * 64)
        begin = time.monotonic()
        cloud.close()
        assert time.monotonic() - begin < 1
        assert cloud_threads() == threads
        assert outcomes(cloud) == ["dropped"] * 64
        assert all(run.cancelled_at is None and run.ended_at for run in cloud.runs)
        for connection in connections:
            with connection:
                assert_is_cut(connection)
        with pytest.raises(ConnectionRefusedError):
            wire.connect()
    gc.collect()  # an unclosed socket or a pending task would warn, and warnings are errors


def assert_is_cut(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        read_all(connection)  # with the connection open it would time out


@pytest.mark.clause("CLOUD-13")
def test_closing_while_clients_connect_leaves_nothing_behind() -> None:
    def connect_until_refused(wire: WireClient) -> None:
        connections = []
        with contextlib.suppress(ConnectionError):
            while True:
                connections.append(wire.connect())
        for connection in connections:
            connection.close()

    cloud = CursorCloud()
    with ThreadPoolExecutor(1) as pool:
        for _ in range(10):
            cloud.start()
            with WireClient(cloud) as wire:
                clients = pool.submit(connect_until_refused, wire)
                time.sleep(0.005)
                cloud.close()
                clients.result(5)
    gc.collect()


@pytest.mark.clause("CLOUD-13")
def test_starting_and_closing_twice_does_no_harm(cloud: CursorCloud, wire: WireClient) -> None:
    url = cloud.url
    cloud.start()
    assert cloud.url == url
    wire.exchange()
    cloud.close()
    cloud.close()
    assert cloud.key_exchanges == 1


@pytest.mark.clause("CLOUD-13")
def test_a_closed_cloud_starts_again_on_the_same_port(cloud: CursorCloud, wire: WireClient) -> None:
    url = cloud.url
    wire.exchange()
    cloud.close()
    with pytest.raises(httpx.TransportError):
        wire.exchange()
    cloud.start()
    assert cloud.url == url
    assert wire.exchange().status_code == 200


@pytest.mark.clause("CLOUD-13")
def test_a_port_that_is_taken_is_an_error_and_leaves_no_thread(cloud: CursorCloud) -> None:
    threads = cloud_threads()
    second = CursorCloud(port=int(cloud.url.rpartition(":")[2]))
    with pytest.raises(OSError, match="in use"):
        second.start()
    assert cloud_threads() == threads
    second.close()


@pytest.mark.clause("CLOUD-13")
@pytest.mark.asyncio
async def test_it_answers_even_a_caller_that_blocks_its_event_loop() -> None:
    threads = cloud_threads()
    async with CursorCloud() as cloud:
        with WireClient(cloud) as wire:
            assert wire.exchange().status_code == 200  # blocks
    assert cloud_threads() == threads


@pytest.mark.clause("CLOUD-13")
def test_a_brain_that_blocks_is_told_by_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_module, "_CLOSE_SECONDS", 0.1)
    entered, released = threading.Event(), threading.Event()

    def brain(run: ReceivedRun) -> str:
        entered.set()
        released.wait(5)
        return "late"

    threads = cloud_threads()
    cloud = CursorCloud(brain)
    cloud.start()
    with WireClient(cloud) as wire, wire.send_run():
        assert entered.wait(5)
        with pytest.raises(RuntimeError, match=r"blocks since more than 0\.1 s"):
            cloud.close()
        released.set()
        cloud.close()
    assert cloud_threads() == threads


@pytest.mark.clause("CLOUD-13")
def test_a_brain_cannot_close_its_own_cloud(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.brain = lambda run: cloud.close() or "closed"
    wire.run()
    assert "cannot be closed from its own event loop" in str(cloud.brain_errors[0])


# --- The package and the command ------------------------------------------------------------------


@pytest.mark.clause("PACKAGE-2")
def test_importing_the_package_imports_none_of_its_modules() -> None:
    code = (
        "import sys, langchain_cursor_fakes as f; before = set(sys.modules); "
        "assert not {'h11', 'asyncio'} & before, before; "
        "f.CursorCloud; assert 'h11' in sys.modules; "
        "assert 'Delays' in dir(f) and not hasattr(f, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


@pytest.mark.clause("PACKAGE-1")
def test_every_public_name_can_be_imported() -> None:
    import langchain_cursor_fakes

    for name in langchain_cursor_fakes.__all__:
        assert getattr(langchain_cursor_fakes, name) is not None


@pytest.mark.clause("CLOUD-14")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_interrupted(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "langchain_cursor_fakes.cloud", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert httpx.get(f"{url}/ping", trust_env=False).status_code == 200
            process.send_signal(number)
            _, errors = process.communicate(timeout=5)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
