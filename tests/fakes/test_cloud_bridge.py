"""The stand-in cloud under the real bridge of cursor-sdk, without the extension."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cursor_sdk
import pytest

from langchain_cursor_fakes import (
    DEFAULT_MODELS,
    CursorCloud,
    Delays,
    Drop,
    Error,
    Hang,
    ReceivedRun,
    Reply,
    Text,
    Usage,
    answer,
    fingerprint,
)
from langchain_cursor_fakes.cloud import SYSTEM_PROMPT_REFUSAL
from tests.fakes.wire_client import outcomes

pytestmark = pytest.mark.bridge

Ask = Callable[..., cursor_sdk.Run]

KEY = "key_of_the_bridge_tests"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def module_cloud() -> Iterator[CursorCloud]:
    with CursorCloud() as cloud:
        yield cloud


@pytest.fixture(scope="module")
def client(home: Path, module_cloud: CursorCloud) -> Iterator[cursor_sdk.Client]:
    """A client of a bridge that takes the stand-in for Cursor's cloud and writes under `home`."""
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("CURSOR_")]:
            environment.delenv(name)
        environment.setenv("HOME", str(home))
        environment.setenv("TMPDIR", str(home))
        environment.setenv("CURSOR_BACKEND_URL", module_cloud.url)
        environment.setenv("NO_PROXY", "*")
        bridge = cursor_sdk.Bridge.launch(workspace=str(home), state_root=str(home))
        process = bridge.process
        assert process is not None
        assert process.stderr is not None
        try:
            with cursor_sdk.Client(bridge.endpoint, allow_api_key_env_fallback=True) as client:
                yield client
        finally:
            bridge.close()
            process.stderr.close()


@pytest.fixture
def cloud(module_cloud: CursorCloud) -> Iterator[CursorCloud]:
    """The cloud under the bridge, as new."""
    module_cloud.clear()
    yield module_cloud
    module_cloud.brain = answer
    module_cloud.delays = Delays()
    module_cloud.refused_keys = frozenset()
    module_cloud.wait_for(lambda c: "running" not in outcomes(c))


@pytest.fixture
def ask(client: cursor_sdk.Client, cloud: CursorCloud, home: Path) -> Iterator[Ask]:
    """Sends a prompt to a new agent, or another one to the last agent; agents are closed."""
    agents: list[cursor_sdk.Agent] = []

    def ask(
        text: str,
        images: tuple[cursor_sdk.SDKImage, ...] = (),
        *,
        follow_up: bool = False,
        api_key: str = KEY,
        **options: object,
    ) -> cursor_sdk.Run:
        if not follow_up:
            local = cursor_sdk.LocalAgentOptions(cwd=home, setting_sources=[])
            agents.append(
                client.create_agent(
                    cursor_sdk.AgentOptions(
                        model=DEFAULT_MODELS[0], api_key=api_key, local=local, **options
                    )
                )
            )
        return agents[-1].send(cursor_sdk.UserMessage(text=text, images=list(images)))

    yield ask
    for agent in agents:
        agent.close()


@pytest.mark.clause("CLOUD-1")
def test_the_bridge_finishes_a_run(cloud: CursorCloud, ask: Ask) -> None:
    messages = list(ask("<user>\nHello!\n</user>").messages())
    texts = [
        block.text
        for message in messages
        if message.type == "assistant"
        for block in message.message.content
    ]
    assert texts == ["Hello ", "from ", "Cursor. ", "You ", "said: ", "Hello!"]
    assert outcomes(cloud) == ["finished"]


@pytest.mark.clause("CLOUD-5")
def test_usage_arrives_as_given_or_counted(cloud: CursorCloud, ask: Ask) -> None:
    counted = ask("say: four words or so").wait().usage
    assert (counted.input_tokens, counted.output_tokens) == (5, 4)
    cloud.brain = lambda run: [Text("a"), Usage(11, 22, 3, 4, 5)]
    given = ask("hi").wait().usage
    assert (given.input_tokens, given.output_tokens) == (11, 22)
    assert (given.cache_read_tokens, given.cache_write_tokens) == (3, 4)
    assert given.reasoning_tokens == 5


@pytest.mark.clause("CLOUD-4")
def test_thinking_arrives_with_its_duration(ask: Ask) -> None:
    messages = list(ask("think: let me see").messages())
    thinking = [message for message in messages if message.type == "thinking"]
    assert "".join(message.text for message in thinking) == "let me see"
    assert thinking[-1].thinking_duration_ms == 100


