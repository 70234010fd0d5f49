"""The lease holds the warm executor while calls run and for as long afterwards as one wanted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from langchain_cursor.lease import Lease

clause = pytest.mark.clause


class FakeTimer:
    """A timer of the fake clock."""

    def __init__(self, at: float, function: Callable[[], None]) -> None:
        self.at = at
        self.function = function
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time that passes only when told to; timers fire in its course."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, function: Callable[[], None]) -> FakeTimer:
        assert seconds > 0
        self.timers.append(FakeTimer(self.now + seconds, function))
        return self.timers[-1]

    @property
    def pending(self) -> list[FakeTimer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.pending if timer.at <= end]:
            first = min(due, key=lambda timer: timer.at)
            self.now = first.at
            self.timers.remove(first)
            first.function()
        self.now = end


class Bench:
    """A lease on a fake clock, and what it has released so far."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.released: list[str] = []
        self.lease: Lease[str] = Lease(self.clock.call_later, self.released.append, self.clock.time)

    def call(self, holder: str | None, keep_alive: float, takes: float = 1.0) -> None:
        self.lease.begin()
        self.clock.sleep(takes)
        self.lease.end(holder, keep_alive)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- the table ---


@clause("LEASE-1")
def test_at_first_nothing_is_held_and_nothing_scheduled(bench: Bench) -> None:
    assert not bench.lease.held
    assert bench.clock.pending == []


@clause("LEASE-1")
def test_giving_up_nothing_releases_nothing(bench: Bench) -> None:
    bench.lease.give_up()
    assert bench.released == []


@clause("LEASE-1")
def test_a_call_that_builds_is_held_after_its_end(bench: Bench) -> None:
    bench.lease.begin()
    assert not bench.lease.held
    bench.lease.end("a", 60)
    assert bench.lease.held
    assert bench.released == []


@clause("LEASE-1")
@pytest.mark.parametrize("keep_alive", [0, 60])
def test_a_call_that_builds_nothing_leaves_nothing_held(bench: Bench, keep_alive: float) -> None:
    bench.call(None, keep_alive)
    assert not bench.lease.held
    assert bench.clock.pending == []


def empty(bench: Bench) -> None:
    pass


def cold(bench: Bench) -> None:
    bench.lease.begin()


def cold_twice(bench: Bench) -> None:
    bench.lease.begin()
    bench.lease.begin()


def resting(bench: Bench) -> None:
    bench.call("old", 60)


def warm(bench: Bench) -> None:
    resting(bench)
    bench.lease.begin()


def warm_after_the_wish(bench: Bench) -> None:
    warm(bench)
    bench.clock.sleep(100)


def warm_twice(bench: Bench) -> None:
    warm(bench)
    bench.lease.begin()


def begin(lease: Lease[str], clock: FakeClock) -> None:
    lease.begin()


def end_with(holder: str | None, keep_alive: float) -> Callable[[Lease[str], FakeClock], None]:
    return lambda lease, clock: lease.end(holder, keep_alive)


def time_passes(lease: Lease[str], clock: FakeClock) -> None:
    clock.sleep(60)


def give_up(lease: Lease[str], clock: FakeClock) -> None:
    lease.give_up()


ROWS = [
    # from, event, is it held then, is there a countdown, what is released
    (empty, begin, False, False, []),
    (resting, begin, True, False, []),
    (cold, begin, False, False, []),
    (warm, begin, True, False, []),
    (cold, end_with(None, 60), False, False, []),
    (cold, end_with("new", 60), True, True, []),
    (cold, end_with("new", 0), False, False, ["new"]),
    (cold_twice, end_with("new", 60), True, False, []),
    (warm_twice, end_with("new", 60), True, False, ["old"]),
    (warm_twice, end_with(None, 60), True, False, []),
    (warm, end_with("new", 60), True, True, ["old"]),
    (warm, end_with("new", 0), True, True, ["old"]),  # the old call's wish stands
    (warm, end_with(None, 0), True, True, []),
    (warm_after_the_wish, end_with("new", 0), False, False, ["old", "new"]),
    (warm_after_the_wish, end_with(None, 0), False, False, ["old"]),
    (resting, time_passes, False, False, ["old"]),
    (resting, give_up, False, False, ["old"]),
    (warm, give_up, False, False, ["old"]),
    (empty, give_up, False, False, []),
    (cold, give_up, False, False, []),
]


@clause("LEASE-1")
@pytest.mark.parametrize(("state", "event", "held", "countdown", "released"), ROWS)
def test_every_row_of_the_table(
    state: Callable[[Bench], None],
    event: Callable[[Lease[str], FakeClock], None],
    held: bool,
    countdown: bool,
    released: list[str],
    bench: Bench,
) -> None:
    state(bench)
    assert bench.released == []
    event(bench.lease, bench.clock)
    assert bench.lease.held is held
    assert len(bench.clock.pending) == countdown
    assert bench.released == released


