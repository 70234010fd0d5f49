"""The SDK alone, as its own examples use it: a bridge, fresh agents, the default store.

Of what can keep it fast it does the most: the first agent stays open, and with it the executor.
It asks for what `ChatCursor` asks for: no tools, no settings, an empty workspace.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import cursor_sdk

from benchmarks.account import KEY, MODEL
from langchain_cursor.bridge.process import node, vendored


class Bare:
    """A bridge of the SDK's own making, and its clients, sync and async.

    Args:
        url: The cloud.
        home: Where the workspace goes.
    """

    def __init__(self, url: str, home: Path) -> None:
        workspace = tempfile.mkdtemp(dir=home)
        self._bridge = _launch(url, workspace)
        self.client = cursor_sdk.Client(self._bridge.endpoint, allow_api_key_env_fallback=True)
        self.options = cursor_sdk.AgentOptions(
            model=MODEL,
            api_key=KEY,
            tools=[],
            local=cursor_sdk.LocalAgentOptions(cwd=workspace, setting_sources=[]),
        )
        self._kept: list[Any] = []

    def __enter__(self) -> Bare:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of the bridge's process."""
        pid: int = self._bridge.process.pid
        return pid

    def begin(self, question: str) -> str:
        """An answer from an agent that stays open, and keeps the executor warm."""
        agent = self.client.create_agent(self.options)
        self._kept.append(agent)
        text: str = agent.send(question).wait().result
        return text

    @contextmanager
    def run(self, question: str) -> Iterator[Any]:
        """The run of a fresh agent, which is closed at the end."""
        agent = self.client.create_agent(self.options)
        try:
            yield agent.send(question)
        finally:
            agent.close()

    @contextmanager
    def answer(self, question: str) -> Iterator[str]:
        """The answer of a fresh agent, which is closed at the end."""
        with self.run(question) as run:
            yield run.wait().result

    def ask(self, question: str) -> str:
        """The answer of a fresh agent, when that is closed."""
        with self.answer(question) as text:
            return text

    @contextmanager
    def async_client(self, loop: AbstractEventLoop) -> Iterator[Any]:
        """An `AsyncClient` of the same bridge, for one event loop."""
        client = cursor_sdk.AsyncClient(self._bridge.endpoint, allow_api_key_env_fallback=True)
        try:
            yield client
        finally:
            loop.run_until_complete(client.aclose())

    @asynccontextmanager
    async def arun(self, client: Any, question: str) -> AsyncIterator[Any]:
        """`run`, through an `AsyncClient`."""
        agent = await client.create_agent(self.options)
        try:
            yield await agent.send(question)
        finally:
            await agent.close()

    def processor_time(self) -> float:
        """Processor time of this process and the bridge, in seconds; NaN where unknown."""
        try:
            stat = Path(f"/proc/{self._bridge.process.pid}/stat").read_text()
        except OSError:
            return math.nan
        # Behind the name in brackets: the state, 10 fields more, then user and system time.
        ticks = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the bridge."""
        try:
            self.client.close()
        finally:
            self._bridge.close()


def _launch(url: str, workspace: str) -> Any:
    """Launch a bridge as `Client.launch_bridge` does, only without the shell around Node.

    Ending the launcher's shell leaves Node alive. And an interrupted launch leaves its child
    alive, so it goes on in a thread, where nothing interrupts it, to be closed afterwards.
    """
    root = vendored(cursor_sdk.__file__)
    command = root and [str(node(root)), str(root / "dist" / "bin" / "cursor-sdk-bridge.js")]
    os.environ["CURSOR_BACKEND_URL"] = url
    try:
        with ThreadPoolExecutor(1) as thread:
            launched = thread.submit(cursor_sdk.Bridge.launch, command, workspace=workspace)
            try:
                return launched.result()
            except BaseException:
                launched.add_done_callback(_close)
                raise
    finally:
        del os.environ["CURSOR_BACKEND_URL"]


def _close(launched: Future[Any]) -> None:
    if launched.exception() is None:
        launched.result().close()