@pytest.mark.clause("CLOUD-3")
def test_images_arrive_unchanged_and_in_order(cloud: CursorCloud, ask: Ask) -> None:
    sent = [bytes(range(256)) * 3, os.urandom(1_000_000)]
    images = tuple(
        cursor_sdk.SDKImage(data=base64.b64encode(data).decode(), mime_type="image/png")
        for data in sent
    )
    result = ask("look", images).wait()
    assert result.result == "Hello from Cursor. You said: look I see 2 image(s)."
    assert [image.data for image in cloud.runs[0].received.images] == sent


@pytest.mark.clause("CLOUD-3")
def test_an_empty_list_of_tools_arrives_as_an_empty_header(cloud: CursorCloud, ask: Ask) -> None:
    ask("hi", tools=[]).wait()
    ask("hi").wait()
    assert [run.received.allowed_tools for run in cloud.runs] == ["", None]


@pytest.mark.clause("CLOUD-3")
def test_model_agent_and_turn_can_be_told(cloud: CursorCloud, ask: Ask) -> None:
    assert ask("model?").wait().result == DEFAULT_MODELS[0]
    ask("more", follow_up=True).wait()
    ask("other").wait()
    first, second, other = [run.received for run in cloud.runs]
    assert first.agent_id == second.agent_id != other.agent_id
    assert [first.turn, second.turn, other.turn] == [1, 2, 1]


@pytest.mark.clause("CLOUD-8")
def test_a_cancelled_run_is_noticed_at_once(cloud: CursorCloud, ask: Ask) -> None:
    cloud.brain = lambda run: [Text("begun"), Hang()]
    run = ask("hi")
    cloud.wait_for(lambda c: outcomes(c) == ["running"])
    before = time.monotonic()
    run.cancel()
    cloud.wait_for(lambda c: outcomes(c) == ["cancelled"])
    cancelled_at = cloud.runs[0].cancelled_at
    assert cancelled_at is not None
    assert 0 < cancelled_at - before < 0.1


@pytest.mark.clause("CLOUD-2")
def test_a_refused_key_is_an_authentication_error(cloud: CursorCloud, ask: Ask) -> None:
    cloud.refused_keys = {"key_refused"}
    with pytest.raises(cursor_sdk.AuthenticationError, match="Invalid API key"):
        ask("hi", api_key="key_refused")
    assert ask("say: fine").wait().result == "fine"
    assert all("key_" not in request.headers.get("authorization", "") for request in cloud.requests)
    assert f"Bearer {fingerprint(KEY)}" in {r.headers.get("authorization") for r in cloud.requests}


@pytest.mark.clause("CLOUD-10")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_the_bridges_calls_are_counted(cloud: CursorCloud, ask: Ask) -> None:
    ask("hi").wait()
    cloud.wait_for(lambda c: c.executor_builds == 1)
    assert cloud.key_exchanges >= 1


@pytest.mark.timeout(120)
@pytest.mark.clause("CLOUD-4")
@pytest.mark.clause("CLOUD-7")
@pytest.mark.since("cursor-sdk", "1.0.40", because="a run's result tells its error")
def test_failing_runs_reach_the_caller_once_the_stock_bridge_has_given_up(
    cloud: CursorCloud, ask: Ask
) -> None:
    """All at the same time: the stock bridge tries each of them again for about 15 s."""

    def brain(run: ReceivedRun) -> Reply:
        if run.text == "drop once":
            dropped = [r for r in cloud.runs if r.received.text == run.text]
            return [Text("half"), Drop()] if len(dropped) == 1 else "whole"
        if run.text == "raise":
            raise LookupError("nothing there")
        return Error(*errors[run.text])

    errors = {
        "refused": ("invalid_argument", SYSTEM_PROMPT_REFUSAL),
        "exhausted": ("resource_exhausted", "Slow down"),
        "unavailable": ("unavailable", "Come back later"),
    }
    cloud.brain = brain
    runs = {text: ask(text) for text in [*errors, "raise", "drop once"]}
    results = {text: run.wait() for text, run in runs.items()}

    assert results["drop once"].result == "halfwhole"  # the SDK's own way of trying again
    messages = {text: result.error_message for text, result in results.items()}
    assert messages == {
        **{text: f"[{code}] {message}" for text, (code, message) in errors.items()},
        "raise": "[internal] the brain failed: LookupError('nothing there')",
        "drop once": None,
    }
    assert {run.received.turn for run in cloud.runs} == {1}
    assert {type(error) for error in cloud.brain_errors} == {LookupError}
