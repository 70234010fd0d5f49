"""ChatCursor through the real SDK and its real bridge, on the stand-in for Cursor's cloud."""

from __future__ import annotations

import asyncio
import base64
import copy
import gc
import pickle
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cursor_sdk
import pytest
from langchain_core.messages import HumanMessage

from langchain_cursor import (
    ChatCursor,
    CursorError,
    CursorRateLimitError,
    CursorStartupError,
    CursorTimeoutError,
)
from langchain_cursor_fakes import CursorCloud, Error, Hang, Text
from tests.conftest import API_KEY, until

pytestmark = pytest.mark.bridge

Chat = Callable[..., ChatCursor]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.clause("CHAT-1")
@pytest.mark.asyncio
async def test_batch_and_abatch_answer_in_order(chat: Chat) -> None:
    questions = [f"say: {n}" for n in range(5)]
    model = chat()
    assert [m.text for m in await model.abatch(questions)] == ["0", "1", "2", "3", "4"]
    assert [m.text for m in model.batch(questions)] == ["0", "1", "2", "3", "4"]


@pytest.mark.clause("CLOUD-3")
def test_the_type_of_an_image_is_read_off_its_bytes(chat: Chat, cloud: CursorCloud) -> None:
    for data in (PNG, b"no picture"):
        block = {"type": "image", "base64": base64.b64encode(data).decode()}
        chat().invoke([HumanMessage([{**block, "mime_type": "image/jpeg"}])])
    types = [(i.data, i.mime_type) for run in cloud.runs for i in run.received.images]
    assert types == [(PNG, "image/png"), (b"no picture", "")]


@pytest.mark.clause("CHAT-11")
def test_cancelling_the_task_cancels_the_run(chat: Chat, cloud: CursorCloud) -> None:
    cloud.brain = lambda run: [Hang()]

    async def main() -> None:
        task = asyncio.create_task(chat().ainvoke("x"))
        await cloud.await_for(lambda cloud: cloud.runs)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    cloud.wait_for(lambda cloud: cloud.runs[0].outcome == "cancelled", timeout=1.0)


@pytest.mark.clause("RUNTIME-1")
def test_asyncio_run_twice_on_one_model(chat: Chat) -> None:
    model = chat()
    for word in ("one", "two"):
        assert asyncio.run(model.ainvoke(f"say: {word}")).text == word


@pytest.mark.clause("RUNTIME-1")
def test_eight_threads_at_once(chat: Chat) -> None:
    model = chat()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: model.invoke(f"say: {n}").text, range(8)))
    assert answers == [str(n) for n in range(8)]


@pytest.mark.clause("RUNTIME-1")
@pytest.mark.asyncio
async def test_ainvoke_in_a_loop_while_invoke_runs_in_a_thread(chat: Chat) -> None:
    model = chat()
    in_thread = asyncio.create_task(asyncio.to_thread(model.invoke, "say: sync"))
    assert (await model.ainvoke("say: async")).text == "async"
    assert (await in_thread).text == "sync"


@pytest.mark.clause("RUNTIME-1")
@pytest.mark.asyncio
async def test_a_sync_call_inside_a_running_loop_answers(chat: Chat) -> None:
    assert chat().invoke("say: here").text == "here"


def _runtimes() -> list[Any]:
    from langchain_cursor import users

    return list(users._runtimes.values())


@pytest.mark.clause("RUNTIME-2")
def test_copies_share_the_runtime_and_close_apart(own_chat: Chat) -> None:
    model = own_chat()
    model.invoke("x")
    before = len(_runtimes())
    deep = copy.deepcopy(model)
    other = model.model_copy(update={"model": "auto"})
    assert deep.invoke("say: deep").text == "deep"
    assert other.invoke("model?").text == "auto"
    assert len(_runtimes()) == before
    model.close()
    assert len(_runtimes()) == before  # two others still use it
    assert deep.invoke("say: still").text == "still"
    deep.close()
    other.close()
    assert len(_runtimes()) == before - 1


@pytest.mark.clause("RUNTIME-2")
def test_a_pickled_model_answers_and_shares_the_runtime(own_chat: Chat) -> None:
    model = own_chat()
    model.invoke("x")
    before = len(_runtimes())
    again = pickle.loads(pickle.dumps(model))
    assert again == model
    assert again.invoke("say: back").text == "back"
    assert len(_runtimes()) == before
    again.close()


@pytest.mark.clause("RUNTIME-2")
def test_another_key_has_another_runtime(own_chat: Chat, cloud: CursorCloud) -> None:
    one, two = own_chat(), own_chat()
    one.invoke("x")
    before = len(_runtimes())
    two.invoke("x")
    assert len(_runtimes()) == before + 1


@pytest.mark.clause("RUNTIME-3")
def test_a_collected_models_runtime_goes_after_keep_alive(
    own_chat: Chat, cloud: CursorCloud
) -> None:
    model = ChatCursor(api_key="crsr_collected", base_url=cloud.url, keep_alive=0.2)
    model.invoke("x")
    (runtime,) = [r for r in _runtimes() if r.settings.api_key == "crsr_collected"]
    (process,) = runtime._processes
    del model
    gc.collect()
    assert until(lambda: not process.alive and not runtime._scratch.root.exists())


@pytest.mark.clause("RUNTIME-4")
def test_a_call_after_close_starts_anew(own_chat: Chat) -> None:
    model = own_chat()
    model.invoke("x")
    model.close()
    assert model.invoke("say: again").text == "again"


