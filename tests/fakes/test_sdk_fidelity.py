"""FakeCursor against the real bridge: the same calls of the SDK, the same outcomes."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import cursor_sdk
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langchain_cursor.bridge.launch import Bridge, BridgeSettings, start_bridge
from langchain_cursor.scratch import Scratch
from langchain_cursor_fakes import (
    CursorCloud,
    Drop,
    Error,
    FakeCursor,
    Hang,
    ReceivedRun,
    Step,
    Text,
    Thinking,
    ThinkingDone,
    Usage,
)

pytestmark = [pytest.mark.bridge, pytest.mark.clause("FAKE-12")]

T = TypeVar("T")

KEY = "crsr_fidelity_0123456789"
GONE = "agent-00000000-0000-4000-8000-000000000000"


@dataclasses.dataclass
class Side:
    """One of the two: a client, and a way to say what its runs are answered."""

    client: cursor_sdk.AsyncClient
    answer: Callable[[list[Step]], None]
    allow_system_prompts: Callable[[bool], None]
    workspace: str
    agents: list[cursor_sdk.AsyncAgent] = dataclasses.field(default_factory=list)
    runs: list[cursor_sdk.AsyncRun] = dataclasses.field(default_factory=list)

    def agent(self, number: int | None) -> cursor_sdk.AsyncAgent:
        if number is None or not self.agents:
            return cursor_sdk.AsyncAgent(client=self.client, agent_id=GONE, model=None)
        return self.agents[number % len(self.agents)]

    def run_id(self, number: int | None) -> str:
        return "run-x" if number is None or not self.runs else self.runs[number % len(self.runs)].id

    def plain(self, outcome: Any) -> Any:
        """An outcome without what is different each time."""
        if isinstance(outcome, cursor_sdk.CursorAgentError):
            details = [self.plain(detail) for detail in outcome.details]
            # The names of the tools are another matter in each version.
            message = outcome.message.partition("Valid tool names")[0]
            if message != outcome.message:
                details = []
            told = (type(outcome).__name__, outcome.code, outcome.status, outcome.is_retryable)
            return (*told, self.plain(message), outcome.proto_error_code, details)
        if isinstance(outcome, BaseException):
            return (type(outcome).__name__, str(outcome))
        if dataclasses.is_dataclass(outcome) and not isinstance(outcome, type):
            return self.plain(dataclasses.asdict(outcome))
        if isinstance(outcome, Mapping):
            return {
                key: "timed"
                if key in ("duration_ms", "durationMs", "created_at", "createdAt")
                else self.plain(value)
                for key, value in outcome.items()
                if key != "value"  # of an error's details: the same in another encoding
            }
        if isinstance(outcome, (list, tuple)):
            return [self.plain(value) for value in outcome]
        if callable(outcome):
            return "a function"
        return self._without_ids(outcome) if isinstance(outcome, str) else outcome

    def _without_ids(self, text: str) -> str:
        names = {agent.agent_id: f"agent {n}" for n, agent in enumerate(self.agents)}
        names |= {run.id: f"run {n}" for n, run in enumerate(self.runs)}
        for name, shown in names.items():
            text = text.replace(name, f"<{shown}>")
        return re.sub(r"(agent|run|lease)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"<\1>", text)


Op = Callable[[Side], Awaitable[Any]]


# --- The calls ------------------------------------------------------------------------------------


def create(options: dict[str, Any]) -> Op:
    async def op(side: Side) -> Any:
        given = {name: value for name, value in options.items() if name not in ("local", "wish")}
        local = {"cwd": side.workspace, "setting_sources": [], **options.get("local", {})}
        if "wish" in options:
            mark = cursor_sdk.AgentDefinition(description="", prompt=options["wish"])
            given["agents"] = {**given.get("agents", {}), "langchain-cursor": mark}
        agent = await side.client.create_agent(
            cursor_sdk.AgentOptions(
                api_key=KEY, local=cursor_sdk.LocalAgentOptions(**local), **given
            )
        )
        side.agents.append(agent)
        return agent.agent_id, agent.model

    return described(op, f"create({options})")


def send(number: int | None, steps: list[Step], message: Any = "Hi", **options: Any) -> Op:
    async def op(side: Side) -> Any:
        side.answer(steps)
        run = await side.agent(number).send(message, cursor_sdk.SendOptions(**options))
        side.runs.append(run)
        events = [event async for event in run.events()]
        return events, await run.wait()

    return described(op, f"send({number}, {steps}, {message!r}, {options})")


def send_and_cancel(number: int, steps: list[Step], busy: bool) -> Op:
    """Cancels a run that hangs after its steps; before that, perhaps, sends once more.

    A run that is refused may have ended by then, on either side: there must be a step to wait for.
    """

    async def op(side: Side) -> Any:
        side.answer([*steps, Hang()])
        agent = side.agent(number)
        run = await agent.send("Hi")
        side.runs.append(run)
        events, others = [], []
        async for event in run.events():
            events.append(event)
            if len(events) == len(steps) + 1 and run.status == "running":
                if busy:
                    others.append(await outcome(agent.send("Me too")))
                others.append(await outcome(run.cancel()))
        others += [await outcome(run.cancel()), await outcome(side.client.cancel_run(run.id))]
        return events, await run.wait(), others

    return described(op, f"send_and_cancel({number}, {steps}, {busy})")


def on_agent(method: str, number: int | None) -> Op:
    async def op(side: Side) -> Any:
        agent = side.agent(number)
        if method == "get":
            return await side.client.get_agent(agent.agent_id)
        if method == "resume":
            return await side.client.resume_agent(agent.agent_id)
        if method == "list_runs":
            return await side.client.list_runs(agent.agent_id)
        return await getattr(agent, method)()

    return described(op, f"on_agent({method}, {number})")


def on_run(method: str, number: int | None) -> Op:
    async def op(side: Side) -> Any:
        call = getattr(side.client, method)(side.run_id(number))
        if method == "observe_run":
            return [event async for event in call]
        return await call

    return described(op, f"on_run({method}, {number})")


def on_client(method: str, **arguments: Any) -> Op:
    async def op(side: Side) -> Any:
        return await getattr(side.client, method)(**arguments)

    return described(op, f"on_client({method}, {arguments})")


def described(op: Op, text: str) -> Op:
    op.__qualname__ = text  # what hypothesis prints of a failing example
    return op


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except Exception as error:
        return error


async def outcomes(side: Side, ops: list[Op]) -> list[Any]:
    return [side.plain(await outcome(op(side))) for op in ops]


# --- What is generated ----------------------------------------------------------------------------

some_text = st.sampled_from(["", "word", "two words ", "\n", "ünï 👍", " <user>"])
steps_of_a_run = st.lists(
    st.one_of(
        st.builds(Text, some_text),
        st.builds(Thinking, some_text),
        st.builds(ThinkingDone, st.integers(0, 999)),
        st.builds(
            Usage,
            *[st.integers(0, 50)] * 4,
            reasoning_tokens=st.sampled_from([None, 0, 7]),
        ),
    ),
    max_size=6,
)
ends = st.sampled_from(
    [
        [],
        [],
        [],
        [Drop()],
        [Error("resource_exhausted", "slow down")],
        [Error("unauthenticated", "")],
        [Error("made_up", "two\nlines")],
        [Error("invalid_argument", "Cannot use this model: x. Available models: y")],
    ]
)
replies = st.builds(lambda steps, end: steps + end, steps_of_a_run, ends)
images = st.sampled_from(
    [
        [],
        [],
        [cursor_sdk.SDKImage(data="aGk=", mime_type="image/png")],
        [cursor_sdk.SDKImage(data="!", mime_type="")],
        [cursor_sdk.SDKImage(url="https://example.org/cat.png")],
        [cursor_sdk.SDKImage()],
    ]
)
messages = st.builds(cursor_sdk.UserMessage, some_text, images)
models = st.sampled_from(
    [
        "composer-2.5",
        "auto",
        "no-such-model",
        cursor_sdk.ModelSelection(
            id="auto", params=[cursor_sdk.ModelParameterValue(id="effort", value="high")]
        ),
    ]
)
wishes = st.sampled_from(
    [
        "{}",
        '{"systemPrompt": "Be brief."}',
        '{"systemPrompt": " "}',
        '{"prewarm": true}',
        '{"prewarm": true, "systemPrompt": "Be brief."}',
    ]
)
options_of_an_agent = st.fixed_dictionaries(
    {"model": models, "wish": wishes, "tools": st.sampled_from([[], [], None, ["read"], ["nope"]])},
    optional={
        "name": st.just("somebody"),
        "agent_id": st.sampled_from(["agent-mine", "an id / of sorts"]),
        "disallowed_tools": st.sampled_from([["shell"], ["shell", "zap", "boom"]]),
        "mode": st.just("plan"),
        "agents": st.just({"reviewer": cursor_sdk.AgentDefinition(description="d", prompt="p")}),
        "local": st.sampled_from(
            [
                {"sandbox_options": cursor_sdk.SandboxOptions(enabled=False)},
                {"store": cursor_sdk.LocalAgentStoreConfig(type="nowhere")},
                {"cwd": "/no/such/directory"},
            ]
        ),
    },
)
numbers = st.one_of(st.integers(0, 2), st.none())
operations = st.one_of(
    st.builds(create, options_of_an_agent),
    st.builds(send, numbers, replies, messages),
    st.builds(
        lambda number, steps, model, force: send(
            number, steps, model=model, local=cursor_sdk.LocalSendOptions(force=force)
        ),
        numbers,
        replies,
        models,
        st.booleans(),
    ),
    st.builds(lambda number: send(number, [], idempotency_key="key"), numbers),
    st.builds(send_and_cancel, st.integers(0, 2), steps_of_a_run.filter(len), st.booleans()),
    st.builds(
        on_agent,
        st.sampled_from(
            [
                "close",
                "reload",
                "get",
                "resume",
                "list_runs",
                "archive",
                "unarchive",
                "delete",
                "list_messages",
                "list_artifacts",
            ]
        ),
        numbers,
    ),
    st.builds(
        on_run,
        st.sampled_from(["cancel_run", "wait_live_run", "observe_run", "get_run"]),
        numbers,
    ),
    st.sampled_from(
        [
            on_client("list_models", api_key=KEY),
            on_client("list_models"),
            on_client("me", api_key=KEY),
            on_client("list_agents"),
            on_client("ping"),
            on_client("get_version"),
        ]
    ),
)


# --- The two sides --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Coroutine[Any, Any, T]], T]]:
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    loop.close()


@dataclasses.dataclass
class Real:
    """The real bridge, with the extension, on the stand-in for Cursor's cloud."""

    cloud: CursorCloud
    bridge: Bridge
    workspace: Path

    def side(self) -> Side:
        def answer(steps: list[Step]) -> None:
            self.cloud.brain = lambda run: list(steps)

        def allow_system_prompts(allowed: bool) -> None:
            self.cloud.system_prompt_allowed = allowed

        return Side(self.bridge.client, answer, allow_system_prompts, str(self.workspace))


