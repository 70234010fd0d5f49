"""Faults of the bridge's start, of the disk, and Ctrl-C."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import cursor_sdk
import pytest

from langchain_cursor import ChatCursor
from langchain_cursor_fakes import Hang, Text
from tests.conftest import API_KEY, Scripts, marked_processes, until
from tests.faults.conftest import SYNC_MODES, Real, ask, check, pid_of, runtime_of, see

pytestmark = pytest.mark.bridge

VENDORED = Path(cursor_sdk.__file__).parent / "_vendor" / "bridge"
TOKEN = "tok-0123456789-secret"


def launcher(path: Path, *before: str) -> str:
    """A launcher of one's own for the stock bridge, which does something else first."""
    lines = ["#!/bin/sh", *before]
    lines.append(f'exec "{VENDORED}/bin/node" "{VENDORED}/dist/bin/cursor-sdk-bridge.js" "$@"')
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def refused(
    real: Real,
    model: ChatCursor,
    clause: str,
    within: float = 2.0,
    modes: tuple[str, ...] = ("invoke", "astream"),
) -> str:
    """Make calls that fail at the start; what the last error says."""
    for mode in modes:
        seen = see(lambda mode=mode: ask(model, mode))
        check(seen, clause, within, [*real.secrets(model), TOKEN])
        assert not runtime_of(model)._processes
    return str(seen.error)


def works(model: ChatCursor) -> bool:
    """Whether the next call works, once the fault is over."""
    return bool(model.invoke("say: works").text == "works")


@pytest.mark.clause("FAULT-20")
@pytest.mark.clause("BRIDGE-6")
@pytest.mark.parametrize(
    ("last", "told"),
    [
        ("echo no luck >&2; exit 7", r"ended at its start with status 7. Its last lines were:"),
        ("exit 0", "ended at its start with status 0. It wrote nothing to stderr."),
        ("echo no luck >&2; kill -9 $$", "ended at its start with status -9."),
    ],
)
def test_a_bridge_that_ends_at_its_start(
    real: Real, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, last: str, told: str
) -> None:
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_BIN", launcher(tmp_path / "bridge", last))
    model = real.own(timeout=20.0)
    message = refused(real, model, "FAULT-20")
    assert told in message
    assert ("no luck" in message) is ("no luck" in last)