@pytest.mark.clause("RUNTIME-4")
def test_close_during_a_call_cancels_it(own_chat: Chat, cloud: CursorCloud) -> None:
    cloud.brain = lambda run: [Hang()]
    model = own_chat()
    failed: list[BaseException] = []

    def call() -> None:
        try:
            model.invoke("x")
        except CursorError as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    cloud.wait_for(lambda cloud: cloud.runs)
    model.close()
    thread.join(5)
    assert [type(error).__name__ for error in failed] == ["CursorClosedError"]
    cloud.wait_for(lambda cloud: cloud.runs[0].outcome == "cancelled")


@pytest.mark.clause("RUNTIME-5")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_the_executor_is_built_once_for_many_calls(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat()
    for _ in range(4):
        model.invoke("x")
    cloud.wait_for(lambda cloud: cloud.executor_builds >= 1)
    time.sleep(1.0)  # the request that tells of a build comes a little after it
    assert cloud.executor_builds == 1


@pytest.mark.clause("RUNTIME-5")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_without_keep_alive_every_call_builds_one(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat(keep_alive=0)
    for _ in range(2):
        model.invoke("x")
        time.sleep(0.3)  # the agent closes behind the caller's back
    cloud.wait_for(lambda cloud: cloud.executor_builds == 2)


@pytest.mark.clause("RUNTIME-6")
def test_works_behind_a_dead_proxy(own_chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert own_chat().invoke("say: direct").text == "direct"


@pytest.mark.clause("RUNTIME-7")
@pytest.mark.clause("SECURITY-4")
def test_the_stock_bridge_serves_too(own_chat: Chat, cloud: CursorCloud) -> None:
    model = own_chat(bridge_extension=False)
    assert model.invoke("say: stock").text == "stock"
    assert cloud.runs[0].received.allowed_tools == ""


@pytest.mark.clause("RUNTIME-20")
def test_agents_are_closed_when_nothing_runs(
    own_chat: Chat, cloud: CursorCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = cursor_sdk.AsyncAgent.close

    async def counted(agent: cursor_sdk.AsyncAgent) -> None:
        closed.append(agent.agent_id)
        await close(agent)

    monkeypatch.setattr(cursor_sdk.AsyncAgent, "close", counted)
    model = own_chat()
    model.invoke("x")
    assert until(lambda: len(closed) == 1)
    cloud.brain = lambda run: [Hang()] if "hang" in run.text else [Text("ok")]

    def hang() -> None:
        with pytest.raises(CursorTimeoutError):
            model.invoke("hang", timeout=3)

    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(hang)
        cloud.wait_for(lambda cloud: any("hang" in run.received.text for run in cloud.runs))
        for _ in range(4):
            model.invoke("x")
        time.sleep(0.2)
        assert len(closed) == 1  # four wait
        for _ in range(3):
            model.invoke("x")
        assert until(lambda: len(closed) == 4, 1)
        hanging.result()
    assert until(lambda: len(closed) == 9)  # all agents; what is left is the lease
    model.close()
    assert len(closed) == 10


@pytest.mark.clause("RUNTIME-3")
def test_a_runtime_in_steady_use_by_short_lived_models_stays(cloud: CursorCloud) -> None:
    key: Any = f"{API_KEY}_{uuid.uuid4().hex}"
    bridges = set()
    until_then = time.monotonic() + 1.5
    while time.monotonic() < until_then:
        model = ChatCursor(api_key=key, base_url=cloud.url, keep_alive=0.5)
        model.invoke("x")
        (runtime,) = [r for r in _runtimes() if r.settings.api_key == key]
        bridges.add(runtime._bridge)
        del model
        gc.collect()
        time.sleep(0.1)
    assert len(bridges) == 1


@pytest.mark.clause("RUNTIME-4")
def test_close_reaches_the_calls_of_all_threads_that_called_first(
    own_chat: Chat, cloud: CursorCloud
) -> None:
    cloud.brain = lambda run: [Hang()]
    model = own_chat()
    failed: list[str] = []

    def call() -> None:
        try:
            model.invoke("x")
        except CursorError as error:
            failed.append(type(error).__name__)

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    cloud.wait_for(lambda cloud: len(cloud.runs) == 6)
    model.close()
    for thread in threads:
        thread.join(5)
    assert failed == ["CursorClosedError"] * 6


@pytest.mark.clause("CHAT-9")
def test_a_failure_is_told_when_no_time_is_left_to_try_again(
    chat: Chat, cloud: CursorCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langchain_cursor.runtime.random.uniform", lambda *_: 1000.0)
    cloud.brain = lambda run: [Error("resource_exhausted", "slow down")]
    started = time.monotonic()
    with pytest.raises(CursorRateLimitError, match="slow down"):
        chat(timeout=60, max_retries=9).invoke("x")
    assert time.monotonic() - started < 30
    assert len(cloud.runs) == 1


@pytest.mark.clause("CHAT-12")
def test_a_loader_that_exits_does_not_end_the_private_loop(own_chat: Chat) -> None:
    def loader() -> Any:
        raise SystemExit(3)

    with pytest.raises(CursorStartupError, match="SystemExit"):
        own_chat(sdk_loader=loader).invoke("x")
    assert own_chat().invoke("say: on").text == "on"


@pytest.mark.clause("CHAT-5")
def test_one_stop_text_may_be_given_as_it_is(chat: Chat) -> None:
    model: Any = chat()
    assert model.invoke("say: hello world", stop="wor").text == "hello "
    assert model.bind(stop="wor").invoke("say: hello world").text == "hello "
