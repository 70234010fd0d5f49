"""The bridge's process, with a short script in Node's place."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from langchain_cursor.bridge import process as module
from langchain_cursor.bridge.process import BridgeProcess, environment, vendored
from langchain_cursor.errors import CursorStartupError

Start = Callable[..., BridgeProcess]
DISCOVERY = 'cursor-sdk-bridge ready {"url": "http://127.0.0.1:1"}'


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[BridgeProcess] = []

    def run(script: str, secrets: tuple[str, ...] = ()) -> BridgeProcess:
        command = [sys.executable, "-u", "-S", "-c", f"import sys\n{script}"]
        started.append(BridgeProcess(command, {}, tmp_path, lambda process: None, secrets))
        return started[-1]

    yield run
    for process in started:
        process.end()
        assert not process.alive


def says(*lines: str) -> str:
    return "".join(f"print({line!r}, file=sys.stderr)\n" for line in lines)


@pytest.mark.clause("BRIDGE-6")
async def test_it_is_ready_when_it_says_where_it_listens(start: Start) -> None:
    process = start(says("starting", DISCOVERY, DISCOVERY) + "sys.stdin.read()")
    assert await process.ready(10) == {"url": "http://127.0.0.1:1"}
    assert process.alive
    process.end()
    process.end()
    assert not process.alive


@pytest.mark.clause("BRIDGE-6")
async def test_an_address_that_is_none_is_a_startup_error(start: Start) -> None:
    process = start(says("cursor-sdk-bridge ready {") + "sys.stdin.read()")
    with pytest.raises(CursorStartupError, match="an address that is no JSON"):
        await process.ready(10)


@pytest.mark.clause("BRIDGE-6")
async def test_one_that_ends_at_once_leaves_its_last_words(start: Start) -> None:
    process = start(says("no room", "for crsr_0123456789") + "sys.exit(3)", ("crsr_0123456789",))
    with pytest.raises(CursorStartupError, match=r"with status 3\..*\nno room\nfor \*\*\*"):
        await process.ready(10)


@pytest.mark.clause("BRIDGE-6")
async def test_one_that_says_nothing_is_given_up(start: Start) -> None:
    process = start("sys.stdin.read()")
    with pytest.raises(CursorStartupError, match=r"not ready after 0\.05 s.* wrote nothing"):
        await process.ready(0.05)


@pytest.mark.clause("BRIDGE-6")
def test_where_no_thread_can_listen_to_it_the_process_is_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaped: list[bool] = []
    wait = module._wait

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def waited(process: module.subprocess.Popen[bytes], timeout: float) -> None:
        wait(process, timeout)
        reaped.append(process.returncode is not None)

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    monkeypatch.setattr(module, "_wait", waited)
    with pytest.raises(CursorStartupError, match="Raise the limit on threads or processes"):
        start("sys.stdin.read()")
    assert reaped == [True]


@pytest.mark.clause("BRIDGE-9")
def test_the_environment_names_a_backend_only_if_there_is_one(tmp_path: Path) -> None:
    assert "CURSOR_BACKEND_URL" not in environment(tmp_path, None)
    assert environment(tmp_path, "https://b.example")["CURSOR_BACKEND_URL"] == "https://b.example"


@pytest.mark.clause("BRIDGE-6")
def test_an_sdk_without_a_bridge_has_none(tmp_path: Path) -> None:
    assert vendored(None) is None
    assert vendored(str(tmp_path / "__init__.py")) is None