@clause("LEASE-2")
def test_the_new_holder_is_in_place_when_the_old_one_is_released() -> None:
    held_then: list[tuple[str, bool]] = []
    clock = FakeClock()
    lease: Lease[str] = Lease(
        clock.call_later, lambda holder: held_then.append((holder, lease.held)), clock.time
    )
    for holder in "abc":
        lease.begin()
        lease.end(holder, 60)
    assert held_then == [("a", True), ("b", True)]
    lease.give_up()
    assert held_then[2:] == [("c", False)]


@clause("LEASE-2")
def test_a_failed_call_leaves_the_holder_in_place(bench: Bench) -> None:
    bench.call("a", 60)
    bench.call(None, 60)
    assert bench.lease.held
    assert bench.released == []


@clause("LEASE-3")
def test_it_expires_keep_alive_seconds_after_the_last_end(bench: Bench) -> None:
    bench.call("a", 60, takes=30)
    bench.clock.sleep(50)
    bench.call("b", 60, takes=30)
    assert bench.released == ["a"]
    bench.clock.sleep(59.9)
    assert bench.lease.held
    bench.clock.sleep(0.2)
    assert not bench.lease.held
    assert bench.released == ["a", "b"]
    assert bench.clock.pending == []


@clause("LEASE-3")
def test_a_failed_call_renews_it_too(bench: Bench) -> None:
    bench.call("a", 60)
    bench.clock.sleep(50)
    bench.call(None, 60)
    bench.clock.sleep(59)
    assert bench.lease.held
    bench.clock.sleep(2)
    assert bench.released == ["a"]


@clause("LEASE-4")
def test_it_never_expires_while_a_call_runs(bench: Bench) -> None:
    bench.call("a", 60)
    bench.clock.sleep(59)
    bench.lease.begin()
    bench.clock.sleep(10_000)
    assert bench.lease.held
    assert bench.clock.pending == []
    bench.lease.end("b", 60)
    assert bench.lease.held
    assert bench.released == ["a"]


@clause("LEASE-4")
def test_a_call_that_ends_while_another_runs_starts_no_countdown(bench: Bench) -> None:
    bench.lease.begin()
    bench.lease.begin()
    bench.lease.end("a", 5)
    bench.clock.sleep(1000)
    assert bench.lease.held
    bench.lease.end(None, 5)
    bench.clock.sleep(4)
    assert bench.lease.held
    bench.clock.sleep(2)
    assert bench.released == ["a"]


@clause("LEASE-4")
def test_with_zero_too_the_executor_stays_while_another_call_runs(bench: Bench) -> None:
    bench.lease.begin()
    bench.lease.begin()
    bench.lease.end("a", 0)
    assert bench.lease.held
    bench.lease.end("b", 0)
    assert not bench.lease.held
    assert bench.released == ["a", "b"]


@clause("LEASE-5")
def test_zero_holds_nothing_between_calls(bench: Bench) -> None:
    bench.call("a", 0)
    assert not bench.lease.held
    assert bench.released == ["a"]
    assert bench.clock.pending == []
    bench.call("b", 0)
    assert bench.released == ["a", "b"]


@clause("LEASE-6")
@pytest.mark.parametrize(
    ("first", "second", "seconds"), [(60, 0, 60), (0, 60, 60), (60, 5, 60), (5, 60, 60), (5, 5, 5)]
)
def test_of_calls_at_once_the_longest_wish_holds(
    bench: Bench, first: float, second: float, seconds: float
) -> None:
    bench.lease.begin()
    bench.lease.begin()
    bench.lease.end("a", first)
    bench.lease.end("b", second)
    bench.clock.sleep(seconds - 0.1)
    assert bench.lease.held
    bench.clock.sleep(0.2)
    assert not bench.lease.held
    assert bench.released == ["a", "b"]


@clause("LEASE-6")
def test_a_later_call_never_shortens_what_an_earlier_one_wanted(bench: Bench) -> None:
    bench.call("a", 60)
    bench.clock.sleep(10)
    bench.call("b", 0)
    bench.clock.sleep(10)
    bench.call("c", 5)
    bench.clock.sleep(37.9)  # 59.9 s after the end of a
    assert bench.lease.held
    bench.clock.sleep(0.2)
    assert not bench.lease.held


@clause("LEASE-6")
def test_calls_that_want_nothing_do_not_renew_what_another_wanted(bench: Bench) -> None:
    bench.call("long", 60)
    for _ in range(12):
        bench.clock.sleep(5)
        bench.call("short", 0)
    assert not bench.lease.held


@clause("LEASE-6")
def test_a_wish_that_has_passed_during_a_call_is_over(bench: Bench) -> None:
    bench.call("a", 60)
    bench.call("b", 0, takes=100)
    assert not bench.lease.held
    assert bench.released == ["a", "b"]


@clause("LEASE-6")
def test_a_call_that_had_nothing_to_hold_wants_nothing(bench: Bench) -> None:
    bench.call(None, 60)
    bench.call("b", 0)
    assert not bench.lease.held


@clause("LEASE-7")
def test_giving_up_releases_at_once_and_calls_the_countdown_off(bench: Bench) -> None:
    bench.call("a", 60)
    bench.lease.give_up()
    assert bench.released == ["a"]
    assert bench.clock.pending == []
    bench.lease.give_up()
    bench.clock.sleep(100)
    assert bench.released == ["a"]


