"""FakeCursor under the SDK itself, without ChatCursor."""

from __future__ import annotations

import asyncio
from typing import Any

import cursor_sdk
import pytest

from langchain_cursor_fakes import (
    BridgeDies,
    Delay,
    Error,
    FakeCursor,
    Hang,
    Phases,
    Text,
    Thinking,
)
from langchain_cursor_fakes._sdk_clock import FakeClock, Timeline, wake

pytestmark = pytest.mark.fake

LOCAL = {"model": "auto", "apiKey": "crsr_direct", "local": {"cwd": "/somewhere"}}


async def agent_of(fake: FakeCursor, **options: Any) -> cursor_sdk.AsyncAgent:
    agent: cursor_sdk.AsyncAgent = await fake.client().create_agent({**LOCAL, **options})
    return agent


@pytest.mark.clause("FAKE-12")
async def test_a_client_of_the_sdk_talks_to_it() -> None:
    fake = FakeCursor([[Thinking("hm"), Text("a"), Thinking("hm"), Text("b"), Text("c")]])
    async with await agent_of(fake) as agent:
        run = await agent.send("x")
        assert [text async for text in run.iter_text()] == ["a", "b", "c"]
        result = await run.wait()
    # The result is what was said since the last thinking.
    assert (result.status, result.result, result.agent_id) == ("finished", "bc", agent.agent_id)
    assert result.model == cursor_sdk.ModelSelection(id="auto")
    assert result.created_at is not None
    assert agent.agent_id.startswith("agent-")


@pytest.mark.clause("FAKE-12")
async def test_a_run_that_nobody_reads_is_played_by_who_waits_for_it() -> None:
    fake = FakeCursor(["one"])
    client = fake.client()
    agent = await client.create_agent(LOCAL)
    events = await client._agent_stream(
        "Send", {"agentId": agent.agent_id, "message": {"text": "x"}}
    )
    first = await events.__anext__()
    run_id = first["sdkMessage"]["message"]["run_id"]
    assert fake.runs[0].outcome == "running"
    reading = asyncio.ensure_future(_read(events))
    result = await client.wait_live_run(run_id)
    assert result.result == "one"
    await reading


async def _read(events: Any) -> list[Any]:
    return [event async for event in events]


@pytest.mark.clause("FAKE-12")
async def test_what_it_does_not_play_it_says() -> None:
    fake = FakeCursor()
    agent = await agent_of(fake)
    with pytest.raises(cursor_sdk.CursorSDKError, match="FakeCursor does not answer GetUsage"):
        await agent.get_usage()
    with pytest.raises(cursor_sdk.CursorSDKError, match="does not answer `on_delta`"):
        await agent.send("x", cursor_sdk.SendOptions(on_delta=print))
    with pytest.raises(cursor_sdk.CursorSDKError, match="for agents in the cloud"):
        await fake.client().create_agent(model="auto", api_key="k", cloud={"repos": [{"url": "u"}]})
    with pytest.raises(cursor_sdk.CursorSDKError, match="does not answer DownloadArtifact"):
        await agent.download_artifact("x")


@pytest.mark.clause("FAKE-12")
async def test_options_for_clouds_and_unknown_keys() -> None:
    fake = FakeCursor(refuse_all_keys=True)
    client = fake.client()
    with pytest.raises(cursor_sdk.AuthenticationError, match="Invalid API key"):
        await client.list_models(api_key="k")
    with pytest.raises(cursor_sdk.AuthenticationError, match="Invalid API key"):
        await client.create_agent(LOCAL)
    fake.refuse_all_keys = False
    agent = await client.create_agent(LOCAL)
    with pytest.raises(cursor_sdk.BadRequestError, match="Cloud send options"):
        await agent.send("x", {"cloud": {"envVars": {"A": "b"}}})
    with pytest.raises(cursor_sdk.BadRequestError, match="`tools` is not supported for cloud"):
        await client.create_agent({**LOCAL, "cloud": {"repos": [{"url": "u"}]}, "tools": []})


@pytest.mark.clause("FAKE-8")
async def test_the_sandbox_is_refused_by_send_and_by_a_lease() -> None:
    fake = FakeCursor(sandbox=False)
    local = cursor_sdk.LocalAgentOptions(
        cwd="/", sandbox_options=cursor_sdk.SandboxOptions(enabled=True)
    )
    agent = await agent_of(fake, local=local.to_json())
    for _ in range(2):
        with pytest.raises(cursor_sdk.BadRequestError, match="sandboxing is not supported") as told:
            await agent.send("x")
        assert (told.value.code, told.value.status) == ("invalid_argument", 200)
    mark = {"langchain-cursor": {"description": "", "prompt": '{"prewarm": true}'}}
    with pytest.raises(cursor_sdk.BadRequestError, match="sandboxing is not supported") as told:
        await agent_of(fake, local=local.to_json(), agents=mark)
    assert told.value.status == 400
    assert fake.executor_builds == 0


