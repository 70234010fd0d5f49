"""The command line as real processes, on the real bridge."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cursor_sdk
import pytest
from typer.testing import CliRunner, Result

from langchain_cursor import CursorStartupError
from langchain_cursor.bridge.process import BridgeProcess
from langchain_cursor.cli.app import app
from langchain_cursor_fakes import CursorCloud, Delay, Hang, ReceivedRun, Step, Text, Thinking
from tests.conftest import API_KEY, Scripts, marked_processes, until

pytestmark = pytest.mark.bridge
clause = pytest.mark.clause

MAIN = """
import signal, sys
from langchain_cursor.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal
sys.argv = ["langchain-cursor", {}]
sys.exit(main())
"""


def command(*arguments: str) -> str:
    return MAIN.format(", ".join(map(repr, arguments)))


@pytest.fixture
def here(cloud: CursorCloud, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in this process, which loads nothing anew."""
    monkeypatch.setenv("CURSOR_API_KEY", f"{API_KEY}_cli")
    monkeypatch.setenv("CURSOR_BACKEND_URL", cloud.url)

    def run(*arguments: str, **environment: str) -> Result:
        return CliRunner().invoke(app, arguments, env=environment)

    return run


@clause("CLI-8")
def test_the_answer_comes_as_it_is_written(scripts: Scripts, cloud: CursorCloud) -> None:
    seen = threading.Event()

    def wait_for_the_reader(run: ReceivedRun) -> Iterator[Step]:
        yield Thinking("Hm.")
        yield Text("first ")
        while not seen.is_set():
            yield Delay(0.01)
        yield Text("second")

    cloud.brain = wait_for_the_reader
    process, mark = scripts.start(command("ask", "Hi", "--system", "Be brief.", "--model", "auto"))
    assert process.stdout is not None
    try:
        assert process.stdout.read(6) == "first "
    finally:
        seen.set()
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("second\n", "", 0)
    (run,) = cloud.runs
    assert (run.received.model, run.received.system_prompt) == ("auto", "Be brief.")
    assert marked_processes(mark) == {}


@clause("CLI-3")
@clause("CLI-6")
def test_ctrl_c_cancels_the_run_and_exits_with_130(scripts: Scripts, cloud: CursorCloud) -> None:
    cloud.brain = lambda run: [Text("I am "), Hang()]
    process, mark = scripts.start(command("ask", "Hi"))
    assert process.stdout is not None
    assert process.stdout.read(5) == "I am "
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("\n", "", 130)
    cloud.wait_for(lambda cloud: cloud.runs[0].outcome == "cancelled")
    assert marked_processes(mark) == {}
    assert list(scripts.temporary.iterdir()) == []


@clause("CLI-6")
@pytest.mark.skipif(sys.platform == "win32", reason="a script of the shell")
def test_ctrl_c_while_the_bridge_starts_prints_nothing(scripts: Scripts, tmp_path: Path) -> None:
    started, bridge = tmp_path / "started", tmp_path / "bridge"
    bridge.write_text(f"#!/bin/sh\ntouch '{started}'\nexec sleep 60\n")
    bridge.chmod(0o755)
    process, mark = scripts.start(command("ask", "Hi"), CURSOR_SDK_BRIDGE_BIN=str(bridge))
    assert until(started.exists, seconds=30)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130
    assert marked_processes(mark) == {}
    assert list(scripts.temporary.iterdir()) == []


