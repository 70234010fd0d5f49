"""Where faults are put into: the real bridge over the stand-in cloud, and the fake in process."""

from __future__ import annotations

import asyncio
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conftest import as_new
from langchain_cursor import ChatCursor, CursorError, errors, users
from langchain_cursor.runtime import Runtime
from langchain_cursor_fakes import CursorCloud, FakeCursor
from tests.conftest import API_KEY, ROOT, marked_processes, until

MODES = ["invoke", "stream", "ainvoke", "astream"]
SYNC_MODES = MODES[:2]


def ask(model: ChatCursor, mode: str, **options: Any) -> str:
    """Ask in one of the ways in which LangChain does; the whole text."""

    async def astream() -> str:
        return "".join([str(chunk.content) async for chunk in model.astream("x", **options)])

    if mode == "invoke":
        return str(model.invoke("x", **options).content)
    if mode == "stream":
        return "".join(str(chunk.content) for chunk in model.stream("x", **options))
    if mode == "ainvoke":
        return str(asyncio.run(model.ainvoke("x", **options)).content)
    return asyncio.run(astream())


def runtime_of(model: ChatCursor) -> Any:
    """The runtime that serves a model."""
    (found,) = runtimes_of(model)
    return found


def runtimes_of(model: ChatCursor) -> list[Runtime]:
    user = (model.__pydantic_private__ or {}).get("_user")  # made by the first call
    return [r for r in users._runtimes.values() if user is not None and user._id in r.users]


def pid_of(model: ChatCursor) -> int:
    """The bridge process that serves a model."""
    bridge: Any = runtime_of(model)._bridge
    pid: int = bridge.process.pid
    return pid


