"""What the bridge extension adds, seen at the cloud and on the disk."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import cursor_sdk
import pytest
import pytest_asyncio
from pydantic import SecretStr

from langchain_cursor import ChatCursor
from langchain_cursor.agents import MARK, AgentSettings, agent_options
from langchain_cursor.bridge.launch import Bridge, BridgeSettings, start_bridge
from langchain_cursor.bridge.process import BridgeProcess
from langchain_cursor.scratch import Scratch
from langchain_cursor_fakes import Brain, CursorCloud, Drop, Error, Text, Usage
from tests.conftest import API_KEY, until

pytestmark = [pytest.mark.bridge, pytest.mark.asyncio]


class Extended:
    """A bridge with the extension, and the SDK's own client on it."""

    def __init__(self, bridge: Bridge, scratch: Scratch) -> None:
        self.bridge = bridge
        self.scratch = scratch

    def options(self, system_prompt: str | None = None) -> cursor_sdk.AgentOptions:
        options: cursor_sdk.AgentOptions = agent_options(
            cursor_sdk,
            self.bridge.can,
            AgentSettings("composer-2.5"),
            api_key=API_KEY,
            workspace=str(self.scratch.workspace),
            system_prompt=system_prompt,
        )
        return options

    async def ask(self, text: str, system_prompt: str | None = None) -> cursor_sdk.RunResult:
        agent = await self.bridge.client.create_agent(self.options(system_prompt))
        result: cursor_sdk.RunResult = await (await agent.send(text)).wait()
        await agent.close()
        return result


@pytest_asyncio.fixture
async def extended(cloud: CursorCloud) -> AsyncIterator[Extended]:
    scratch = Scratch()
    processes: list[BridgeProcess] = []
    settings = BridgeSettings(api_key=API_KEY, backend=cloud.url)
    bridge = await start_bridge(settings, lambda: scratch, processes.append, lambda process: None)
    assert bridge.can.extension
    yield Extended(bridge, scratch)
    await bridge.aclose()
    scratch.remove()


@pytest.mark.clause("BRIDGE-1")
async def test_a_system_prompt_becomes_the_agents_own(
    extended: Extended, cloud: CursorCloud
) -> None:
    assert extended.bridge.can.system_prompt
    result = await extended.ask("say: hi", system_prompt="You are terse.")
    assert result.result == "hi"
    assert cloud.runs[0].received.system_prompt == "You are terse."


@pytest.mark.clause("BRIDGE-1")
async def test_without_one_the_agent_has_none(extended: Extended, cloud: CursorCloud) -> None:
    await extended.ask("say: hi")
    assert cloud.runs[0].received.system_prompt is None


@pytest.mark.clause("BRIDGE-2")
async def test_a_failing_run_is_not_tried_again_behind_our_back(
    extended: Extended, cloud: CursorCloud
) -> None:
    cloud.brain = lambda run: [Error("unavailable", "busy")]
    started = time.monotonic()
    result = await extended.ask("x")
    assert (result.status, len(cloud.runs)) == ("error", 1)
    assert time.monotonic() - started < 5  # the stock bridge takes about 15 s


@pytest.mark.clause("BRIDGE-2")
async def test_a_refused_system_prompt_is_told_at_once(
    extended: Extended, cloud: CursorCloud
) -> None:
    cloud.system_prompt_allowed = False
    result = await extended.ask("x", system_prompt="You are terse.")
    assert (result.status, [run.outcome for run in cloud.runs]) == ("error", ["error"])


@pytest.mark.clause("BRIDGE-3")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
async def test_a_lease_builds_the_executor_without_a_run_and_keeps_it(
    extended: Extended, cloud: CursorCloud
) -> None:
    options = extended.options()
    wish = cursor_sdk.AgentDefinition(description=MARK, prompt='{"prewarm": true}')
    lease = await extended.bridge.client.create_agent(
        cursor_sdk.AgentOptions(
            model=options.model, api_key=API_KEY, local=options.local, agents={MARK: wish}
        )
    )
    await cloud.await_for(lambda cloud: cloud.executor_builds == 1)
    assert cloud.runs == []
    for _ in range(3):
        assert (await extended.ask("say: warm")).result == "warm"
    await lease.close()
    await cloud.await_for(lambda cloud: len(cloud.runs) == 3)
    assert cloud.executor_builds == 1


@pytest.mark.clause("BRIDGE-7")
@pytest.mark.clause("SECURITY-14")
async def test_prompts_and_answers_never_reach_the_disk(
    extended: Extended, cloud: CursorCloud
) -> None:
    cloud.brain = lambda run: [Text("an answer that is a xylophone")]
    await extended.ask("a question about a xylophone")
    written = [path for path in extended.scratch.root.rglob("*") if path.is_file()]
    assert [path for path in written if b"xylophone" in path.read_bytes()] == []


