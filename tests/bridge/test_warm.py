"""The warm executor, the native system prompt and the sandbox, on the real bridge."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import cursor_sdk
import pytest
from langchain_core.messages import HumanMessage, SystemMessage

from langchain_cursor import (
    ChatCursor,
    CursorAuthenticationError,
    CursorInvalidRequestError,
    CursorModelNotFoundError,
    alist_models,
    catalog,
    list_models,
)
from langchain_cursor.serializer import parse
from langchain_cursor_fakes import (
    DEFAULT_MODELS,
    CursorCloud,
    Delay,
    Delays,
    Error,
    ReceivedRun,
    Step,
    Text,
)
from tests.behaviour.sdks import sdk_without_sandbox
from tests.bridge.test_processes import _runtime
from tests.conftest import Scripts, until

pytestmark = pytest.mark.bridge

Chat = Callable[..., ChatCursor]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.clause("WARM-1")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_prewarm_builds_the_executor_without_a_run(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat()
    model.prewarm()
    cloud.wait_for(lambda cloud: cloud.executor_builds == 1)
    assert cloud.runs == []
    assert cloud.catalog_fetches == 1
    assert _runtime(model)._lease.held
    model.invoke("x")
    time.sleep(0.5)
    assert (cloud.executor_builds, cloud.catalog_fetches, cloud.key_exchanges) == (1, 1, 1)


@pytest.mark.clause("WARM-1")
@pytest.mark.asyncio
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
async def test_aprewarm_does_the_same(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat()
    await model.aprewarm()
    await cloud.await_for(lambda cloud: cloud.executor_builds == 1)
    assert cloud.runs == []


@pytest.mark.clause("WARM-1")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_a_model_can_prewarm_itself_in_the_background(own_chat: Chat, cloud: CursorCloud) -> None:
    cloud.delays = Delays(privacy=0.3)
    started = time.monotonic()
    own_chat(prewarm=True)
    assert time.monotonic() - started < 0.25
    cloud.wait_for(lambda cloud: cloud.executor_builds == 1)
    assert cloud.runs == []


@pytest.mark.clause("WARM-2")
def test_a_failed_prewarm_is_a_warning(
    own_chat: Chat, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_BIN", "/nowhere/at/all")
    own_chat().prewarm()
    assert ["is not a file" in text for text in _warnings(caplog)] == [True]
    own_chat(prewarm=True)
    assert until(lambda: len(_warnings(caplog)) == 2)
    monkeypatch.delenv("CURSOR_SDK_BRIDGE_BIN")
    ChatCursor(prewarm=True)  # without a key
    assert until(lambda: len(_warnings(caplog)) == 3)


@pytest.mark.clause("WARM-2")
def test_a_prewarm_whose_executor_fails_leaves_the_next_call_to_build(
    own_chat: Chat, cloud: CursorCloud
) -> None:
    cloud.refuse_all_keys = True
    model = own_chat(max_retries=0)
    model.prewarm()
    cloud.refuse_all_keys = False
    assert model.invoke("say: built").text == "built"


@pytest.mark.clause("WARM-3")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_concurrent_first_calls_build_one_executor(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat()

    async def main() -> None:
        await asyncio.gather(*(model.ainvoke("x") for _ in range(6)))

    asyncio.run(main())
    time.sleep(0.7)
    assert cloud.executor_builds == 1


@pytest.mark.clause("WARM-4")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_the_executor_expires_after_keep_alive_and_is_built_again(
    own_chat: Chat, cloud: CursorCloud
) -> None:
    model = own_chat(keep_alive=0.4)
    model.invoke("x")
    assert until(lambda: not _runtime(model)._lease.held, 3)
    time.sleep(0.3)  # it is closed behind the caller's back
    model.invoke("x")
    cloud.wait_for(lambda cloud: cloud.executor_builds == 2)


@pytest.mark.clause("WARM-5")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_changing_the_sandbox_takes_the_new_lease_before_the_old_is_given_up(
    own_chat: Chat, cloud: CursorCloud
) -> None:
    model = own_chat()
    model.invoke("x")
    runtime = _runtime(model)
    first = runtime._lease._holder
    without = model.model_copy(update={"sandbox": False})
    without.invoke("x")
    assert until(lambda: runtime._lease._holder not in (None, first))
    cloud.wait_for(lambda cloud: cloud.executor_builds == 2)
    without.close()


@pytest.mark.clause("WARM-6")
def test_one_key_exchange_serves_bridge_executor_and_calls(
    own_chat: Chat, cloud: CursorCloud
) -> None:
    cloud.delays = Delays(key_exchange=0.1)
    model = own_chat()
    for _ in range(3):
        model.invoke("x")
    time.sleep(0.5)
    assert cloud.key_exchanges == 1


@pytest.mark.clause("WARM-6")
def test_a_refused_key_is_exchanged_anew(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat(max_retries=0)
    model.invoke("x")
    assert cloud.key_exchanges == 1
    cloud.brain = lambda run: [Error("unauthenticated", "expired")]
    key = model.api_key.get_secret_value() if model.api_key else ""
    assert until(lambda: catalog.load(key, cloud.url) is not None)
    with pytest.raises(CursorAuthenticationError):
        model.invoke("x")
    assert catalog.load(key, cloud.url) is None
    cloud.brain = lambda run: [Text("ok")]
    model.invoke("x")
    cloud.wait_for(lambda cloud: cloud.key_exchanges == 2)


SYSTEM = [SystemMessage("Be brief."), SystemMessage("Be kind."), HumanMessage("say: hi")]


@pytest.mark.clause("WARM-7")
def test_a_system_message_in_mid_conversation_stays_in_place(
    own_chat: Chat, cloud: CursorCloud
) -> None:
    own_chat().invoke([SYSTEM[0], HumanMessage("a"), SYSTEM[1], HumanMessage("say: b")])
    received = cloud.runs[0].received
    assert received.system_prompt == "Be brief."
    assert [turn.role for turn in parse(received.text)] == ["user", "system", "user"]


@pytest.mark.clause("WARM-7")
def test_blank_system_text_is_never_sent(own_chat: Chat, cloud: CursorCloud) -> None:
    own_chat().invoke([SystemMessage(" \n"), HumanMessage("say: hi")])
    received = cloud.runs[0].received
    assert received.system_prompt is None
    assert [turn.role for turn in parse(received.text)] == ["user"]


@pytest.mark.clause("WARM-9")
def test_the_native_prompt_can_be_forbidden_and_forced(own_chat: Chat, cloud: CursorCloud) -> None:
    own_chat(native_system_prompt=False).invoke(SYSTEM)
    assert cloud.runs[0].received.system_prompt is None
    cloud.system_prompt_allowed = False
    with pytest.raises(CursorInvalidRequestError, match="not enabled for this account"):
        own_chat(native_system_prompt=True).invoke(SYSTEM)
    with pytest.raises(CursorInvalidRequestError, match="cannot carry a system prompt"):
        own_chat(native_system_prompt=True, bridge_extension=False).invoke(SYSTEM)


@pytest.mark.clause("WARM-10")
def test_a_machine_without_sandbox_answers_after_one_warning(
    own_chat: Chat, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sdk = sdk_without_sandbox(tmp_path)
    model = own_chat(sdk_loader=lambda: sdk)
    for word in ("one", "two"):
        assert model.invoke(f"say: {word}").text == word
    assert ["sandbox is not supported" in text for text in _warnings(caplog)] == [True]
    caplog.clear()
    assert own_chat(sdk_loader=lambda: sdk, sandbox=False).invoke("say: x").text == "x"
    assert _warnings(caplog) == []


@pytest.mark.clause("WARM-11")
def test_the_longest_keep_alive_of_two_models_holds(own_chat: Chat) -> None:
    model = own_chat(keep_alive=30)
    model.invoke("x")
    short = model.model_copy(update={"keep_alive": 0.1})
    short.invoke("x")
    time.sleep(0.4)
    assert _runtime(model)._lease.held
    short.close()


@pytest.mark.clause("WARM-12")
def test_a_bridge_that_has_grown_is_replaced_and_no_call_waits_or_fails(
    own_chat: Chat, cloud: CursorCloud
) -> None:
    go_on = threading.Event()

    def slow(run: ReceivedRun) -> Iterator[Step]:
        yield Text("a ")
        while not go_on.is_set():
            yield Delay(0.02)
        yield Text("b")

    cloud.brain = lambda run: slow(run) if "slow" in run.text else "ok"
    model = own_chat(bridge_max_rss=2**40)
    model.invoke("x")
    runtime = _runtime(model)
    first = runtime._bridge
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(model.invoke, "slow")
        cloud.wait_for(lambda cloud: any("slow" in run.received.text for run in cloud.runs))
        started = time.monotonic()
        model.model_copy(update={"bridge_max_rss": 1}).invoke("x")
        model.invoke("x")
        assert time.monotonic() - started < 1
        assert until(lambda: runtime._bridge is not first)
        assert model.invoke("x").text == "ok"
        assert first.process.alive  # a call still runs there
        go_on.set()
        assert under_way.result(10).text == "a b"
    assert until(lambda: not first.process.alive)
    assert until(lambda: len(runtime._processes) == 1)
    assert runtime._lease.held


@pytest.mark.clause("WARM-12")
def test_a_small_bridge_stays(own_chat: Chat) -> None:
    model = own_chat()
    model.invoke("x")
    first = _runtime(model)._bridge
    assert 2**26 < first.memory < 2**30
    model.invoke("x")
    assert _runtime(model)._bridge is first


@pytest.mark.clause("WARM-13")
def test_many_calls_over_expiries_leave_one_bridge_and_no_open_agent(
    own_chat: Chat, cloud: CursorCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, closed = Counter[str](), Counter[str]()
    create, close = cursor_sdk.AsyncClient.create_agent, cursor_sdk.AsyncAgent.close

    async def counted_create(client: Any, *args: Any, **named: Any) -> Any:
        agent = await create(client, *args, **named)
        opened[agent.agent_id] += 1
        return agent

    async def counted_close(agent: Any) -> None:
        await close(agent)
        if agent.agent_id in opened:  # the others are of other tests
            closed[agent.agent_id] += 1

    monkeypatch.setattr(cursor_sdk.AsyncClient, "create_agent", counted_create)
    monkeypatch.setattr(cursor_sdk.AsyncAgent, "close", counted_close)
    model = own_chat(keep_alive=0.3)
    for _ in range(3):
        model.batch(["x"] * 100)
        assert until(lambda: not _runtime(model)._lease.held)
    assert until(lambda: opened == closed)
    runtime = _runtime(model)
    assert (len(runtime._processes), len(runtime._agents), len(runtime._retired)) == (1, 0, 0)
    assert list((runtime._scratch.root / "workspace").iterdir()) == []


@pytest.mark.clause("WARM-13")
def test_many_calls_do_not_make_python_grow(scripts: Scripts) -> None:
    ran = scripts.run(
        """
        import gc
        from pathlib import Path
        from langchain_cursor import ChatCursor
        llm = ChatCursor(keep_alive=0.3)
        for _ in range(4):
            llm.batch(["x"] * 100)
            gc.collect()
            print(int(Path("/proc/self/statm").read_text().split()[1]))
        """
    )
    assert (ran.err, ran.status) == ("", 0)
    _, settled, _, last = map(int, ran.out.split())  # pages; the first hundred load and warm up
    assert last <= settled * 1.05


@pytest.mark.clause("WARM-14")
def test_the_catalog_is_fetched_once_per_bridge(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat()
    for _ in range(3):
        model.invoke("x")
    assert cloud.catalog_fetches == 1


@pytest.mark.clause("WARM-14")
def test_the_next_bridge_finds_the_catalog_on_disk(cloud: CursorCloud) -> None:
    key: Any = f"crsr_{uuid.uuid4().hex}"
    for _ in range(2):
        with ChatCursor(api_key=key, base_url=cloud.url) as model:
            model.invoke("x")
            assert until(lambda: catalog.load(key, cloud.url) is not None)
    assert cloud.catalog_fetches == 1
    with ChatCursor(api_key=key, base_url=cloud.url, cache_model_catalog=False) as model:
        model.invoke("x")
    assert cloud.catalog_fetches == 2


@pytest.mark.clause("WARM-14")
def test_a_model_newer_than_the_catalog_is_found(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat()
    model.invoke("x")
    cloud.models = ("composer-2.5", "composer-9")
    try:
        assert model.invoke("model?", model="composer-9").text == "composer-9"
        with pytest.raises(CursorModelNotFoundError, match="composer-9"):
            model.invoke("x", model="composer-10")
    finally:
        cloud.models = DEFAULT_MODELS
    assert cloud.catalog_fetches == 3


@pytest.mark.clause("WARM-14")
def test_a_catalog_of_the_users_own_is_respected(
    own_chat: Chat, cloud: CursorCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "CURSOR_SDK_LOCAL_MODEL_CATALOG_JSON", '[{"id": "mine", "displayName": "M"}]'
    )
    assert own_chat().invoke("model?", model="mine").text == "mine"
    assert cloud.catalog_fetches == 0
    with pytest.raises(CursorModelNotFoundError, match="Available models: mine"):
        own_chat().invoke("x")


@pytest.mark.clause("WARM-15")
@pytest.mark.parametrize("extension", [True, False])
def test_models_can_be_listed(cloud: CursorCloud, extension: bool) -> None:
    models = list_models(api_key="crsr_list", base_url=cloud.url, bridge_extension=extension)
    assert [model.id for model in models] == ["composer-2.5", "auto"]
    again = asyncio.run(
        alist_models(api_key="crsr_list", base_url=cloud.url, bridge_extension=extension)
    )
    assert again == models


@pytest.mark.clause("WARM-15")
def test_listing_models_with_a_refused_key_is_an_authentication_error(cloud: CursorCloud) -> None:
    cloud.refuse_all_keys = True
    with pytest.raises(CursorAuthenticationError):
        list_models(api_key="crsr_refused", base_url=cloud.url)


@pytest.mark.clause("BRIDGE-12")
@pytest.mark.parametrize("mode", ["invoke", "stream"])
def test_calls_in_a_row_use_the_same_connections(
    own_chat: Chat, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    made: list[object] = []
    connect = anyio.connect_tcp

    async def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return await connect(*args, **kwargs)

    monkeypatch.setattr(anyio, "connect_tcp", counted)  # httpcore's only way to the network
    model = own_chat()

    def ask() -> str:
        if mode == "invoke":
            return model.invoke("say: same").text
        return "".join(chunk.text for chunk in model.stream("say: same"))

    assert ask() == "same"
    assert made
    assert until(lambda: _runtime(model)._behind == set())
    made.clear()
    for _ in range(8):
        assert ask() == "same"
    assert len(made) <= 1  # a new one for each call without the end of its stream read


@pytest.mark.clause("WARM-16")
def test_after_prewarm_no_call_imports_anything(scripts: Scripts) -> None:
    ran = scripts.run(
        """
        import sys
        from langchain_cursor import ChatCursor

        llm = ChatCursor()
        llm.prewarm()
        before = set(sys.modules)
        assert llm.invoke("say: x").text == "x"
        assert "".join(chunk.text for chunk in llm.stream("say: y")) == "y"
        late = [name.partition(".") for name in set(sys.modules) - before]
        print([name for name in late if name[0] not in ("langchain_core", "langsmith")])
        llm.close()
        """
    )
    assert (ran.status, ran.out.strip(), ran.err) == (0, "[]", "")