@clause("LEASE-7")
def test_giving_up_forgets_what_was_wanted(bench: Bench) -> None:
    bench.call("a", 60)
    bench.lease.give_up()
    bench.call("b", 0)
    assert not bench.lease.held


@clause("LEASE-7")
def test_after_giving_up_during_a_call_its_end_is_counted_right(bench: Bench) -> None:
    bench.call("a", 60)
    bench.lease.begin()
    bench.lease.give_up()
    assert bench.released == ["a"]
    bench.lease.end("b", 5)
    assert bench.lease.held
    bench.clock.sleep(6)
    assert bench.released == ["a", "b"]


@clause("LEASE-7")
def test_after_an_expiry_the_next_call_begins_anew(bench: Bench) -> None:
    bench.call("a", 5)
    bench.clock.sleep(6)
    bench.call("b", 5)
    bench.clock.sleep(4)
    assert bench.released == ["a"]
    bench.clock.sleep(2)
    assert bench.released == ["a", "b"]


# --- any history ---


class LeaseMachine(RuleBasedStateMachine):
    """Any sequence of calls, against the rule said in one line."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.running = 0
        self.made: list[str] = []
        self.wishes: list[float] = []
        self.gone = 0  # how many of the made holders must have been released

    def expire(self) -> None:
        over = self.bench.clock.now >= max(self.wishes, default=-math.inf)
        if self.running == 0 and over:
            self.gone, self.wishes = len(self.made), []

    @rule()
    def begin(self) -> None:
        self.bench.lease.begin()
        self.running += 1

    @precondition(lambda self: self.running > 0)
    @rule(built=st.booleans(), keep_alive=st.sampled_from([0, 1, 5, 60]))
    def end(self, built: bool, keep_alive: int) -> None:
        holder = f"agent {len(self.made)}" if built else None
        if holder is not None:
            self.gone = len(self.made)
            self.made.append(holder)
        self.bench.lease.end(holder, keep_alive)
        self.running -= 1
        if self.gone < len(self.made):
            self.wishes.append(self.bench.clock.now + keep_alive)
        self.expire()

    @rule(seconds=st.sampled_from([0.5, 1, 4, 30, 61]))
    def sleep(self, seconds: float) -> None:
        self.bench.clock.sleep(seconds)
        self.expire()

    @rule()
    def give_up(self) -> None:
        self.bench.lease.give_up()
        self.gone, self.wishes = len(self.made), []

    @invariant()
    def each_holder_is_released_once_and_in_order(self) -> None:
        assert self.bench.released == self.made[: self.gone]

    @invariant()
    def held_is_what_is_not_released(self) -> None:
        assert self.bench.lease.held is (self.gone < len(self.made))

    @invariant()
    def one_countdown_at_most_and_none_while_a_call_runs(self) -> None:
        resting = self.bench.lease.held and self.running == 0
        assert len(self.bench.clock.pending) == (1 if resting else 0)


TestAnyHistory: Any = clause("LEASE-6")(LeaseMachine.TestCase)


# --- without a call ---


@clause("LEASE-8")
def test_what_holds_without_a_call_is_given_up_after_its_time(bench: Bench) -> None:
    bench.lease.hold("a", 10)
    assert bench.lease.held
    bench.clock.sleep(9)
    assert bench.released == []
    bench.clock.sleep(1)
    assert (bench.lease.held, bench.released) == (False, ["a"])


@clause("LEASE-8")
def test_holding_counts_no_call(bench: Bench) -> None:
    bench.lease.begin()
    bench.lease.hold("a", 10)
    assert bench.clock.pending == []
    bench.lease.hold("b", 20)
    assert bench.released == ["a"]
    bench.lease.end(None, 0)
    assert len(bench.clock.pending) == 1
    bench.clock.sleep(20)
    assert bench.released == ["a", "b"]


@clause("LEASE-8")
def test_holding_for_no_time_is_giving_up_at_once(bench: Bench) -> None:
    bench.lease.hold("a", 0)
    assert (bench.lease.held, bench.released, bench.clock.pending) == (False, ["a"], [])


# --- a real loop ---


@clause("LEASE-3")
def test_it_runs_on_the_timers_of_an_event_loop() -> None:
    async def history() -> tuple[bool, list[str]]:
        released: list[str] = []
        lease: Lease[str] = Lease(asyncio.get_running_loop().call_later, released.append)
        lease.begin()
        lease.end("a", 0.05)
        held = lease.held
        for _ in range(100):
            if released:
                break
            await asyncio.sleep(0.02)
        return held, released

    assert asyncio.run(history()) == (True, ["a"])


@clause("LEASE-4")
@given(st.integers(1, 50))
def test_many_calls_at_once_leave_one_holder(count: int) -> None:
    bench = Bench()
    for _ in range(count):
        bench.lease.begin()
    for number in range(count):
        bench.lease.end(str(number), 60)
    assert bench.lease.held
    assert bench.released == [str(number) for number in range(count - 1)]
    assert len(bench.clock.pending) == 1
