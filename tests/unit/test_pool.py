"""Which of several bridges takes a call."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from langchain_cursor import ChatCursor
from langchain_cursor.pool import START, Member, choose, size

members = st.lists(st.builds(Member, st.integers(0, 200), st.booleans()), min_size=1, max_size=8)


@pytest.mark.clause("POOL-1")
@given(members)
def test_no_warm_bridge_has_less_to_do_than_the_chosen_one(pool: list[Member]) -> None:
    chosen = pool[choose(pool)]
    assert all(chosen.running <= other.running for other in pool if other.warm)


@pytest.mark.clause("POOL-1")
@given(members)
@example([Member(33, warm=True), Member(), Member(32, warm=True)])
def test_a_cold_bridge_is_chosen_only_when_each_warm_one_has_much_to_do(
    pool: list[Member],
) -> None:
    chosen = pool[choose(pool)]
    if not chosen.warm:
        assert all(chosen.running + START < other.running for other in pool if other.warm)


@pytest.mark.clause("POOL-1")
def test_calls_at_once_fill_one_bridge_before_another_starts_and_end_up_even() -> None:
    running = [0, 0]
    order = []
    for _ in range(100):
        chosen = choose(Member(calls, warm=calls > 0) for calls in running)
        running[chosen] += 1
        order.append(chosen)
    assert order[: START + 1] == [0] * (START + 1)
    assert running == [50, 50]


@pytest.mark.clause("POOL-2")
@pytest.mark.parametrize("bridges", [0, -1, "many", 1.5])
def test_nonsense_is_refused(bridges: object) -> None:
    with pytest.raises(ValidationError, match="bridges"):
        ChatCursor(bridges=bridges)  # type: ignore[arg-type] # what is refused here


@pytest.mark.clause("POOL-2")
def test_automatic_is_one_for_each_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)), raising=False)
    assert size("auto") == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert size("auto") == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert size("auto") == 1
