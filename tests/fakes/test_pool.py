"""Several bridges share the calls of a model: on the fake."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest
from langchain_core.rate_limiters import BaseRateLimiter

from langchain_cursor import ChatCursor, CursorBridgeError, users
from langchain_cursor.bridge.launch import BridgeSettings
from langchain_cursor_fakes import Delay, FakeCursor, Hang, Text
from tests.conftest import until


def _runtimes(llm: ChatCursor) -> list[Any]:
    user = llm._as_user()
    return [runtime for runtime in users._runtimes.values() if user._id in runtime.users]


def _echo(run: Any) -> list[Any]:
    return [Delay(0.2), Text(run.text.rpartition("call ")[2].split()[0])]


@pytest.mark.clause("POOL-3")
async def test_many_calls_spread_evenly_and_get_their_own_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    choose = users._least_busy

    def noted(bridge: BridgeSettings, bridges: int) -> BridgeSettings:
        chosen = choose(bridge, bridges)
        taken.append(chosen.number)
        return chosen

    monkeypatch.setattr(users, "_least_busy", noted)
    fake = FakeCursor(_echo, real_time=True)
    with ChatCursor(sdk_loader=fake.sdk, bridges=2) as llm:
        answers = await asyncio.gather(*(llm.ainvoke(f"call {n} ") for n in range(100)))
        assert [answer.text for answer in answers] == [str(n) for n in range(100)]
        assert Counter(taken) == {0: 50, 1: 50}
        assert fake.executor_builds == 2
    assert _runtimes(llm) == []


@pytest.mark.clause("POOL-3")
def test_few_calls_stay_on_one_bridge() -> None:
    fake = FakeCursor()
    with ChatCursor(sdk_loader=fake.sdk, bridges=4) as llm:
        llm.batch(["x"] * 8)
        llm.invoke("x")
        assert len(_runtimes(llm)) == 1
        assert fake.executor_builds == 1


@pytest.mark.clause("POOL-4")
def test_prewarm_warms_all_and_close_ends_all() -> None:
    fake = FakeCursor()
    llm = ChatCursor(sdk_loader=fake.sdk, bridges=3)
    llm.prewarm()
    assert (len(_runtimes(llm)), fake.executor_builds, len(fake.runs)) == (3, 3, 0)
    runtimes = _runtimes(llm)
    llm.close()
    assert _runtimes(llm) == []
    assert all(not runtime._lease.held for runtime in runtimes)
    assert not set(runtimes) & users._alive


@pytest.mark.clause("POOL-4")
async def test_a_bridge_that_dies_takes_only_its_own_calls_with_it() -> None:
    hang = True
    fake = FakeCursor(lambda run: [Text("a "), Hang()] if hang else [Text("a")])
    with ChatCursor(sdk_loader=fake.sdk, bridges=2, max_retries=0) as llm:
        await llm.aprewarm()
        calls = [asyncio.ensure_future(llm.ainvoke("x")) for _ in range(4)]
        await asyncio.to_thread(until, lambda: len(fake.runs) == 4)
        first, second = _runtimes(llm)
        assert (first.member.running, second.member.running) == (2, 2)
        first._bridge.process.end()
        for ended in itertools.islice(asyncio.as_completed(calls), 2):
            with pytest.raises(CursorBridgeError):
                await ended
        assert sum(call.done() for call in calls) == 2
        hang = False
        assert (await llm.ainvoke("x")).text == "a"
        assert first.member.running == 0
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


@pytest.mark.clause("POOL-5")
def test_no_more_calls_than_max_concurrency_are_under_way() -> None:
    under_way: list[int] = []

    def noted(run: Any) -> list[Any]:
        under_way.append(sum(runtime.member.running for runtime in _runtimes(llm)))
        return [Delay(0.05), Text("a")]

    fake = FakeCursor(noted, real_time=True)
    with ChatCursor(sdk_loader=fake.sdk, bridges=2) as llm:
        llm.batch(["x"] * 9, config={"max_concurrency": 3})
        asyncio.run(llm.abatch(["x"] * 9, config={"max_concurrency": 3}))
    assert len(under_way) == 18
    assert max(under_way) == 3


class Limiter(BaseRateLimiter):
    """Counts how often it is asked."""

    asked = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        self.asked += 1
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        return self.acquire()


@pytest.mark.clause("POOL-5")
async def test_a_rate_limiter_is_asked_before_each_call() -> None:
    limiter = Limiter()
    with ChatCursor(sdk_loader=FakeCursor().sdk, rate_limiter=limiter) as llm:
        await asyncio.to_thread(llm.invoke, "x")
        await llm.ainvoke("x")
        assert [chunk async for chunk in llm.astream("x")]
        assert limiter.asked == 3