@clause("CLI-6")
async def test_who_gives_up_on_a_bridge_that_starts_hears_no_more_of_it(tmp_path: Path) -> None:
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    process = BridgeProcess(
        [sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path, lambda _: None
    )
    waiting = asyncio.ensure_future(process.ready(30))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.to_thread(process.end)  # it waits for the reader, who tells of the end
    await asyncio.sleep(0)
    assert isinstance(process.discovery.exception(), CursorStartupError)
    del process, waiting
    gc.collect()
    assert heard == []


def endless(run: ReceivedRun) -> Iterator[Step]:
    while True:
        yield Text("word ")
        yield Delay(0.01)


@clause("CLI-6")
def test_a_reader_that_goes_away_ends_the_command_quietly(
    scripts: Scripts, cloud: CursorCloud
) -> None:
    cloud.brain = endless
    process, mark = scripts.start(command("ask", "Hi"))
    assert process.stdout is not None
    assert process.stdout.read(4) == "word"
    process.stdout.close()
    assert process.wait(30) == 1
    assert process.stderr is not None
    with process.stderr as stderr:
        assert stderr.read() == ""
    cloud.wait_for(lambda cloud: cloud.runs[0].outcome == "cancelled")
    assert marked_processes(mark) == {}


@clause("CLI-5")
@clause("CLI-11")
@clause("CLI-12")
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")
def test_on_a_terminal_progress_is_shown_until_the_first_word(
    scripts: Scripts, cloud: CursorCloud
) -> None:
    cloud.brain = lambda run: [Delay(0.3), Thinking("Hm."), Text("A\x1b[31mB")]
    screen = on_a_terminal(scripts, "ask", "Hi", "--thinking")
    assert "Starting Cursor ..." in screen
    progress, thought, answer = screen.partition("\x1b[2mHm.\x1b[0m")
    assert thought
    assert progress.endswith("\x1b[2K")  # the line of the progress is erased
    assert answer.replace("\r\n", "\n") == "\nA�[31mB\n"


def on_a_terminal(scripts: Scripts, *arguments: str) -> str:
    """Run a command on a pseudo-terminal, and return all that was written to it."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", command(*arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANGCHAIN_CURSOR_CACHE_DIR")},
            **{k: v for k, v in os.environ.items() if k.startswith("COVERAGE_")},
            "TMPDIR": str(scripts.temporary),
            "CURSOR_API_KEY": API_KEY,
            "CURSOR_BACKEND_URL": scripts.cloud.url,
            "TERM": "xterm-256color",
        },
        start_new_session=True,
    )
    os.close(theirs)
    written = b""
    deadline = time.monotonic() + 30
    try:
        while select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                written += os.read(ours, 65536)
            except OSError:  # nobody has it open any more
                break
        assert process.wait(10) == 0, written
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return written.decode()


@clause("CLI-14")
@clause("CLI-15")
@clause("CLI-16")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_the_doctor_finds_all_well_and_shows_no_key(scripts: Scripts, cloud: CursorCloud) -> None:
    ran = scripts.run(command("doctor"))
    marks = {line[2:].partition(":")[0]: line[0] for line in ran.out.splitlines()[:-1]}
    assert marks.pop("Sandbox") in "✓!"  # as this machine has it
    assert list(marks) == [
        *("Python", "SDK", "Key", "Bridge", "Extension", "Cursor", "Account"),
        *("Call", "System prompt", "Warm executor"),
    ]
    assert set(marks.values()) == {"✓"}
    assert ran.out.endswith("ChatCursor can be used.\n")
    assert "in CURSOR_API_KEY" in ran.out
    assert ran.err == "This makes 2 short runs on your account; --no-runs leaves them out.\n"
    assert ran.status == 0
    assert API_KEY not in ran.out + ran.err
    assert [run.outcome for run in cloud.runs] == ["finished", "finished"]
    assert cloud.executor_builds == 1
    assert ran.processes() == {}
    assert ran.files() == []


@clause("CLI-15")
@clause("CLI-16")
def test_the_doctor_on_a_refused_key(here: Callable[..., Result], cloud: CursorCloud) -> None:
    cloud.refuse_all_keys = True
    result = here("doctor")
    assert result.exit_code == 1
    assert "✓ Cursor: " in result.stdout
    assert "✗ Account: " in result.stdout
    assert "Invalid API key" in result.stdout
    assert "- Call: " in result.stdout
    assert API_KEY not in result.output
    assert cloud.runs == []


@clause("CLI-15")
def test_the_doctor_where_cursor_cannot_be_reached(here: Callable[..., Result]) -> None:
    result = here("doctor", CURSOR_BACKEND_URL="http://me:passw0rd@127.0.0.1:1")
    assert result.exit_code == 1
    assert "✓ Bridge: " in result.stdout
    assert "✗ Cursor: http://***@127.0.0.1:1: " in result.stdout
    assert "Check the network" in result.stdout
    assert "- Account: " in result.stdout
    assert "passw0rd" not in result.output


@clause("CLI-15")
def test_the_doctor_on_an_account_without_system_prompts(
    here: Callable[..., Result], cloud: CursorCloud
) -> None:
    cloud.system_prompt_allowed = False
    result = here("doctor")
    assert result.exit_code == 0
    assert "! System prompt: refused for this account" in result.stdout
    assert "✓ Warm executor: " in result.stdout


@clause("CLI-15")
def test_the_doctor_on_a_bridge_of_the_users_own(here: Callable[..., Result]) -> None:
    own = Path(cursor_sdk.__file__).parent / "_vendor" / "bridge" / "bin" / "cursor-sdk-bridge"
    result = here("doctor", CURSOR_SDK_BRIDGE_BIN=str(own))
    assert result.exit_code == 0
    assert "✓ Bridge: your own one answers in " in result.stdout
    assert "! Extension: " in result.stdout
    assert "Unset CURSOR_SDK_BRIDGE_BIN" in result.stdout
    assert "! System prompt: " in result.stdout
    assert "✓ Warm executor: " in result.stdout


@clause("CLI-7")
@clause("CLI-13")
@clause("CLI-20")
def test_offline_needs_neither_key_nor_cloud(scripts: Scripts, cloud: CursorCloud) -> None:
    nothing = {"CURSOR_API_KEY": "", "CURSOR_BACKEND_URL": ""}
    started = [
        scripts.start(command(*arguments, "--offline"), **nothing)
        for arguments in (("bench", "--calls", "1"), ("models", "--json"))
    ]
    (bench, models) = [process.communicate(timeout=60) for process, _ in started]
    assert [process.returncode for process, _ in started] == [0, 0]
    assert [model["id"] for model in json.loads(models[0])] == ["composer-2.5", "auto"]
    assert "first call after prewarm()" in bench[0]
    for _, err in (bench, models):
        assert (
            err == "Offline: the answers come from a stand-in on this machine, not from Cursor.\n"
        )
    assert cloud.requests == []
    for _, mark in started:
        assert until(lambda mark=mark: marked_processes(mark) == {})
    assert list(scripts.temporary.iterdir()) == []