@contextmanager
def real_bridge(run: Any) -> Iterator[Real]:
    scratch = Scratch()
    with CursorCloud() as cloud:
        settings = BridgeSettings(KEY, backend=cloud.url, cache_catalog=False)
        bridge = run(start_bridge(settings, lambda: scratch, lambda _: None, lambda _: None))
        yield Real(cloud, bridge, scratch.workspace)
        run(bridge.aclose())
    scratch.remove()


@pytest.fixture(scope="module")
def real(run: Any) -> Iterator[Real]:
    with real_bridge(run) as made:
        yield made


def fake_side(fake: FakeCursor, workspace: Path) -> Side:
    def answer(steps: list[Step]) -> None:
        fake.reply_with(lambda run: list(steps))

    def allow_system_prompts(allowed: bool) -> None:
        fake.system_prompt = "allowed" if allowed else "refused"

    return Side(fake.client(), answer, allow_system_prompts, str(workspace))


async def both(real: Real, ops: list[Op], allowed: bool = True) -> tuple[list[Any], list[Any]]:
    found = []
    for side in (fake_side(FakeCursor(), real.workspace), real.side()):
        side.allow_system_prompts(allowed)
        found.append(await outcomes(side, ops))
        for agent in side.agents:
            await outcome(agent.close())
    return found[0], found[1]