@pytest.mark.clause("FAULT-20")
def test_an_extension_and_a_stock_bridge_that_do_not_start(
    real: Real, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NODE_OPTIONS", "--require /no/such/file.cjs")
    model = real.own(timeout=20.0)
    message = refused(real, model, "FAULT-20", modes=("ainvoke",))
    assert "Cannot find module '/no/such/file.cjs'" in message
    assert "The bridge does not start with ChatCursor's extension" in caplog.text
    monkeypatch.delenv("NODE_OPTIONS")
    assert works(model)


@pytest.mark.clause("FAULT-21")
@pytest.mark.clause("BRIDGE-6")
def test_a_bridge_that_never_gets_ready(
    real: Real, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("langchain_cursor.bridge.launch.START_TIMEOUT", 0.5)
    script = launcher(tmp_path / "bridge", "echo still loading >&2; sleep 60")
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_BIN", script)
    model = real.own(timeout=None)
    message = refused(real, model, "FAULT-21", within=0.5)
    assert "not ready after 0.5 s. Its last lines were:\nstill loading" in message
    model = real.own(timeout=0.3)  # a call does not wait for the bridge longer than for its answer
    check(see(lambda: ask(model, "invoke")), "FAULT-4", 0.3, real.secrets(model))
    assert until(lambda: not runtime_of(model)._processes)


@pytest.mark.clause("FAULT-22")
@pytest.mark.clause("BRIDGE-6")
def test_a_bridge_that_is_missing_or_cannot_be_run(
    real: Real, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    plain.chmod(0o644)
    cases = {
        str(tmp_path / "missing"): "is not a file",
        str(tmp_path): "is not a file",
        str(plain): "Permission denied",
    }
    for path, told in cases.items():
        monkeypatch.setenv("CURSOR_SDK_BRIDGE_BIN", path)
        model = real.own(timeout=20.0)
        message = refused(real, model, "FAULT-22")
        assert told in message
        assert path in message


@pytest.mark.clause("FAULT-22")
def test_a_wheel_without_its_bridge(
    real: Real, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr("langchain_cursor.bridge.launch.vendored", lambda file: None)
        model = real.own(timeout=20.0)
        assert "no bridge for this platform" in refused(real, model, "FAULT-22")
    assert works(model)


@pytest.mark.clause("FAULT-23")
@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("{oops", "an address that is no JSON"),
        ("[1]", "an address that is no JSON"),
        ('{"schemaVersion": 2}', "Unsupported bridge discovery schema: 2"),
        (
            '{"schemaVersion":1,"transport":"tcp","protocol":"connect","url":"http://127.0.0.1:9",'
            '"authTokenFile":"/no/such/token"}',
            "No such file or directory",
        ),
    ],
)
def test_a_bridge_whose_address_cannot_be_read(
    real: Real, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str, told: str
) -> None:
    says = f"echo 'cursor-sdk-bridge ready {address}' >&2; exec sleep 60"
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_BIN", launcher(tmp_path / "bridge", says))
    assert told in refused(real, real.own(timeout=20.0), "FAULT-23")


@pytest.mark.clause("FAULT-24")
def test_key_and_token_are_in_no_error_and_no_log(
    real: Real,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    ready = (
        'cursor-sdk-bridge ready {"schemaVersion":1,"transport":"tcp","protocol":"connect",'
        f'"url":"http://127.0.0.1:9","authToken":"{TOKEN}"}}'
    )
    key = f"{API_KEY}_{uuid.uuid4().hex}"
    says = f"echo '{ready}' >&2; echo '{ready}' >&2; echo 'key {key}, token {TOKEN}' >&2"
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_BIN", launcher(tmp_path / "bridge", says, "exit 3"))
    model = real.model(api_key=key, timeout=20.0)
    seen = see(lambda: ask(model, "invoke"))
    check(seen, "FAULT-24", 2.0, [key, TOKEN])
    assert "key ***, token ***" in str(seen.error)
    assert key not in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.clause("FAULT-25")
def test_a_loader_that_fails_leaves_no_bridge(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("no cursor_sdk here")

    monkeypatch.setattr("langchain_cursor.bridge.launch._import_sdk", missing)
    model = real.own(timeout=20.0)
    for mode in SYNC_MODES:
        with pytest.raises(ImportError, match="no cursor_sdk here"):
            ask(model, mode)
        assert until(lambda: not runtime_of(model)._processes)
    monkeypatch.undo()


# --- The disk -------------------------------------------------------------------------------------


@pytest.mark.clause("FAULT-26")
def test_a_temporary_directory_that_cannot_be_written(
    real: Real, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    model = real.own(timeout=20.0)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "file"))  # for root, too, it is none
        message = refused(real, model, "FAULT-26")
        assert str(tmp_path / "file") in message
        assert "TMPDIR" in message
    assert works(model)


FULL = """
const fs = require("node:fs");
const full = () => fs.existsSync(process.env.DISK_IS_FULL);
const refuse = (call) => Object.assign(new Error(`ENOSPC: no space left on device, ${call}`), {
  code: "ENOSPC", errno: -28, syscall: call,
});
for (const name of ["writeFile", "mkdir", "mkdtemp", "appendFile", "open"]) {
  const sync = fs[`${name}Sync`], later = fs.promises[name];
  const reads = (flags) => name === "open" && (flags === undefined || flags === "r");
  fs[`${name}Sync`] = (...given) => {
    if (full() && !reads(given[1])) throw refuse(name);
    return sync(...given);
  };
  fs.promises[name] = async (...given) => {
    if (full() && !reads(given[1])) throw refuse(name);
    return later(...given);
  };
}
require("node:module").syncBuiltinESMExports();
"""


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file which, while it is there, makes every write of a bridge fail for want of room."""
    preload = tmp_path / "full.cjs"
    preload.write_text(FULL)
    monkeypatch.setenv("NODE_OPTIONS", f"--require {preload}")
    monkeypatch.setenv("DISK_IS_FULL", str(tmp_path / "full"))
    return tmp_path / "full"


@pytest.mark.clause("FAULT-27")
def test_a_disk_that_is_full_when_the_bridge_starts(real: Real, full_disk: Path) -> None:
    full_disk.touch()
    model = real.own(timeout=20.0)
    # Once: it starts and fails with the extension and without.
    message = refused(real, model, "FAULT-27", within=20.0, modes=("stream",))
    assert "ENOSPC: no space left on device" in message
    full_disk.unlink()
    assert works(model)


@pytest.mark.clause("FAULT-28")
def test_a_disk_that_fills_up_later_does_not_matter(real: Real, full_disk: Path) -> None:
    model = real.own(timeout=20.0)
    assert works(model)
    pid = pid_of(model)
    full_disk.touch()
    real.script([Text("works")])
    for mode in SYNC_MODES:
        assert ask(model, mode) == "works"
    assert pid_of(model) == pid


@pytest.mark.clause("FAULT-29")
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process: Linux only")
def test_a_stock_bridge_on_a_disk_that_fills_up_later(real: Real) -> None:
    model = real.own(timeout=20.0, bridge_extension=False)
    assert works(model)
    pid = pid_of(model)
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))  # no file may grow
    for mode in SYNC_MODES:
        check(see(lambda mode=mode: ask(model, mode)), "FAULT-29", 5.0, real.secrets(model))
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert works(model)
    assert pid_of(model) == pid


@pytest.mark.clause("FAULT-27")
def test_a_process_that_may_write_nothing(scripts: Scripts) -> None:
    ran = scripts.run(
        """
        import resource, tempfile
        from langchain_cursor import ChatCursor, CursorStartupError
        tempfile.gettempdir()  # else this finds none that it can write to
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        llm = ChatCursor()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            llm.invoke("x")
        except CursorStartupError as error:
            print("ended at its start" in str(error))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        print(llm.invoke("say: works").text)
        """
    )
    assert ran.out.splitlines() == ["True", "works"]
    assert ran.status == 0
    assert ran.processes() == {}
    assert ran.files() == []


# --- Ctrl-C ---------------------------------------------------------------------------------------


@pytest.mark.clause("FAULT-30")
def test_ctrl_c_to_everything_in_the_terminal(scripts: Scripts, cloud: Any) -> None:
    cloud.brain = lambda run: [Text("a "), Hang()] if "hang" in run.text else [Text("works")]
    process, mark = scripts.start(
        """
        import asyncio, signal
        from langchain_cursor import ChatCursor
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal
        llm = ChatCursor()

        async def many():
            await asyncio.gather(*(llm.ainvoke("hang") for _ in range(3)))

        for call in (
            lambda: llm.invoke("hang"),
            lambda: list(llm.stream("hang")),
            lambda: asyncio.run(many()),
        ):
            try:
                call()
            except KeyboardInterrupt:
                print(llm.invoke("x").text, flush=True)
        """
    )
    try:
        for runs in (1, 3, 7):  # with those of the calls that worked between them
            cloud.wait_for(lambda cloud, runs=runs: len(cloud.runs) == runs, timeout=20)
            os.killpg(process.pid, signal.SIGINT)
            cloud.wait_for(
                lambda cloud: all(run.outcome != "running" for run in cloud.runs), timeout=3
            )
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (out.splitlines(), err) == (["works"] * 3, "")
    outcomes = [run.outcome for run in cloud.runs if "hang" in run.received.text]
    assert outcomes == ["cancelled"] * 5
    assert marked_processes(mark) == {}
    assert list(scripts.temporary.iterdir()) == []
