"""One call, against the bare SDK on the same instant cloud.

Bare is what the SDK itself offers for one answer: create an agent, send, wait, close, on a bridge
of its own with the default store, where another open agent keeps the executor warm.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cursor_sdk

from benchmarks.measure import Ratio, compare
from langchain_cursor import ChatCursor

_KEY = "crsr_benchmark"
_MODEL = "composer-2.5"


def run() -> list[Ratio]:
    """Answers of 10 and 1,000 deltas through `invoke` and `ainvoke`, and one of 4,000."""
    ratios = []
    with _cloud() as url, tempfile.TemporaryDirectory() as home, asyncio.Runner() as runner:
        os.environ |= {"CURSOR_BACKEND_URL": url, "HOME": home}
        bare = runner.run(Bare.start())
        with ChatCursor(api_key=_KEY, base_url=url) as llm:

            def invoke(n: int) -> None:
                _check(llm.invoke(f"count to {n}").text, n)

            def ainvoke(n: int) -> None:
                _check(runner.run(llm.ainvoke(f"count to {n}")).text, n)

            def alone(n: int) -> None:
                _check(runner.run(bare.ask(f"count to {n}")), n)

            for n, pairs in ((10, 40), (1000, 10)):
                for way in (invoke, ainvoke):
                    ratios.append(
                        compare(
                            f"{way.__name__}, {n} deltas, against the bare SDK",
                            lambda way=way, n=n: way(n),  # type: ignore[misc] # bound early
                            lambda n=n: alone(n),  # type: ignore[misc]
                            limit=0.9,
                            pairs=pairs,
                        )
                    )
            ratios.append(
                compare(
                    "invoke, 4,000 deltas, against invoke, 1,000 deltas",
                    lambda: invoke(4000),
                    lambda: invoke(1000),
                    limit=5.0,
                    pairs=7,
                )
            )
        runner.run(bare.close())
    return ratios


class Bare:
    """The SDK alone."""

    def __init__(self, client: cursor_sdk.AsyncClient, workspace: str) -> None:
        self._client = client
        self._options = cursor_sdk.AgentOptions(
            model=_MODEL,
            api_key=_KEY,
            tools=[],
            local=cursor_sdk.LocalAgentOptions(cwd=workspace, setting_sources=[]),
        )
        self._warm: Any = None

    @classmethod
    async def start(cls) -> Bare:
        """Launch a bridge and build the executor."""
        workspace = tempfile.mkdtemp(dir=os.environ["HOME"])
        client = await cursor_sdk.AsyncClient.launch_bridge(workspace=workspace)
        bare = cls(client, workspace)
        bare._warm = await client.create_agent(bare._options)
        await (await bare._warm.send("warm up")).wait()
        return bare

    async def ask(self, question: str) -> str:
        """One answer from a fresh agent."""
        agent = await self._client.create_agent(self._options)
        result = await (await agent.send(question)).wait()
        await agent.close()
        return result.result

    async def close(self) -> None:
        """End the bridge."""
        await self._warm.close()
        await self._client.aclose()


def _check(text: str, n: int) -> None:
    if len(text.split()) != n:
        raise AssertionError(f"{len(text.split())} numbers instead of {n}: {text[:80]!r}")


@contextmanager
def _cloud() -> Iterator[str]:
    # A process of its own, so that it takes no time from the loop that is measured.
    with subprocess.Popen(
        [sys.executable, "-m", "langchain_cursor_fakes.cloud"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
