"""Fixtures of the whole suite: models on an offline Cursor, and scripts with what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
import time
import uuid
import venv
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from packaging.version import Version

if TYPE_CHECKING:  # pytest-xdist loads this once more than there are workers
    from langchain_cursor import ChatCursor
    from langchain_cursor_fakes import CursorCloud

API_KEY = "crsr_test_0123456789abcdef"
ROOT = Path(__file__).resolve().parent.parent

_calm = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=30, **_calm)
# The same examples each time: a change is not held up by what it did not change.
settings.register_profile("ci", max_examples=400, derandomize=True, **_calm)
settings.register_profile("long", max_examples=5000, **_calm)
settings.register_profile("mutants", max_examples=25, derandomize=True, database=None, **_calm)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


COLLECTED = pytest.StashKey[list[pytest.Item]]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note every test, also one that an option deselects: the specification names them all."""
    item.config.stash.setdefault(COLLECTED, []).append(item)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what an installed version cannot show; `make test-min` runs with the oldest."""
    for mark in item.iter_markers("since"):
        package, first = mark.args
        if Version(version(package)) < Version(first):
            pytest.skip(f"only since {package} {first} {mark.kwargs['because']}")


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the account, the settings or the proxies of whoever runs it."""
    for name in list(os.environ):
        if name.startswith("CURSOR_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    base = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("HOME", str(base / "home"))
    monkeypatch.setenv("LANGCHAIN_CURSOR_CACHE_DIR", str(base / "cache"))


@pytest.fixture
def chat(cloud: CursorCloud) -> Callable[..., ChatCursor]:
    """Makes models that talk to the stand-in through the real bridge.

    They share one bridge, which outlives each of them by `keep_alive`.
    """
    from langchain_cursor import ChatCursor

    def make(**arguments: Any) -> ChatCursor:
        return ChatCursor(**{"api_key": API_KEY, "base_url": cloud.url, **arguments})

    return make


@pytest.fixture
def own_chat(cloud: CursorCloud) -> Iterator[Callable[..., ChatCursor]]:
    """Makes models with a bridge of their own, which ends with the test."""
    from langchain_cursor import ChatCursor

    made: list[ChatCursor] = []

    def make(**arguments: Any) -> ChatCursor:
        key = f"{API_KEY}_{uuid.uuid4().hex}"
        made.append(ChatCursor(**{"api_key": key, "base_url": cloud.url, **arguments}))
        return made[-1]

    yield make
    for model in made:
        model.close()


def plain_environment() -> dict[str, str]:
    """The environment for a pytest of a test's own, without what this run's has been told."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


@dataclass
class Ran:
    """A script that has ended, and what it has left behind."""

    status: int
    out: str
    err: str
    seconds: float
    mark: str
    temporary: Path

    def processes(self) -> dict[int, str]:
        """The processes that carry the script's mark, by id."""
        return marked_processes(self.mark)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.temporary.iterdir())


def marked_processes(mark: str) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if command:  # a zombie has none: it has ended
                        found[int(entry.name)] = command
            except OSError:
                continue
    return found


def until(condition: Callable[[], object], seconds: float = 5.0) -> bool:
    """Whether a condition outside this process comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@dataclass
class Scripts:
    """Runs Python scripts as processes of their own, with their own temporary directory."""

    cloud: CursorCloud
    temporary: Path

    def start(
        self, code: str, *flags: str, **environment: str
    ) -> tuple[subprocess.Popen[str], str]:
        mark = f"mark-{uuid.uuid4().hex}"
        env = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ["HOME"],
            "TMPDIR": str(self.temporary),
            "LANGCHAIN_CURSOR_CACHE_DIR": os.environ["LANGCHAIN_CURSOR_CACHE_DIR"],
            "CURSOR_API_KEY": API_KEY,
            "CURSOR_BACKEND_URL": self.cloud.url,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "fakes")]),
            "LANGCHAIN_CURSOR_TEST_MARK": mark,
            # What scripts do is measured too.
            **{k: v for k, v in os.environ.items() if k.startswith("COVERAGE_")},
            **environment,
        }
        process = subprocess.Popen(
            [sys.executable, "-W", "error", *flags, "-c", textwrap.dedent(code)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return process, mark

    def run(self, code: str, *flags: str, timeout: float = 60, **environment: str) -> Ran:
        started = time.monotonic()
        process, mark = self.start(code, *flags, **environment)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        seconds = time.monotonic() - started
        return Ran(process.returncode, out, err, seconds, mark, self.temporary)


@pytest.fixture
def scripts(cloud: CursorCloud, tmp_path: Path) -> Scripts:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return Scripts(cloud, temporary)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = directory.glob("*.whl")
    return built


def install(wheel: Path, home: Path) -> Path:
    """Install a wheel into a new environment, and return its Python."""
    venv.create(home, with_pip=False)
    (site,) = home.glob("[Ll]ib/**/site-packages")
    # A wheel without scripts and data is installed by unpacking it.
    zipfile.ZipFile(wheel).extractall(site)
    # What it depends on is here already; an editable install there does not count, for it is a
    # path file, and those are read in an environment's own directory only.
    dependencies = sysconfig.get_path("purelib")
    (site / "dependencies.pth").write_text(dependencies, encoding="utf-8")
    return home / ("Scripts" if sys.platform == "win32" else "bin") / "python"