@pytest.mark.clause("FAKE-10")
async def test_an_executor_lives_as_long_as_something_open_has_used_it() -> None:
    fake = FakeCursor()
    client = fake.client()

    async def agent(**options: Any) -> Any:
        return await client.create_agent({**LOCAL, **options})

    async def used(**options: Any) -> Any:
        made = await agent(**options)
        await (await made.send("x")).wait()
        return made

    first = await used()
    unused = await agent()
    second = await used(model="composer-2.5", tools=[], name="other")  # none of the key
    await first.close()
    third = await used()
    assert fake.executor_builds == 1
    await second.close()
    await third.close()
    last = await used()
    assert fake.executor_builds == 2  # `unused` has never sent
    await unused.close()
    mark = {"langchain-cursor": {"description": "", "prompt": '{"prewarm": true}'}}
    lease = await agent(agents=mark)  # agents of the extension have no hidden retries
    assert fake.executor_builds == 3
    await used(agents={"langchain-cursor": {"description": "", "prompt": "{}"}})
    assert fake.executor_builds == 3
    for options in (
        {"local": {"cwd": "/elsewhere"}},
        {"apiKey": "crsr_other"},
        {"local": {"cwd": "/somewhere", "sandboxOptions": {"enabled": False}}},
    ):
        await used(**options)
    assert fake.executor_builds == 6
    await last.close()
    await lease.close()


@pytest.mark.clause("FAKE-6")
async def test_a_dead_bridge_fails_as_the_real_one() -> None:
    fake = FakeCursor([[Text("a"), BridgeDies()]])
    client = fake.client()
    agent = await client.create_agent(LOCAL)
    run = await agent.send("x")
    with pytest.raises(cursor_sdk.NetworkError, match="RemoteProtocolError: peer closed") as told:
        await run.wait()
    assert told.value.is_retryable
    for call in (client.ping(), agent.send("x"), client.create_agent(LOCAL)):
        with pytest.raises(cursor_sdk.NetworkError, match="ConnectError: All connection"):
            await call


@pytest.mark.clause("FAKE-6")
async def test_a_bridge_that_dies_during_a_call_disconnects() -> None:
    fake = FakeCursor(phases=Phases(create=30), real_time=True)
    call = asyncio.ensure_future(agent_of(fake))
    await asyncio.sleep(0.01)
    fake.kill_bridge()
    with pytest.raises(cursor_sdk.NetworkError, match="RemoteProtocolError: Server disconnected"):
        await call


@pytest.mark.clause("FAKE-6")
async def test_shutdown_ends_the_bridge() -> None:
    client = FakeCursor().client()
    await client.shutdown()
    await asyncio.sleep(0)
    with pytest.raises(cursor_sdk.NetworkError):
        await client.ping()


@pytest.mark.clause("FAKE-7")
@pytest.mark.since("cursor-sdk", "1.0.40", because="a run's result tells its error")
async def test_a_bridge_that_is_silent_for_long_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langchain_cursor_fakes._sdk_run._KEEPALIVE", 0.01)
    monkeypatch.setattr("langchain_cursor_fakes._sdk_run._STALL", 0.03)
    agent = await agent_of(FakeCursor([[Text("a"), Hang()]]))
    run = await agent.send("x")
    kinds = [event.kind async for event in run.events()]
    assert kinds == ["sdk_message", "sdk_message", "unknown", "sdk_message", "result", "done"]
    result = await run.wait()
    assert (result.status, result.error_code) == ("error", "connection_stalled")


@pytest.mark.clause("FAKE-7")
async def test_a_run_can_be_cancelled_while_it_waits() -> None:
    fake = FakeCursor([[Text("a"), Delay(3600), Text("b")]], real_time=True)
    agent = await agent_of(fake)
    run = await agent.send("x")
    asyncio.get_running_loop().call_later(0.01, lambda: asyncio.ensure_future(run.cancel()))
    result = await run.wait()
    assert (result.status, fake.runs[0].answer, fake.runs[0].outcome) == (
        "cancelled",
        "a",
        "cancelled",
    )


@pytest.mark.clause("FAKE-12")
async def test_an_agent_is_busy_from_the_first_message_on() -> None:
    fake = FakeCursor(["a", "b"], phases=Phases(build=1))
    agent = await agent_of(fake)
    first, second = await asyncio.gather(agent.send("1"), agent.send("2"), return_exceptions=True)
    assert isinstance(first, cursor_sdk.AsyncRun)
    assert "already has active run" in str(second)
    assert (await first.wait()).result == "a"