AGENT = {"model": "auto", "apiKey": KEY, "local": {"cwd": "/"}, "tools": []}
OFF = cursor_sdk.SandboxOptions(enabled=False)
REVIEWERS = {"reviewer": cursor_sdk.AgentDefinition(description="d", prompt="p")}
PLAIN = {"model": "composer-2.5", "wish": "{}", "tools": []}


@pytest.mark.since("cursor-sdk", "1.0.40", because="the total of tokens leaves the cache out")
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    first=options_of_an_agent,
    ops=st.lists(operations, min_size=1, max_size=8),
    allowed=st.sampled_from([True, True, False]),
)
def test_any_calls_have_the_same_outcomes(
    real: Real, run: Any, first: dict[str, Any], ops: list[Op], allowed: bool
) -> None:
    ops = [create(PLAIN), create(first), *ops]
    for op, ours, theirs in zip(ops, *run(both(real, ops, allowed)), strict=True):
        assert ours == theirs, op.__qualname__


KINDS_OF_BYTES = {
    "a PNG": b"\x89PNG\r\n\x1a\n...",
    "the beginning of a PNG": b"\x89PNG",
    "nearly a PNG": b"\x89PN",
    "a JPEG": b"\xff\xd8\xff\xe0...",
    "nearly a JPEG": b"\xff\xd8",
    "a GIF": base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"),
    "a WebP": b"RIFF\x10\0\0\0WEBPVP8 ...",
    "a BMP": b"BM......",
    "an SVG": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "no picture": b"hi",
}