def table(clause: str) -> list[str]:
    """The cells of the row of spec/errors.md that begins with a name."""
    for line in (ROOT / "spec" / "errors.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip(" `") for cell in line.strip().strip("|").split("|")]
        if cells[0] == clause:
            return cells
    raise LookupError(clause)


@dataclass
class Seen:
    """What a caller saw of a fault."""

    error: CursorError
    seconds: float
    text: str = field(repr=False)  # everything that could be printed of it


def see(call: Callable[[], object]) -> Seen:
    """Make a call that fails."""
    started = time.monotonic()
    with pytest.raises(CursorError) as caught:
        call()
    seconds = time.monotonic() - started
    error = caught.value
    printed = [str(error), repr(error), *traceback.format_exception(error)]
    return Seen(error, seconds, "\n".join(printed))


def check(
    seen: Seen, clause: str, within: float, secrets: list[str], column: int = 2, error: str = ""
) -> None:
    """Check what was seen against the row of the table, the time and the secrets.

    The row may name several classes; then `error` is the one that is due here.
    """
    cells = table(clause)
    names = cells[column].replace("`", "").split(" or ")
    assert type(seen.error).__name__ in names
    if error:
        assert type(seen.error).__name__ == error
    assert isinstance(seen.error, getattr(errors, type(seen.error).__name__))
    assert seen.error.is_retryable is (cells[column + 1] == "yes")
    assert seen.seconds < within + 1
    for secret in secrets:
        assert secret not in seen.text


class Real:
    """ChatCursor on the real bridge, over a stand-in cloud."""

    name = "bridge"

    def __init__(self, cloud: CursorCloud) -> None:
        self.cloud = cloud
        self.key, self.victims_key = (f"{API_KEY}_{uuid.uuid4().hex}" for _ in range(2))
        self.made: list[ChatCursor] = []
        self.keepers: dict[str, ChatCursor] = {}

    def model(self, **options: Any) -> ChatCursor:
        """A model that shares this backend's bridge, unless it has another key."""
        options = {"api_key": self.key, "base_url": self.cloud.url, "max_retries": 0, **options}
        key = options["api_key"]
        if key in (self.key, self.victims_key) and key not in self.keepers:
            # A user of the runtime that outlives the test, and with it the bridge does.
            self.keepers[key] = ChatCursor(api_key=key, base_url=self.cloud.url)
            self.keepers[key].prewarm()
        self.made.append(ChatCursor(**options))
        return self.made[-1]

    def own(self, **options: Any) -> ChatCursor:
        """A model with a bridge of its own."""
        return self.model(api_key=f"{API_KEY}_{uuid.uuid4().hex}", **options)

    def victim(self, **options: Any) -> ChatCursor:
        """A model with a bridge that a test may kill; the next test starts it anew."""
        return self.model(api_key=self.victims_key, **options)

    def script(self, steps: list[Any]) -> None:
        """How runs are answered."""
        self.cloud.brain = lambda run: list(steps)

    def refuse_keys(self, refuse: bool) -> None:
        self.cloud.refuse_all_keys = refuse

    def secrets(self, model: ChatCursor) -> list[str]:
        assert model.api_key is not None
        found = [model.api_key.get_secret_value()]
        bridge: Any = runtime_of(model)._bridge
        if bridge is not None:
            found.append(bridge.client._transport.auth_token)
        return found

    def settled(self) -> bool:
        """Whether no run, no agent and no work is left."""
        runtimes = [runtime for model in self.made for runtime in runtimes_of(model)]
        return all(run.outcome != "running" for run in self.cloud.runs) and not any(
            runtime._agents or runtime._behind or runtime._retired for runtime in runtimes
        )

    def close(self) -> None:
        while self.made:
            self.made.pop().close()


class Fake:
    """ChatCursor on a fake in process."""

    name = "fake"

    def __init__(self) -> None:
        self.fake = FakeCursor()
        self.made: list[ChatCursor] = []

    def model(self, **options: Any) -> ChatCursor:
        options = {"api_key": API_KEY, "sdk_loader": self.fake.sdk, "max_retries": 0, **options}
        self.made.append(ChatCursor(**options))
        return self.made[-1]

    own = victim = model

    def script(self, steps: list[Any]) -> None:
        self.fake.reply_with(lambda run: list(steps))

    def refuse_keys(self, refuse: bool) -> None:
        self.fake.refuse_all_keys = refuse

    def secrets(self, model: ChatCursor) -> list[str]:
        return [API_KEY]

    def settled(self) -> bool:
        leases = [agent for agent in self.fake.agents if agent.is_open and agent.is_lease]
        return len(leases) <= 1 and not any(
            agent.is_open and not agent.is_lease for agent in self.fake.agents
        )

    def close(self) -> None:
        while self.made:
            self.made.pop().close()
        assert not any(agent.is_open for agent in self.fake.agents)


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test of a module leaves a process or a file."""
    temporary = tmp_path_factory.mktemp("faults")
    mark = f"mark-{uuid.uuid4().hex}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        patch.setenv("LANGCHAIN_CURSOR_TEST_MARK", mark)
        yield
        assert until(lambda: not marked_processes(mark), 3), marked_processes(mark)
        assert until(lambda: not list(temporary.iterdir()), 3), list(temporary.iterdir())


@pytest.fixture(scope="module")
def _shared(_nothing_is_left: None) -> Iterator[Real]:
    with CursorCloud() as cloud:
        backend = Real(cloud)
        yield backend
        backend.made += backend.keepers.values()
        backend.close()


@pytest.fixture
def real(_shared: Real) -> Iterator[Real]:
    """The real bridge, one for all tests of a module; see `Real` for others."""
    as_new(_shared.cloud)
    _shared.made = []
    yield _shared
    assert until(_shared.settled), [run.outcome for run in _shared.cloud.runs]
    _shared.close()


@pytest.fixture(params=[pytest.param("bridge", marks=pytest.mark.bridge), "fake"])
def backend(request: pytest.FixtureRequest) -> Iterator[Real | Fake]:
    """The real bridge, and the fake."""
    if request.param == "bridge":
        yield request.getfixturevalue("real")
        return
    fake = Fake()
    yield fake
    assert until(fake.settled)
    fake.close()


@pytest.fixture
def temporary() -> Path:
    """The temporary directory of this module's runtimes."""
    return Path(tempfile.gettempdir())