@pytest.mark.clause("FAKE-7")
async def test_runs_that_overlap_end_in_the_order_of_the_clock() -> None:
    fake = FakeCursor(lambda run: [Delay(float(run.text)), Text("ok")], phases=Phases(build=1))
    client = fake.client()
    done: list[int] = []

    async def ask(seconds: int) -> None:
        agent = await client.create_agent(LOCAL)
        await (await agent.send(str(seconds))).wait()
        done.append(seconds)

    await asyncio.gather(*map(ask, (30, 10, 20, 40)))
    assert done == [10, 20, 30, 40]
    assert fake.clock.now == 41


@pytest.mark.clause("FAKE-7")
async def test_bridges_share_one_time() -> None:
    fake = FakeCursor(lambda run: [Delay(float(run.text)), Text("ok")])
    clients = [fake.client() for _ in range(3)]
    ended: list[int] = []

    async def ask(seconds: int) -> None:
        agent = await clients[seconds % 3].create_agent(LOCAL)
        result = await (await agent.send(str(seconds))).wait()
        assert result.duration_ms == seconds * 1000
        ended.append(seconds)

    await asyncio.gather(*map(ask, range(60, 0, -1)))
    assert ended == list(range(1, 61))
    assert {run.agent.bridge for run in fake.runs} == {1, 2, 3}


@pytest.mark.clause("FAKE-7")
async def test_sleepers_wake_in_the_order_of_the_clock() -> None:
    clock = FakeClock()
    lines = [Timeline(clock), Timeline(clock)]
    woken: list[float] = []

    async def sleep(line: Timeline, seconds: float) -> None:
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.wake_after(seconds, sleeper)
        await sleeper
        woken.append(clock.now)

    await asyncio.gather(*(sleep(lines[0], seconds) for seconds in (5, 1, 3, 1)))
    assert woken == [1, 1, 3, 5]
    await sleep(lines[1], 2)
    assert clock.now == 7
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lines[0].wake_after(100, gone)
    wake(gone)
    await sleep(lines[0], 1)
    assert clock.now == 8  # what has woken early takes no time


@pytest.mark.clause("FAKE-9")
@pytest.mark.since("cursor-sdk", "1.0.40", because="a run's result tells its error")
async def test_run_errors_are_told_from_1_0_40_on() -> None:
    for version, message in (("1.0.40", "[unavailable] busy"), ("1.0.39", None)):
        agent = await agent_of(FakeCursor([Error("unavailable", "busy")], version=version))
        run = await agent.send("x")
        statuses = [m.message async for m in run.stream() if m.type == "status"]
        assert statuses == ["", "[unavailable] busy"]
        assert (await run.wait()).error_message == message


@pytest.mark.clause("FAKE-12")
async def test_a_reader_that_leaves_can_be_followed_by_another() -> None:
    fake = FakeCursor([[Text("a"), Delay(3600), Text("b")]], real_time=True)
    agent = await agent_of(fake)
    run = await agent.send("x")
    reading = asyncio.ensure_future(run.wait())
    await fake.await_for(lambda fake: fake.runs[0].answer == "a")
    reading.cancel()
    await asyncio.wait([reading])
    assert fake.runs[0].outcome == "running"
    result = await agent.client.wait_live_run(run.id)
    assert (result.status, result.result) == ("finished", "ab")


@pytest.mark.clause("FAKE-12")
async def test_who_waits_for_a_run_is_told_when_its_stream_fails() -> None:
    fake = FakeCursor([[Text("a"), Hang()], [Text("a"), cursor_sdk.NetworkError("broken")]])
    agent = await agent_of(fake)
    run = await agent.send("x")
    reading = asyncio.ensure_future(run.wait())
    await fake.await_for(lambda fake: fake.runs[0].answer == "a")
    waiting = asyncio.ensure_future(agent.client.wait_live_run(run.id))
    await asyncio.sleep(0)
    fake.kill_bridge()
    for call in (reading, waiting):
        with pytest.raises(cursor_sdk.NetworkError):
            await call
    assert fake.runs[0].outcome == "died"
    agent = await agent_of(fake)
    run = await agent.send("x")
    with pytest.raises(cursor_sdk.NetworkError, match="broken"):
        await run.wait()
    with pytest.raises(cursor_sdk.ConfigurationError, match="Unknown run"):
        await agent.client.wait_live_run(run.id)


@pytest.mark.clause("FAKE-6")
async def test_a_run_that_does_not_wait_sees_the_bridges_end_too() -> None:
    fake = FakeCursor(["one two three"])
    agent = await agent_of(fake)
    agent_closed_meanwhile = await agent.send("x")
    await agent.close()
    texts = agent_closed_meanwhile.iter_text()
    assert await texts.__anext__() == "one "
    fake.kill_bridge()
    with pytest.raises(cursor_sdk.NetworkError):
        await texts.__anext__()