def test_images_have_the_same_types(real: Real, run: Any) -> None:
    """The type that a caller names counts on neither side."""

    async def types(side: Side, received: Callable[[], ReceivedRun]) -> dict[str, str]:
        found = {}
        for name, data in KINDS_OF_BYTES.items():
            image = cursor_sdk.SDKImage(
                data=base64.b64encode(data).decode(), mime_type="image/webp"
            )
            agent = await side.client.create_agent({**AGENT, "local": {"cwd": side.workspace}})
            await (await agent.send(cursor_sdk.UserMessage("x", [image]))).wait()
            await agent.close()
            assert received().images[0].data == data
            found[name] = received().images[0].mime_type
        return found

    async def main() -> None:
        fake = FakeCursor()
        of_fake = await types(fake_side(fake, real.workspace), lambda: fake.runs[-1].received)
        real.cloud.brain = lambda run: "ok"
        assert of_fake == await types(real.side(), lambda: real.cloud.runs[-1].received)
        assert set(of_fake.values()) == {"image/png", "image/jpeg", ""}

    run(main())


@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_executors_are_built_by_the_same_rules(real: Real, run: Any, tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")

    def made(cwd: str, **options: Any) -> Op:
        return create({**PLAIN, "local": {"cwd": cwd}, **options})

    def used(number: int, cwd: str, **options: Any) -> list[Op]:
        return [made(cwd, **options), send(number, [Text("ok")])]

    def close(number: int) -> Op:
        return on_agent("close", number)

    ops = [
        *used(0, one),  # builds
        *used(1, one, model="auto", tools=["read"]),
        close(0),
        *used(2, one),  # the second still holds it
        close(1),
        close(2),
        *used(3, one),  # builds
        made(two),  # has not sent
        made(two, wish='{"prewarm": true}'),  # builds
        send(4, [Text("ok")]),
        close(4),
        *used(6, two),
        *used(7, two, local={"cwd": two, "dirs": [one]}),  # builds
        *used(8, two, local={"cwd": two, "sandbox_options": OFF}),  # builds
        *used(9, two, agents=REVIEWERS),  # builds
    ]
    before = real.cloud.executor_builds
    fake = FakeCursor()
    pretended, side = run(_sides(fake, real))
    ours, theirs = run(outcomes(pretended, ops)), run(outcomes(side, ops))
    assert ours == theirs
    assert fake.executor_builds == 6
    real.cloud.wait_for(lambda cloud: cloud.executor_builds - before >= 6)
    time.sleep(1)  # the bridge tells of a build a little after it
    assert real.cloud.executor_builds - before == 6
    for made in side.agents:
        run(outcome(made.close()))


async def _sides(fake: FakeCursor, real: Real) -> tuple[Side, Side]:
    return fake_side(fake, real.workspace), real.side()


def test_a_bridge_that_is_killed_fails_its_calls_in_the_same_way(run: Any) -> None:
    async def die_and_ask(side: Side, kill: Callable[[], object]) -> list[Any]:
        side.answer([Text("a"), Hang()])
        agent = await side.client.create_agent(AGENT)
        run = await agent.send("x")
        stream = run.events()
        seen: list[Any] = [await stream.__anext__(), await stream.__anext__()]
        side.agents, side.runs = [agent], [run]
        kill()
        seen.append(await outcome(stream.__anext__()))
        await outcome(side.client.ping())  # the real one finds its old connection closed
        seen.append(await outcome(side.client.create_agent(AGENT)))
        return [side.plain(each) for each in seen] + [repr(each.__cause__) for each in seen[2:]]

    fake = FakeCursor()
    with real_bridge(run) as real:
        pretended, side = run(_sides(fake, real))
        assert real.bridge.process is not None
        theirs = run(die_and_ask(side, real.bridge.process.end))
    assert run(die_and_ask(pretended, fake.kill_bridge)) == theirs
