"""No process and no file outlives its owner, however that ends; see `tests/faults` for faults."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from langchain_cursor import ChatCursor, CursorStartupError
from langchain_cursor_fakes import CursorCloud, Delays, Hang, Text
from tests.conftest import Scripts, marked_processes, until

pytestmark = pytest.mark.bridge

Chat = Callable[..., ChatCursor]


@pytest.mark.clause("RUNTIME-8")
def test_a_script_that_disposes_nothing_exits_at_once_and_leaves_nothing(scripts: Scripts) -> None:
    ran = scripts.run(
        """
        import time
        from langchain_cursor import ChatCursor
        print(ChatCursor().invoke("Hello!").text)
        print(time.monotonic())
        """
    )
    assert (ran.err, ran.status) == ("", 0)
    answer, last_line_at = ran.out.splitlines()
    assert answer == "Hello from Cursor. You said: Hello!"
    assert time.monotonic() - float(last_line_at) < 2
    assert ran.processes() == {}
    assert ran.files() == []


@pytest.mark.clause("RUNTIME-8")
def test_an_exception_or_sys_exit_leaves_nothing(scripts: Scripts) -> None:
    ran = scripts.run(
        """
        import sys
        from langchain_cursor import ChatCursor
        llm = ChatCursor()
        llm.invoke("Hello!")
        sys.exit(3)
        """
    )
    assert (ran.err, ran.status) == ("", 3)
    assert ran.processes() == {}
    assert ran.files() == []


@pytest.mark.clause("RUNTIME-8")
def test_daemon_threads_in_a_call_do_not_hold_up_the_exit(
    scripts: Scripts, cloud: CursorCloud
) -> None:
    cloud.brain = lambda run: [Hang()]
    ran = scripts.run(
        """
        import threading, time
        from langchain_cursor import ChatCursor, CursorError
        def call():
            try:
                llm.invoke("x")
            except CursorError:
                pass
        llm = ChatCursor()
        threading.Thread(target=call, daemon=True).start()
        time.sleep(2)
        """
    )
    assert (ran.err, ran.status) == ("", 0)
    assert ran.seconds < 10
    assert ran.processes() == {}
    assert ran.files() == []


@pytest.mark.clause("RUNTIME-8")
def test_calls_while_the_interpreter_ends_are_refused_clearly(scripts: Scripts) -> None:
    ran = scripts.run(
        """
        import atexit
        from langchain_cursor import ChatCursor, CursorClosedError
        llm = ChatCursor()
        def late():
            try:
                llm.invoke("x")
            except CursorClosedError as error:
                print(error)
        atexit.register(late)  # runs last: before the model registered its own
        print(llm.invoke("say: first").text)
        """
    )
    assert (ran.err, ran.status) == ("", 0)
    assert ran.out.splitlines()[0] == "first"
    assert "interpreter is ending" in ran.out.splitlines()[1]
    assert ran.processes() == {}


@pytest.mark.clause("RUNTIME-9")
def test_sigkill_of_python_leaves_nothing(scripts: Scripts) -> None:
    process, mark = scripts.start(
        """
        import time
        from langchain_cursor import ChatCursor
        llm = ChatCursor()
        llm.invoke("x")
        print("called", flush=True)
        time.sleep(60)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "called\n"
    assert len(marked_processes(mark)) == 2
    process.kill()
    process.communicate(timeout=5)
    assert until(lambda: not marked_processes(mark), 2)
    assert until(lambda: not list(scripts.temporary.iterdir()), 2)


