"""Whatever the order in which things happen, every call ends and nothing is left behind.

Random programs of calls, streams, cancels, closes and bridge deaths run on a stage on which nothing
moves but by the program's own turns (see `turns`): the package's private loop, the callers' loop,
the callers' threads and the clock of them all. So a program that fails fails again, and shrinks.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import cursor_sdk
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from langchain_cursor import (
    ChatCursor,
    CursorBridgeError,
    CursorClosedError,
    CursorConnectionError,
    CursorContractError,
    CursorRateLimitError,
    CursorStartupError,
    CursorTimeoutError,
    users,
)
from langchain_cursor.loop import current_loop
from langchain_cursor_fakes import (
    BridgeDies,
    Delay,
    FakeCursor,
    Hang,
    Phases,
    ReceivedRun,
    Text,
    fingerprint,
    tool_call,
    violation,
)
from langchain_cursor_fakes._sdk_record import FakeAgent, FakeRun
from tests.conftest import until
from tests.fakes.turns import Stage, a_stage

# Without the one that explains: it runs hundreds of programs more.
PHASES = [phase for phase in Phase if phase is not Phase.explain]
PROFILE = os.environ.get("HYPOTHESIS_PROFILE")
EXAMPLES = 1000 if PROFILE == "ci" else settings.default.max_examples

# What a call asks for, and so how its answer goes.
KINDS = (
    "answer",  # at once
    "slow",  # after 2 s, in the middle
    "long",  # more pieces than may wait for a slow reader
    "hang",  # never: after 30 s the run fails
    "busy",  # refused at first, and answered when tried again
    "dies",  # the bridge dies in mid-answer, once
    "dies before",  # the bridge is found dead when the run is sent, once
    "dies after",  # the bridge dies when the answer is complete
    "corrected",  # breaks the tool contract once
    "broken",  # breaks it twice
)
WITH_TOOLS = ("corrected", "broken")
INSTANT = Phases()
LONGEST_KEEP_ALIVE = 5.0
LONG = "".join(f"{number} " for number in range(400))


def note(n: int) -> str:
    """Note a number."""
    return str(n)


class World:
    """A fake, the models on it, and what has become of their calls."""

    def __init__(self, stage: Stage, setting: Setting) -> None:
        self.stage = stage
        self.fake = FakeCursor(
            self._reply,
            sandbox=setting.sandbox,
            system_prompt="allowed" if setting.system_prompt else "refused",
            phases=setting.phases,
            real_time=True,  # the loop's, and that is the stage's
        )
        self.sandbox_missed = not setting.sandbox
        self.killed: float | None = None
        self.leased: dict[FakeAgent, set[FakeRun]] = {}  # open leases, and what runs by them
        self.models: list[ChatCursor | None] = []
        self.calls: list[Call] = []
        self.by_agent: dict[str, Call] = {}

    @property
    def running(self) -> list[Call]:
        return [call for call in self.calls if call.ended is None]

    def model(self, index: int) -> ChatCursor | None:
        return self.models[index % len(self.models)] if self.models else None

    def is_plain(self, calls: list[Call]) -> bool:
        """Whether all calls with one key want one executor, and want it kept."""
        return (
            not self.sandbox_missed
            and len({call.executor for call in calls}) <= 1
            and all(call.keep_alive and call.extension for call in calls)
        )

    def keeps_executor(self, lease: FakeAgent) -> bool:
        """Whether nothing has happened for which this lease may be given up early."""
        calls = [call for call in self.calls if is_of(lease, call.key)]
        return (
            self.is_plain(calls)
            and self.killed is None
            and all(call.kind != "close" for call in calls)
        )

    def note_death(self) -> None:
        self.killed = self.stage.clock.now
        for call in self.running:
            call.killed = True

    def _reply(self, run: ReceivedRun) -> Any:
        call = self.by_agent.get(run.agent_id)
        if call is None:
            match = re.search(r"question #(\d+)", run.text)
            assert match, run.text
            call = self.by_agent[run.agent_id] = self.calls[int(match[1])]
            assert call.system in (run.system_prompt or run.text)
        call.runs += 1
        return call.reply()


class Call:
    """Something that was begun, and must end."""

    def __init__(
        self, world: World, model: ChatCursor, kind: str, timeout: float | None = None
    ) -> None:
        self.world = world
        self.number = len(world.calls)
        self.kind = kind
        self.timeout = timeout or 600.0
        assert model.api_key is not None
        self.key = model.api_key.get_secret_value()
        self.extension = model.bridge_extension
        self.executor = (model.bridge_extension, model.sandbox)
        self.keep_alive = model.keep_alive
        self.model: ChatCursor | None = model
        self.began = world.stage.clock.now
        self.ended: float | None = None
        self.cancelled: float | None = None
        self.closed = any(call.kind == "close" and call.model is model for call in world.running)
        self.killed = world.killed == self.began  # it may not have been noticed yet
        self.paused = self.partly = False
        self.runs = 0
        self.answer: Any = None
        self.error: BaseException | None = None
        self.cancel: Callable[[], object] = lambda: None
        world.calls.append(self)

    @property
    def wanted_until(self) -> float:
        """Until when it wants its executor kept."""
        return math.inf if self.ended is None else self.ended + self.keep_alive

    # --- what is asked and answered ---

    @property
    def system(self) -> str:
        return f"system #{self.number}."

    def prompt(self) -> list[tuple[str, str]]:
        return [("system", self.system), ("human", f"question #{self.number}")]

    def runnable(self) -> Any:
        assert self.model is not None
        return self.model.bind_tools([note]) if self.kind in WITH_TOOLS else self.model

    def reply(self) -> Any:
        words: Any = [Text("Answer "), Text(f"#{self.number}.")]
        good = tool_call("note", {"n": self.number})
        again = self.runs > 1
        if self.kind == "slow":
            words.insert(1, Delay(2))
        elif self.kind == "long":
            words[0:0] = [Text(word) for word in LONG.split()]
        elif self.kind == "hang":
            words.insert(1, Hang())
        elif self.kind == "busy" and not again:
            return cursor_sdk.RateLimitError("slow down")
        elif self.kind.startswith("dies") and not again:
            self.world.note_death()
            if self.kind == "dies before":
                return BridgeDies("before")
            words.insert(1, BridgeDies("after" if self.kind == "dies after" else "during"))
        elif self.kind == "broken" or (self.kind == "corrected" and not again):
            return violation("wrong_tool", good)
        elif self.kind == "corrected":
            return good
        return words

    def expected(self) -> tuple[str, list[int]]:
        if self.kind in WITH_TOOLS:
            return "", [self.number]
        long = LONG.replace(" ", "") if self.kind == "long" else ""
        return f"{long}Answer #{self.number}.", []

    # --- how it is carried out ---

    def start_thread(self, work: Callable[[Call], Any]) -> None:
        def target() -> None:
            try:
                self.answer = work(self)
            except BaseException as error:
                self.error = error
            self.end()

        thread = self.world.stage.start_thread(target)
        self.cancel = lambda: thread.interrupt(KeyboardInterrupt())

    def start_task(self, work: Callable[[Call], Any]) -> None:
        task = self.world.stage.start_task(lambda: work(self))

        def done(task: asyncio.Task[Any]) -> None:
            try:
                self.answer = task.result()
            except BaseException as error:
                self.error = error
            self.end()

        task.add_done_callback(done)
        self.cancel = task.cancel

    def end(self) -> None:
        self.ended = self.world.stage.clock.now
        self.model, self.cancel = None, lambda: None
        if self.error is not None:  # without what it would keep alive
            self.error = self.error.with_traceback(None)
            self.error.__cause__ = self.error.__context__ = None

    # --- how it must have ended ---

    def check(self) -> None:
        assert self.ended is not None, f"{self} has not ended"
        if self.cancelled is not None:
            assert self.ended == self.cancelled, f"{self} went on after it was cancelled"
        if not self.paused:
            assert self.ended - self.began <= self.timeout + 1e-6, f"{self} took too long"
        if self.error is None:
            self.check_answer()
        else:
            assert self.may_fail(self.error), f"{self} must not fail with {self.error!r}"

    def check_answer(self) -> None:
        if self.kind in ("prewarm", "close"):
            return
        assert self.kind != "broken"
        text, calls = self.expected()
        if self.answer is None:
            got = "", []
        else:
            got = self.answer.text, [call["args"]["n"] for call in self.answer.tool_calls]
        if self.partly:
            assert text.startswith(got[0]), f"{self} has another's answer: {got}"
        else:
            assert got == (text, calls), f"{self} has another's answer: {got}"

    def may_fail(self, error: BaseException) -> bool:
        if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
            return self.cancelled is not None
        if self.kind in ("prewarm", "close"):
            return False
        if isinstance(error, CursorClosedError):
            return self.closed
        if isinstance(error, CursorTimeoutError):
            return self.world.stage.clock.now - self.began >= self.timeout
        if isinstance(error, (CursorBridgeError, CursorStartupError)):
            return self.killed
        if isinstance(error, CursorConnectionError):
            return self.kind == "hang"
        if isinstance(error, CursorContractError):
            return self.kind == "broken"
        return isinstance(error, CursorRateLimitError) and self.kind == "busy"

    def __repr__(self) -> str:
        return f"call {self.number} ({self.kind})"


# --- the steps of a program -----------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """The machine, the account, and how long things take."""

    sandbox: bool = True
    system_prompt: bool = True
    phases: Phases = INSTANT


@dataclass(frozen=True)
class New:
    """Make a model."""

    keep_alive: float = 5.0
    max_retries: int = 1
    sandbox: bool = True
    extension: bool = True
    key: str = "one"
    prewarm: bool = False

    def do(self, world: World) -> None:
        model = ChatCursor(
            api_key=self.key,
            sdk_loader=world.fake.sdk,
            keep_alive=self.keep_alive,
            max_retries=self.max_retries,
            sandbox=self.sandbox,
            bridge_extension=self.extension,
            prewarm=self.prewarm,
        )
        world.models.append(model)
        if self.prewarm:
            Call(world, model, "prewarm").end()  # nobody waits for it


@dataclass(frozen=True)
class Copy:
    """Copy a model."""

    model: int = 0

    def do(self, world: World) -> None:
        model = world.model(self.model)
        world.models.append(model and model.model_copy())


@dataclass(frozen=True)
class Ask:
    """Begin a call: of a thread or a task, in one piece or as a stream."""

    model: int = 0
    kind: str = "answer"
    sync: bool = False
    timeout: float | None = None

    def do(self, world: World) -> None:
        model = world.model(self.model)
        if model is None:
            return
        call = Call(world, model, self.kind, self.timeout)
        limit = {} if self.timeout is None else {"timeout": self.timeout}
        if self.sync:
            call.start_thread(lambda call: call.runnable().invoke(call.prompt(), **limit))
        else:
            call.start_task(lambda call: call.runnable().ainvoke(call.prompt(), **limit))


@dataclass(frozen=True)
class Stream:
    """Begin a stream, which is read to its end or closed or dropped after some chunks."""

    model: int = 0
    kind: str = "answer"
    sync: bool = False
    timeout: float | None = None
    chunks: int | None = None
    closed: bool = True
    pause: float = 0.0

    def do(self, world: World) -> None:
        model = world.model(self.model)
        if model is None:
            return
        call = Call(world, model, self.kind, self.timeout)
        call.partly, call.paused = self.chunks is not None, self.pause > 0
        if self.sync:
            call.start_thread(self._read)
        else:
            call.start_task(self._aread)

    def _limit(self) -> dict[str, float]:
        return {} if self.timeout is None else {"timeout": self.timeout}

    def _read(self, call: Call) -> Any:
        whole: Any = None
        stream = call.runnable().stream(call.prompt(), **self._limit())
        for number, chunk in enumerate(stream, 1):
            whole = chunk if whole is None else whole + chunk
            if number == self.chunks:
                if self.closed:
                    stream.close()
                break
            if self.pause and number < 4:
                call.world.stage.sleep(self.pause)
        return whole

    async def _aread(self, call: Call) -> Any:
        whole: Any = None
        stream = call.runnable().astream(call.prompt(), **self._limit())
        number = 0
        async for chunk in stream:
            number += 1
            whole = chunk if whole is None else whole + chunk
            if number == self.chunks:
                if self.closed:
                    await stream.aclose()
                break
            if self.pause and number < 4:
                await asyncio.sleep(self.pause)
        return whole


@dataclass(frozen=True)
class Prewarm:
    """Warm a model."""

    model: int = 0
    sync: bool = False

    def do(self, world: World) -> None:
        model = world.model(self.model)
        if model is None:
            return
        call = Call(world, model, "prewarm")
        if self.sync:
            call.start_thread(lambda call: call.model.prewarm())
        else:
            call.start_task(lambda call: call.model.aprewarm())


@dataclass(frozen=True)
class Cancel:
    """Cancel a task, or press Ctrl-C in a thread."""

    call: int = 0

    def do(self, world: World) -> None:
        if running := world.running:
            call = running[self.call % len(running)]
            call.cancelled = world.stage.clock.now
            call.cancel()


@dataclass(frozen=True)
class Close:
    """Close a model."""

    model: int = 0
    sync: bool = False

    def do(self, world: World) -> None:
        model = world.model(self.model)
        if model is None:
            return
        for other in world.running:
            other.closed = other.closed or other.model is model
        call = Call(world, model, "close", 15.0)
        if self.sync:
            call.start_thread(lambda call: call.model.close())
        else:
            call.start_task(lambda call: call.model.aclose())


@dataclass(frozen=True)
class Collect:
    """Forget a model."""

    model: int = 0

    def do(self, world: World) -> None:
        if world.models:
            world.models[self.model % len(world.models)] = None


@dataclass(frozen=True)
class Kill:
    """Kill the bridges."""

    def do(self, world: World) -> None:
        world.note_death()
        world.fake.kill_bridge()


@dataclass(frozen=True)
class Change:
    """The machine or the account has become another one."""

    sandbox: bool = True
    system_prompt: bool = True

    def do(self, world: World) -> None:
        world.fake.sandbox = self.sandbox
        world.sandbox_missed = world.sandbox_missed or not self.sandbox
        world.fake.system_prompt = "allowed" if self.system_prompt else "refused"


@dataclass(frozen=True)
class Turns:
    """Give one of them some turns, or all."""

    number: int = 1
    who: Literal["all", "private", "callers", "threads"] = "all"

    def do(self, world: World) -> None:
        stage = world.stage
        turn = {
            "all": stage.turn,
            "private": stage.private.turn,
            "callers": stage.callers.turn,
            "threads": stage.turn_threads,
        }[self.who]
        for _ in range(self.number):
            turn()


@dataclass(frozen=True)
class Pass:
    """Let time pass."""

    seconds: float = 0.0

    def do(self, world: World) -> None:
        world.stage.let_pass(self.seconds)


Step = New | Copy | Ask | Stream | Prewarm | Cancel | Close | Collect | Kill | Change | Turns | Pass

indices = st.integers(0, 3)
kinds = st.sampled_from(["answer"] * 6 + ["slow"] * 3 + ["long", *KINDS])
timeouts = st.sampled_from([None, None, 0.5, 3.0])
moments = st.sampled_from([0.0, 0.0, 0.1, 1.0])

phases = st.one_of(
    st.just(INSTANT),
    st.builds(
        Phases,
        start=moments,
        create=moments,
        build=moments,
        first_token=moments,
        per_token=st.sampled_from([0.0, 0.01]),
        close=moments,
    ),
)
setting_strategy = st.builds(
    Setting,
    sandbox=st.sampled_from([True, True, True, False]),
    system_prompt=st.sampled_from([True, True, False]),
    phases=phases,
)
new = st.builds(
    New,
    keep_alive=st.sampled_from([5.0, 5.0, 1.0, 0.0]),
    max_retries=st.integers(0, 2),
    sandbox=st.sampled_from([True, True, True, False]),
    extension=st.sampled_from([True, True, True, False]),
    key=st.sampled_from(["one", "one", "two"]),
    prewarm=st.sampled_from([False, False, False, True]),
)
ask = st.builds(Ask, indices, kinds, st.booleans(), timeouts)
stream = st.builds(
    Stream,
    indices,
    kinds,
    st.booleans(),
    timeouts,
    chunks=st.sampled_from([None, None, 1, 2, 260]),
    closed=st.booleans(),
    pause=st.sampled_from([0.0, 0.0, 1.0]),
)
turns = st.builds(
    Turns, st.integers(1, 12), st.sampled_from(["all", "all", "private", "callers", "threads"])
)
step = st.one_of(
    ask,
    ask,
    stream,
    stream,
    turns,
    turns,
    turns,
    st.builds(Pass, st.sampled_from([0.0, 0.05, 0.5, 1.0, 4.0, 8.0, 31.0])),
    st.builds(Cancel, indices),
    st.builds(Close, indices, st.booleans()),
    st.one_of(
        new,
        st.builds(Copy, indices),
        st.builds(Prewarm, indices, st.booleans()),
        st.builds(Collect, indices),
        st.just(Kill()),
        st.builds(Change, st.booleans(), st.booleans()),
    ),
)
# Nothing dies or is closed, and all want the same: then it is known what the executor does.
calm_new = st.builds(New, keep_alive=st.sampled_from([1.0, 1.0, 5.0]), prewarm=st.booleans())
calm_kinds = st.sampled_from(["answer", "slow", "slow", "hang"])
calm_step = st.one_of(
    st.builds(Ask, indices, calm_kinds, st.booleans(), timeouts),
    st.builds(Ask, indices, calm_kinds),
    st.builds(Stream, indices, calm_kinds, st.booleans()),
    turns,
    st.builds(Pass, st.sampled_from([0.05, 0.5, 0.5, 1.0, 1.0, 4.0])),
    st.builds(Pass, st.sampled_from([0.5, 1.0])),
    st.builds(Cancel, indices),
    calm_new,
)
programs = st.one_of(
    st.tuples(new, st.lists(step, min_size=8, max_size=32)),
    st.tuples(new, st.lists(step, min_size=8, max_size=32)),
    st.tuples(calm_new, st.lists(calm_step, min_size=8, max_size=24)),
)


# --- what must be so in the end -------------------------------------------------------------------


class Said(logging.Handler):
    """Warnings as texts: a record would keep its exception, and that the model."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


