"""Runs each behaviour on its backends: parameters, marks, cassettes, and the live account."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import cursor_sdk
import pytest
from vcr import VCR
from vcr.cassette import Cassette
from vcr.stubs import httpx_stubs

from tests.behaviour.account import NO_KEY, Account, announcement, most_runs, summary
from tests.behaviour.backends import (
    NAMES,
    Backend,
    BridgeBackend,
    CassetteBackend,
    FakeBackend,
    LiveBackend,
)
from tests.behaviour.collected import Collected, One, collect
from tests.behaviour.isolation import isolate, no_process
from tests.behaviour.recording import Tape, cassette_name, is_recording
from tests.conftest import COLLECTED
from tests.spec_matrix import as_test

HERE = Path(__file__).parent
ACCOUNT = Account.from_environment()  # now: tests run in an environment without it
HOME = str(Path.home())  # for the same reason
TAPE = pytest.StashKey[Tape]()
PASSED = pytest.StashKey[bool]()
SENT = pytest.StashKey[list[str]]()


# --- Which test runs where ------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        named = metafunc.definition.get_closest_marker("backends")
        names = [name for name in NAMES if named is None or name in named.args]
        parameters = [pytest.param(name, id=name, marks=_marks(name)) for name in names]
        metafunc.parametrize("backend", parameters, indirect=True)


def _marks(name: str) -> list[pytest.MarkDecorator]:
    mark = getattr(pytest.mark, name)
    # pytest-recording: records or plays the cassette.
    return [mark, pytest.mark.vcr] if name == "cassette" else [mark]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = [place for place, item in enumerate(items) if HERE in item.path.parents]
    ours = [items[place] for place in places]
    # Backend by backend, so that no bridge of another test is about while cassettes are played.
    for place, item in zip(places, sorted(ours, key=_rank), strict=True):
        items[place] = item
    if not config.getoption("--live"):
        live = [item for item in ours if item.get_closest_marker("live")]
        config.hook.pytest_deselected(items=live)
        items[:] = [item for item in items if item not in live]
        return
    for item in filter(_on_account, ours):
        named = item.get_closest_marker("backends")
        if ACCOUNT is None:
            item.add_marker(pytest.mark.skip(reason=NO_KEY))
        elif named is not None and "live" not in named.args:
            why = f"not recorded anew: {named.kwargs['because']}"
            item.add_marker(pytest.mark.skip(reason=why))


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, name in enumerate(NAMES) if item.get_closest_marker(name)), -1)


def _on_account(item: pytest.Item) -> bool:
    """Whether a test costs the account runs: it is live, or records a cassette from it."""
    name = "cassette" if _is_recording(item.config) else "live"
    marked = item.get_closest_marker("live") or item.get_closest_marker(name)
    return bool(marked and item.config.getoption("--live"))


@pytest.fixture
def collected(pytestconfig: pytest.Config) -> Collected:
    """Every test of this suite."""
    # This run has collected them, or else another does.
    ours = [item for item in pytestconfig.stash[COLLECTED] if HERE in item.path.parents]
    parts = any("::" in argument for argument in pytestconfig.args)
    if parts or {item.path for item in ours} < set(HERE.glob("test_*.py")):
        return collect()
    return tuple(One(test.id, test.backend) for test in map(as_test, ours))


# --- Backends -------------------------------------------------------------------------------------


@pytest.fixture
def backend(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vcr: Cassette | None,
) -> Iterator[Backend]:
    """What the test's models run on."""

    def bridge(own: bool) -> BridgeBackend:
        cloud = request.getfixturevalue("cloud")
        return BridgeBackend(cloud, tmp_path, monkeypatch, own=own)

    def live() -> LiveBackend:
        assert ACCOUNT is not None  # else the test is skipped
        _count_runs(monkeypatch, request.config.stash.setdefault(SENT, []), request.node.nodeid)
        return LiveBackend(ACCOUNT, monkeypatch)

    made: Backend
    if request.param == "fake":
        made = FakeBackend()
    elif request.param == "bridge":
        made = bridge(own=False)
    elif request.param == "live":
        made = live()
    else:
        tape = request.config.stash[TAPE]
        assert vcr is not None
        source: Backend | None = None
        if tape.recording:
            source = live() if _on_account(request.node) else bridge(own=True)
        else:
            isolate(monkeypatch)
        monkeypatch.setattr("langchain_cursor.runtime.start_bridge", tape.start_bridge)
        monkeypatch.setattr(httpx_stubs, "CannotOverwriteExistingCassetteException", tape.miss)
        made = CassetteBackend(tape, vcr, source)
    yield made
    made.close()
    if request.param == "cassette" and not request.config.stash[TAPE].recording:
        assert subprocess.Popen is no_process
    if request.param == "bridge" and not request.node.get_closest_marker("backends"):
        # It runs on an account too: what is announced there is proved here, run by run.
        assert len(made.received) <= most_runs(request.node)


def _count_runs(patch: pytest.MonkeyPatch, sent: list[str], test: str) -> None:
    send = cursor_sdk.AsyncAgent.send

    async def counted(agent: Any, *arguments: Any, **named: Any) -> Any:
        sent.append(test)
        return await send(agent, *arguments, **named)

    patch.setattr(cursor_sdk.AsyncAgent, "send", counted)


# --- Cassettes ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vcr_cassette_dir(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    # What is recorded takes the place of a good cassette only when all has gone well.
    if _is_recording(pytestconfig):
        return str(tmp_path_factory.mktemp("recorded"))
    return str(pytestconfig.getoption("--cassettes"))


@pytest.fixture
def default_cassette_name(request: pytest.FixtureRequest) -> str:
    return cassette_name(request.node.nodeid)


@pytest.fixture
def vcr_config(
    request: pytest.FixtureRequest, vcr_cassette_dir: str, default_cassette_name: str
) -> Iterator[dict[str, Any]]:
    config = request.config
    recording = _is_recording(config)
    name = f"{default_cassette_name}.yaml"
    path = Path(config.getoption("--cassettes"), name)
    if not (recording or path.is_file()):
        pytest.fail(f"There is no cassette {path}. Record it: make record", pytrace=False)
    key = ACCOUNT.key if ACCOUNT is not None else ""
    tape = Tape(
        name,
        recording=recording,
        cloud="account" if _on_account(request.node) else "stand-in",
        own=(key, HOME, tempfile.gettempdir(), socket.gethostname()),
    )
    config.stash[TAPE] = tape  # for the hook that follows
    yield {}
    del config.stash[TAPE]
    recorded = Path(vcr_cassette_dir, name)
    # vcrpy has written it by now, unless it holds what belongs in no repository.
    if recording and tape.checked and request.node.stash.get(PASSED, False) and recorded.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        shutil.copyfile(recorded, part)
        part.replace(path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


def pytest_recording_configure(config: pytest.Config, vcr: VCR) -> None:
    if tape := config.stash.get(TAPE, None):  # else another suite's test has that mark
        tape.configure(vcr)


def _is_recording(config: pytest.Config) -> bool:
    return is_recording(config.getoption("--record-mode"))


# --- The live account -----------------------------------------------------------------------------


def pytest_collection_finish(session: pytest.Session) -> None:
    asked = [
        item
        for item in session.items
        if HERE in item.path.parents and _on_account(item) and not item.get_closest_marker("skip")
    ]
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if asked and terminal is not None:
        terminal.write_line(announcement(asked))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--live"):
        lines = summary(terminalreporter.stats, config.stash.setdefault(SENT, []))
        if lines:
            terminalreporter.section("live: what has held on the account")
            for line in lines:
                terminalreporter.write_line(line)