@pytest.mark.clause("RUNTIME-9")
def test_what_a_killed_process_with_the_stock_bridge_leaves_is_swept(scripts: Scripts) -> None:
    process, mark = scripts.start(
        """
        import time
        from langchain_cursor import ChatCursor
        llm = ChatCursor(bridge_extension=False)
        llm.invoke("x")
        print("called", flush=True)
        time.sleep(60)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "called\n"
    process.kill()
    process.communicate(timeout=5)
    for pid in marked_processes(mark):  # the stock bridge cannot tell that its parent has gone
        os.kill(pid, signal.SIGKILL)
    assert len(list(scripts.temporary.iterdir())) == 1
    ran = scripts.run(
        """
        from langchain_cursor import ChatCursor
        ChatCursor().invoke("x")
        """
    )
    assert (ran.err, ran.status) == ("", 0)
    assert ran.files() == []


@pytest.mark.clause("RUNTIME-10")
def test_ctrl_c_in_a_terminal_reaches_python_only(scripts: Scripts) -> None:
    process, mark = scripts.start(
        """
        import os, signal
        from langchain_cursor import ChatCursor
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal
        llm = ChatCursor()
        llm.invoke("x")
        try:
            os.killpg(0, signal.SIGINT)
            signal.pause()
        except KeyboardInterrupt:
            print(llm.invoke("say: survived").text)
        from langchain_cursor import users
        (runtime,) = users._runtimes.values()
        print(len(runtime._processes), runtime._bridge.process.pid)
        """
    )
    out, err = process.communicate(timeout=30)
    assert err == ""
    assert out.splitlines()[0] == "survived"
    assert marked_processes(mark) == {}


@pytest.mark.clause("RUNTIME-10")
def test_ctrl_c_during_a_call_cancels_the_run(scripts: Scripts, cloud: CursorCloud) -> None:
    cloud.brain = lambda run: [Hang()] if "hang" in run.text else [Text("next")]
    process, mark = scripts.start(
        """
        import signal
        from langchain_cursor import ChatCursor
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal
        llm = ChatCursor()
        try:
            llm.invoke("hang")
        except KeyboardInterrupt:
            print(llm.invoke("x").text)
        """
    )
    cloud.wait_for(lambda cloud: cloud.runs, timeout=20)
    process.send_signal(signal.SIGINT)
    cloud.wait_for(lambda cloud: cloud.runs[0].outcome == "cancelled", timeout=1)
    out, err = process.communicate(timeout=30)
    assert (out, err) == ("next\n", "")
    assert marked_processes(mark) == {}


@pytest.mark.clause("RUNTIME-8")
def test_a_stream_that_is_left_open_at_exit_prints_nothing(scripts: Scripts) -> None:
    ran = scripts.run(
        """
        import time
        from langchain_cursor import ChatCursor
        from langchain_cursor_fakes import CursorCloud, Hang, Text
        with CursorCloud(lambda run: [*(Text(f"{n} ") for n in range(1500)), Hang()]) as cloud:
            model = ChatCursor(base_url=cloud.url, max_retries=0)
            stream = model.stream("x")
            next(stream)
            time.sleep(1)
        """
    )
    assert (ran.out, ran.err, ran.status) == ("", "", 0)
    assert ran.processes() == {}
    assert ran.files() == []


@pytest.mark.clause("RUNTIME-8")
def test_close_in_an_exit_handler_works(scripts: Scripts) -> None:
    ran = scripts.run(
        """
        import atexit
        from langchain_cursor import ChatCursor
        llm = ChatCursor(bridge_extension=False)
        llm.invoke("x")
        atexit.register(llm.close)  # runs before the model's own
        """
    )
    assert (ran.err, ran.status) == ("", 0)
    assert ran.processes() == {}
    assert ran.files() == []


@pytest.mark.clause("RUNTIME-8")
def test_an_exit_while_a_runtime_is_being_ended_leaves_nothing(
    scripts: Scripts, cloud: CursorCloud
) -> None:
    cloud.delays = Delays(telemetry=5)  # closing an agent waits for it
    ran = scripts.run(
        """
        import gc, time
        from langchain_cursor import ChatCursor, users
        llm = ChatCursor(bridge_extension=False, keep_alive=0.2)
        llm.invoke("x")
        del llm
        gc.collect()
        while users._runtimes:
            time.sleep(0.01)
        time.sleep(0.1)
        """
    )
    assert (ran.err, ran.status) == ("", 0)
    assert ran.processes() == {}
    assert ran.files() == []


@pytest.mark.clause("RUNTIME-13")
def test_a_deleted_working_directory_does_not_matter(scripts: Scripts) -> None:
    ran = scripts.run(
        """
        import os, tempfile
        from langchain_cursor import ChatCursor
        directory = tempfile.mkdtemp()
        os.chdir(directory)
        os.rmdir(directory)
        print(ChatCursor().invoke("say: fine").text)
        """
    )
    assert (ran.out, ran.err) == ("fine\n", "")


@pytest.mark.clause("RUNTIME-11")
def test_a_stream_of_the_parents_is_refused_in_a_forked_child(scripts: Scripts) -> None:
    ran = scripts.run(
        """
        import os
        from langchain_cursor import ChatCursor, CursorClosedError
        stream = ChatCursor().stream("count to 3000")
        next(stream)
        child = os.fork()
        if child == 0:
            try:
                list(stream)
            except CursorClosedError as error:
                print(error, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(len(list(stream)) > 2000)
        """,
        "-W",
        "ignore::DeprecationWarning",
    )
    assert (ran.err, ran.status) == ("", 0)
    refused, whole = ran.out.splitlines()
    assert "before the process forked" in refused
    assert whole == "True"


FORK = """
    import os, sys
    from langchain_cursor import ChatCursor
    llm = ChatCursor()
    print(llm.invoke("say: parent").text, flush=True)
    child = os.fork()
    if child == 0:
        print(llm.invoke("say: child").text, flush=True)
        {end}
    assert os.waitpid(child, 0)[1] == 0
    print(llm.invoke("say: parent again").text, flush=True)
    from langchain_cursor import users
    (runtime,) = users._runtimes.values()
    print("one bridge", len(runtime._processes))
"""


@pytest.mark.clause("RUNTIME-11")
@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)"])
def test_a_forked_child_answers_and_leaves_its_parents_bridge_alone(
    scripts: Scripts, end: str
) -> None:
    # Python 3.12 and later warn that a process with threads forks; that is the test's own doing.
    ran = scripts.run(FORK.format(end=end), "-W", "ignore::DeprecationWarning")
    assert (ran.err, ran.status) == ("", 0)
    assert ran.out.splitlines() == ["parent", "child", "parent again", "one bridge 1"]
    assert until(lambda: not ran.processes(), 3)
    assert until(lambda: not ran.files(), 3)


@pytest.mark.clause("RUNTIME-11")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_children_answer_and_leave_nothing(
    scripts: Scripts, method: str, tmp_path: Path
) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        f"""
import multiprocessing
from langchain_cursor import ChatCursor

llm = ChatCursor()

def work(word):
    return llm.invoke("say: " + word).text

if __name__ == "__main__":
    print(work("parent"), flush=True)
    context = multiprocessing.get_context({method!r})
    with context.Pool(2) as pool:
        print(sorted(pool.map(work, ["one", "two"])))
    process = context.Process(target=work, args=("three",))
    process.start()
    process.join()
    print(process.exitcode)
    print(work("parent again"))
"""
    )
    run = {
        "fork": f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')",
        # A spawned child imports the main module from its file.
        "spawn": (
            f"import subprocess, sys;sys.exit(subprocess.call([sys.executable, {str(script)!r}]))"
        ),
    }
    ran = scripts.run(
        run[method],
        "-W",
        "ignore::DeprecationWarning",
    )
    assert (ran.err, ran.status) == ("", 0)
    assert ran.out.splitlines() == ["parent", "['one', 'two']", "0", "parent again"]
    assert until(lambda: not ran.processes(), 3)
    assert until(lambda: not ran.files(), 3)


def _bridge_pid(model: ChatCursor) -> int:
    return _runtime(model)._bridge.process.pid


def _runtime(model: ChatCursor) -> Any:
    from langchain_cursor import users

    (runtime,) = [r for r in users._runtimes.values() if model._user._id in r.users]
    return runtime


@pytest.mark.clause("RUNTIME-12")
@pytest.mark.asyncio
async def test_many_calls_survive_a_kill_between_them(own_chat: Chat) -> None:
    model = own_chat()
    await model.ainvoke("x")
    for _ in range(3):
        os.kill(_bridge_pid(model), signal.SIGKILL)
        answers = await asyncio.gather(*(model.ainvoke(f"say: {n}") for n in range(10)))
        assert [answer.text for answer in answers] == [str(n) for n in range(10)]
    assert len(_runtime(model)._processes) == 1


@pytest.mark.clause("RUNTIME-13")
@pytest.mark.clause("SECURITY-13")
def test_the_temporary_root_is_private_and_the_home_untouched(own_chat: Chat) -> None:
    model = own_chat()
    model.invoke("x")
    root: Path = _runtime(model)._scratch.root
    assert root.stat().st_mode & 0o777 == 0o700
    assert list((root / "workspace").iterdir()) == []
    model.close()
    assert not root.exists()
    assert not Path(os.environ["HOME"]).exists()


@pytest.mark.clause("RUNTIME-13")
@pytest.mark.clause("SECURITY-11")
def test_no_token_and_no_key_stand_on_a_command_line_or_in_an_environment(own_chat: Chat) -> None:
    model = own_chat()
    model.invoke("x")
    bridge = _runtime(model)._bridge
    token = bridge.client._transport.auth_token
    process = Path(f"/proc/{bridge.process.pid}")
    for name in ("cmdline", "environ"):
        text = (process / name).read_bytes().decode()
        assert token not in text
        assert model.api_key is not None
        assert model.api_key.get_secret_value() not in text


@pytest.mark.clause("RUNTIME-14")
@pytest.mark.clause("SECURITY-7")
def test_the_bridges_stderr_goes_to_the_logger(
    own_chat: Chat, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_DEBUG_RPC", "1")
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_DEBUG_STARTUP", "1")
    caplog.set_level("INFO", logger="langchain_cursor.bridge")
    model = own_chat()
    model.invoke("x")
    assert "startup: server started" in caplog.text
    assert model.api_key is not None
    assert model.api_key.get_secret_value() not in caplog.text


def _launcher(path: Path, before: str = "") -> str:
    """A launcher of one's own for the stock bridge, as CURSOR_SDK_BRIDGE_BIN wants it."""
    import cursor_sdk

    root = Path(cursor_sdk.__file__).parent / "_vendor" / "bridge"
    path.write_text(
        f'#!/bin/sh\n{before}\n"{root}/bin/node" "{root}/dist/bin/cursor-sdk-bridge.js" "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.clause("RUNTIME-14")
def test_a_bridge_that_talks_without_end_does_not_block(
    own_chat: Chat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A megabyte is many times what a pipe holds unread.
    talk = "i=0; while [ $i -lt 1000 ]; do printf '%01000d\\n' $i >&2; i=$((i+1)); done"
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_BIN", _launcher(tmp_path / "bridge", talk))
    assert own_chat().invoke("say: heard").text == "heard"


@pytest.mark.clause("BRIDGE-5")
def test_a_launcher_of_ones_own_is_respected_and_ended_whole(
    own_chat: Chat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cloud: CursorCloud
) -> None:
    mark = f"mark-{tmp_path}"
    monkeypatch.setenv("LANGCHAIN_CURSOR_TEST_MARK", mark)
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_BIN", _launcher(tmp_path / "bridge"))
    model = own_chat()
    assert model.invoke("say: own").text == "own"
    assert not _runtime(model)._bridge.can.extension
    commands = marked_processes(mark).values()
    assert sorted(Path(command.split()[0]).name for command in commands) == ["node", "sh"]
    model.close()
    assert marked_processes(mark) == {}


@pytest.mark.clause("BRIDGE-5")
def test_a_running_bridge_of_ones_own_is_used_and_not_ended(
    own_chat: Chat, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = own_chat(bridge_extension=False)
    host.invoke("x")
    bridge = _runtime(host)._bridge
    transport = bridge.client._transport
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_URL", transport.base_url)
    with pytest.raises(CursorStartupError, match="CURSOR_SDK_BRIDGE_TOKEN"):
        own_chat().invoke("x")
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_TOKEN", transport.auth_token)
    guest = own_chat()
    assert guest.invoke("say: guest").text == "guest"
    assert _runtime(guest)._processes == set()
    guest.close()
    assert bridge.process.alive


@pytest.mark.clause("BRIDGE-4")
def test_the_stock_bridge_serves_when_the_extension_does_not_start(
    own_chat: Chat,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = tmp_path / "extension.mjs"
    broken.write_text("throw new Error('not with this version')")
    monkeypatch.setattr("langchain_cursor.bridge.launch.EXTENSION", broken)
    model = own_chat()
    assert model.invoke("say: stock").text == "stock"
    os.kill(_bridge_pid(model), signal.SIGKILL)
    assert model.invoke("say: again").text == "again"
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert [r.name for r in warnings] == ["langchain_cursor"]  # told once
    assert "not with this version" in warnings[0].getMessage()