EXPECTED = re.compile("is not prewarmed|sandbox is not supported|not enabled custom system prompts")


@contextmanager
def nothing_unexpected_said() -> Iterator[None]:
    said = Said()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("langchain_cursor", "asyncio"):
            logger = logging.getLogger(name)
            patch.setattr(logger, "handlers", [said])
            patch.setattr(logger, "propagate", False)
        patch.setattr(sys, "unraisablehook", lambda args: said.texts.append(repr(args.exc_value)))
        yield
    assert [text for text in said.texts if not EXPECTED.search(text)] == []


@contextmanager
def own_garbage() -> Iterator[None]:
    """Collecting looks at what is made meanwhile alone, and happens when the program says so."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run_program(setting: Setting, program: list[Step], close: bool) -> None:
    threads = threading.active_count()
    with own_garbage(), nothing_unexpected_said(), a_stage() as stage:
        world = World(stage, setting)
        for step in program:
            step.do(world)
            check_leases(world)
        check_calls(world)
        check_quiet(world)
        check_builds(world)
        leave(world, close)
        check_nothing_left(world)
    assert threading.active_count() == threads


def check_leases(world: World) -> None:
    """No executor is held for longer than somebody wanted it, nor given up while one runs."""
    fake, now = world.fake, world.stage.clock.now
    for key in ("one", "two"):
        calls = [call for call in world.calls if call.key == key]
        wanted = max((call.wanted_until for call in calls), default=0.0)
        if now > wanted + slack(world):
            assert [agent for agent in fake.agents if agent.is_open and is_of(agent, key)] == []
    running = {run for run in fake.runs if run.outcome == "running"}
    # One that ran out just before a call, and is closed behind its back, has been replaced by then.
    held = {agent.bridge for agent in fake.agents if agent.is_lease and agent.is_open}
    for lease, runs in world.leased.items():
        if not lease.is_open and lease.bridge not in held and world.keeps_executor(lease):
            assert not runs & running, f"{lease} was given up while runs needed it"
    world.leased = {
        lease: {run for run in running if run.agent.bridge == lease.bridge}
        for lease in fake.agents
        if lease.is_lease and lease.is_open
    }


def is_of(agent: FakeAgent, key: str) -> bool:
    return bool(agent.options["apiKey"] == fingerprint(key))


def slack(world: World) -> float:
    """Seconds in which what is over has been closed."""
    spent = sum(vars(world.fake.phases).values())
    return 1.0 + spent * (2 + len(world.fake.agents))


def check_calls(world: World) -> None:
    """Every call ends, as it may."""
    for _ in range(40):
        if not world.running:
            break
        world.stage.let_pass(30)
    for call in world.calls:
        call.check()
    assert world.fake.failures == []


def check_quiet(world: World) -> None:
    """No run goes on, and what is kept warm is given up."""
    world.stage.let_pass(slack(world))
    assert [run for run in world.fake.runs if run.outcome == "running"] == []
    world.stage.let_pass(LONGEST_KEEP_ALIVE + slack(world))
    assert [agent for agent in world.fake.agents if agent.is_open] == []


def check_builds(world: World) -> None:
    """An executor is built for a new bridge, after a pause, and where none can be kept."""
    # A bridge may be killed while it builds one, before there is a lease or an agent to count.
    allowed = world.fake.bridge_starts
    for key in ("one", "two"):
        calls = [call for call in world.calls if call.key == key and call.kind != "close"]
        if world.is_plain(calls):
            allowed += pauses(calls)
        else:
            allowed += sum(call.kind == "prewarm" or 3 + call.runs for call in calls)
    assert world.fake.executor_builds <= allowed


def pauses(calls: list[Call]) -> int:
    """How often nothing ran for so long that the executor may have been given up."""
    found, until = 0, 0.0
    for call in sorted(calls, key=lambda call: call.began):
        assert call.ended is not None
        if call.began >= until:
            found += 1
        until = max(until, call.ended + min(call.keep_alive for call in calls))
    return found


def leave(world: World, close: bool) -> None:
    """Close the models, or forget them."""
    if close:
        for number in range(len(world.models)):
            Close(number, sync=bool(number % 2)).do(world)
    world.models.clear()
    world.stage.let_pass(slack(world))
    check_calls(world)
    gc.collect()
    world.stage.let_pass(LONGEST_KEEP_ALIVE + slack(world))


def check_nothing_left(world: World) -> None:
    stage = world.stage
    registry = ("_runtimes", "_alive", "_unused", "_calls", "_ending")
    assert {name: left for name in registry if (left := getattr(users, name))} == {}
    assert [bridge for bridge in world.fake._bridges if bridge.alive] == []
    for loop in (stage.private, stage.callers):
        assert asyncio.all_tasks(loop) == set()
        assert loop.due is None  # no timer either
    assert stage.threads == []
    assert stage.complaints == []


async def _end_what_nobody_uses() -> None:
    # Their timers would find the registry of a stage.
    for runtime, timer in list(users._unused.items()):
        timer.cancel()
        users._end_unused(runtime)
    await asyncio.gather(*users._ending)


@pytest.fixture(scope="module", autouse=True)
def _garbage_of_others() -> Iterator[None]:
    """Models of other tests, and their runtimes, are ended before and after, not meanwhile."""
    gc.collect()
    private = current_loop()
    if private is not None:
        private.run(_end_what_nobody_uses)
    yield
    gc.unfreeze()
    gc.collect()


@pytest.mark.clause("RUNTIME-21")
@settings(max_examples=EXAMPLES, phases=PHASES)
@given(setting=setting_strategy, program=programs, close=st.booleans())
def test_whatever_the_order_every_call_ends_and_nothing_leaks(
    setting: Setting, program: tuple[New, list[Step]], close: bool
) -> None:
    first, then = program
    run_program(setting, [first, *then], close)


@pytest.mark.clause("RUNTIME-21")
def test_the_same_holds_in_real_threads_and_real_time() -> None:
    fake = FakeCursor(lambda run: f"Answer to {run.text[-30:]}", real_time=True)
    allowed = (CursorBridgeError, CursorClosedError, CursorStartupError)
    models = [ChatCursor(sdk_loader=fake.sdk, max_retries=0, keep_alive=0.01) for _ in range(4)]

    def use(number: int) -> None:
        draw = random.Random(number)
        for step in range(25):
            model = models[draw.randrange(4)]
            question = f"question {number}/{step}."
            try:
                if draw.random() < 0.1:
                    fake.kill_bridge()
                elif draw.random() < 0.1:
                    model.close()
                elif draw.random() < 0.3:
                    next(model.stream(question))  # and drop the rest
                elif draw.random() < 0.5:
                    assert question in asyncio.run(model.ainvoke(question)).text
                else:
                    assert question in model.invoke(question).text
            except allowed:
                continue

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    for model in models:
        model.close()
    assert fake.failures == []
    assert until(lambda: not any(agent.is_open for agent in fake.agents))
    assert [run for run in fake.runs if run.outcome == "running"] == []
    assert not any(runtime.settings.loader is fake.sdk for runtime in users._runtimes.values())