@pytest.mark.clause("BRIDGE-8")
async def test_an_agent_remembers_its_own_conversation_only(
    extended: Extended, cloud: CursorCloud
) -> None:
    agent = await extended.bridge.client.create_agent(extended.options())
    await (await agent.send("first")).wait()
    assert (await (await agent.send("say: second")).wait()).result == "second"
    other = await extended.bridge.client.create_agent(extended.options())
    await (await other.send("say: third")).wait()
    assert [run.received.turn for run in cloud.runs] == [1, 2, 1]
    await agent.close()
    await other.close()


@pytest.mark.clause("BRIDGE-9")
async def test_the_bridges_environment_keeps_the_home_untouched(extended: Extended) -> None:
    await extended.ask("x")
    assert not Path(os.environ["HOME"]).exists()
    process = extended.bridge.process
    assert process is not None
    environment = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
    named = dict(line.split("=", 1) for line in environment if "=" in line)
    for name in ("HOME", "TMPDIR"):
        assert Path(named[name]).is_relative_to(extended.scratch.root)
    assert "CURSOR_API_KEY" not in named


@pytest.mark.clause("BRIDGE-10")
async def test_compiled_code_is_kept_for_the_next_bridge(
    cloud: CursorCloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LANGCHAIN_CURSOR_CACHE_DIR", str(tmp_path))
    async with ChatCursor(api_key=SecretStr(f"{API_KEY}_kept"), base_url=cloud.url) as model:
        await model.ainvoke("x")
        # Written about a second after the start.
        assert until(lambda: any(path.is_file() for path in (tmp_path / "node").rglob("*")))


@pytest.mark.clause("BRIDGE-10")
async def test_a_cache_that_cannot_be_made_changes_nothing(
    cloud: CursorCloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LANGCHAIN_CURSOR_CACHE_DIR", str(tmp_path / "file"))
    model = ChatCursor(api_key=SecretStr(f"{API_KEY}_uncached"), base_url=cloud.url)
    assert (await model.ainvoke("say: fine")).text == "fine"
    await model.aclose()


def _cut_once(cloud: CursorCloud) -> Brain:
    def brain(run: object) -> list[Text | Drop | Usage]:
        if len(cloud.runs) == 1:
            return [Text("abc "), Drop()]
        return [Text("Hello "), Text("there"), Usage(3, 4)]

    return brain


@pytest.mark.clause("BRIDGE-11")
async def test_with_the_extension_no_answer_holds_a_reply_that_was_cut(
    own_chat: Callable[..., ChatCursor], cloud: CursorCloud
) -> None:
    cloud.brain = _cut_once(cloud)
    assert (await own_chat().ainvoke("x")).text == "Hello there"
    assert len(cloud.runs) == 2


@pytest.mark.clause("BRIDGE-11")
async def test_on_the_stock_bridge_a_reply_that_was_cut_cannot_be_told_from_a_whole_one(
    cloud: CursorCloud,
) -> None:
    scratch = Scratch()
    settings = BridgeSettings(api_key=API_KEY, backend=cloud.url, extension=False)
    bridge = await start_bridge(
        settings, lambda: scratch, lambda process: None, lambda process: None
    )
    stock = Extended(bridge, scratch)
    try:
        cloud.brain = _cut_once(cloud)
        cut = await _seen(stock)
        assert len(cloud.runs) == 2
        cloud.brain = lambda run: [Text("abc "), Text("Hello "), Text("there"), Usage(3, 4)]
        whole = await _seen(stock)
        assert len(cloud.runs) == 3
    finally:
        await bridge.aclose()
        scratch.remove()
    assert "'result': 'abc Hello there'" in cut
    # If this fails, the SDK tells or does not append any more: then make an error of such a run.
    assert cut == whole


async def _seen(stock: Extended) -> str:
    """All that there is to see of a run, without what differs between any two runs."""
    seen: list[object] = []
    agent = await stock.bridge.client.create_agent(stock.options())
    run = await agent.send("x", cursor_sdk.SendOptions(on_delta=seen.append, on_step=seen.append))
    seen.extend([event async for event in run.events()])
    seen += [await run.wait(), await run.conversation()]
    await agent.close()
    stored = [row for path in stock.scratch.root.rglob("index.db") for row in _rows(path, run.id)]
    assert "Hello " in repr(stored)
    seen += stored
    process = stock.bridge.process
    assert process is not None
    seen.append(process.last_words())
    return re.sub(
        r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\d{4}-\d\d-\d\dT[\d:.]+Z|duration_?[mM]s'?[=:] ?'?\d+",
        "*",
        "\n".join(map(repr, seen)),
    )


def _rows(store: Path, run_id: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(store)) as database:
        return [
            row
            for table in ("runs", "run_events")
            for row in database.execute(f"SELECT * FROM {table} WHERE run_id = ?", (run_id,))
        ]
