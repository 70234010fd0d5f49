"""Runs the examples of the README, the specification and the docstrings, on an offline Cursor."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from doctest import ELLIPSIS
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

if TYPE_CHECKING:  # pytest-xdist loads this once more than there are workers
    from langchain_cursor_fakes import CursorCloud

pages = Sybil(
    parsers=[PythonCodeBlockParser(), DocTestParser(optionflags=ELLIPSIS)],
    patterns=["README.md", "spec/*.md"],
    fixtures=["offline"],
)
docstrings = Sybil(
    parsers=[DocTestParser(optionflags=ELLIPSIS)],
    patterns=["langchain_cursor/**/*.py", "langchain_cursor/*.py", "langchain_cursor_fakes/*.py"],
    fixtures=["offline"],
    document_types={".py": PythonDocStringDocument},
)
pytest_collect_file = (pages + docstrings).pytest()

pytest_plugins = ["pytester"]
REAL = ("bridge", "live")  # the marks of what needs Node
# Documents whose examples start the real bridge.
ON_THE_BRIDGE = frozenset(
    [
        "README.md",
        *("spec/chat.md", "spec/fakes.md", "spec/runtime.md", "spec/streaming.md", "spec/tools.md"),
        *("spec/warm.md", "langchain_cursor/chat_models.py", "langchain_cursor/models.py"),
        "spec/cli.md",
    ]
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the examples that need Node, so that `-m "not bridge"` leaves them out."""
    for item in items:
        if isinstance(item, SybilItem) and item.nodeid.partition("::")[0] in ON_THE_BRIDGE:
            item.add_marker(pytest.mark.bridge)


def pytest_collection_finish(session: pytest.Session) -> None:
    """A run without tests of the bridge needs no Node: see to it that none of them starts it."""
    gc.freeze()  # `gc.collect()` in a test need not look at all tests: 0.15 s each time
    marked = any(item.get_closest_marker(name) for item in session.items for name in REAL)
    if not (marked or _records(session.config)):
        from langchain_cursor.bridge import launch

        launch.node = _no_node


def _records(config: pytest.Config) -> bool:
    return config.getoption("--record-mode") not in (None, "none")


def _no_node(root: Path) -> Path:
    raise AssertionError("what starts the bridge must be marked `bridge`")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The suite runs on all processors, a file's tests in one process.

    What is named or picked out, an account and a recording have one process, unless `-n` is given.
    """
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    if config.option.numprocesses is None and not _alone(config) and _is_whole(config):
        config.option.numprocesses = "auto"
    if config.option.numprocesses and config.option.dist == "no":
        config.option.dist = "loadfile"


def _is_whole(config: pytest.Config) -> bool:
    # pytest-cov has asked for the number of processes before it is decided here.
    picked = ("keyword", "lf", "failedfirst", "stepwise", "usepdb", "collectonly", "cov_source")
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(
        getattr(config.option, name, None) for name in picked
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as there are processors, and one more where there are no bridges to share them."""
    told = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", "")
    if hasattr(os, "sched_getaffinity"):  # less than all in a container
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    more = 1 if config.option.markexpr == "not bridge" else 0
    return int(told) if told.isdecimal() else min(processors, 7) + more


def pytest_configure(config: pytest.Config) -> None:
    """An account is asked by one process, which says what it costs; so are cassettes recorded."""
    if _alone(config) and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--live and --record-mode run in one process: leave out -n")


def _alone(config: pytest.Config) -> bool:
    return config.getoption("--live") or _records(config)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `tests/behaviour`, which pytest reads from here alone."""
    group = parser.getgroup("behaviour")
    group.addoption(
        "--live",
        action="store_true",
        help="also run the behaviours on the Cursor account of CURSOR_API_KEY, which costs runs",
    )
    group.addoption(
        "--cassettes",
        metavar="DIR",
        type=Path,
        default=Path(__file__).parent / "cassettes",
        help="where the cassettes are played from and recorded to",
    )


@pytest.fixture(scope="session")
def session_cloud() -> Iterator[CursorCloud]:
    """One stand-in for Cursor's cloud for the whole run."""
    from langchain_cursor_fakes import CursorCloud

    with CursorCloud() as cloud:
        yield cloud


def as_new(cloud: CursorCloud) -> CursorCloud:
    """The stand-in with nothing changed and nothing recorded."""
    from langchain_cursor_fakes import Delays, answer

    cloud.brain, cloud.delays = answer, Delays()
    cloud.refused_keys, cloud.refuse_all_keys = frozenset(), False
    cloud.system_prompt_allowed, cloud.http_error = True, None
    cloud.clear()
    return cloud


@pytest.fixture
def cloud(session_cloud: CursorCloud) -> CursorCloud:
    """The stand-in, as new for each test."""
    return as_new(session_cloud)


@pytest.fixture
def offline(session_cloud: CursorCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An environment in which `ChatCursor()` talks to the stand-in."""
    # Not by the fixture `cloud`: its name would hide the examples' own.
    cloud = as_new(session_cloud)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("CURSOR_"):
                patch.delenv(name)
        patch.setenv("LANGCHAIN_CURSOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setenv("CURSOR_BACKEND_URL", cloud.url)
        patch.setenv("CURSOR_API_KEY", "crsr_example_0123456789")
        yield
