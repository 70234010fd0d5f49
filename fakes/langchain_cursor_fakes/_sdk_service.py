"""What a fake bridge answers: agents, runs, executors, and the account."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import _sdk_errors as errors
from ._account import SYSTEM_PROMPT_REFUSAL
from ._record import fingerprint
from ._sdk_checks import (
    check_images,
    check_is_local,
    check_model,
    check_store,
    check_tools,
    read_images,
)
from ._sdk_errors import Refused
from ._sdk_events import Json
from ._sdk_executors import Executors, executor_key
from ._sdk_record import FakeAgent, FakeRun
from ._sdk_run import Run
from .runs import Error, ReceivedRun

if TYPE_CHECKING:
    from ._sdk_bridge import FakeBridge
    from .replies import FakeStep
    from .sdk import FakeCursor

# The entry of `agents` by which ChatCursor tells its bridge extension what it wants.
_MARK = "langchain-cursor"
_VERSION = {
    "bridgeVersion": "1.0.0",
    "protocolVersion": "sdk.v1",
    "capabilities": [
        "agent.create",
        "agent.resume",
        "agent.send",
        "run.observe",
        "run.wait",
        "run.cancel",
        "agent.management",
        "cursor.catalog",
        "artifacts.chunked",
        "agent.usage",
    ],
}


@dataclass
class _Agent:
    """An open agent."""

    record: FakeAgent
    model: Json | None
    executor: str
    sandbox: bool
    runs: list[Run] = field(default_factory=list)
    sending: int = 0  # messages that wait for the executor


class Service:
    """The service of one bridge.

    Args:
        bridge: Where time passes, and which may die meanwhile.
        cursor: The account, the script and the record.
        extended: Whether the bridge runs with ChatCursor's extension.
        number: The bridge, counted from 1.
    """

    def __init__(
        self, bridge: FakeBridge, cursor: FakeCursor, *, extended: bool, number: int
    ) -> None:
        self._bridge = bridge
        self._cursor = cursor
        self._extended = extended
        self._number = number
        self._agents: dict[str, _Agent] = {}
        self._runs: dict[str, Run] = {}  # of the open agents
        self._playing: set[Run] = set()
        self._executors = Executors()
        self._building: dict[str, asyncio.Event] = {}

    async def answer(self, method: str, message: Json) -> Json:
        """Answer a call.

        Raises:
            Refused: The bridge would refuse it.
        """
        answer = _ANSWERS.get(method)
        if answer is None:
            raise Refused(errors.unsupported(method))
        return await answer(self, message)

    async def stream(self, method: str, message: Json) -> AsyncGenerator[Json, None]:
        """Answer a call with a stream.

        Raises:
            Refused: The bridge would refuse it.
        """
        if method == "Send":
            return (await self._send(message)).stream()
        if method == "ObserveRun":
            run_id = message.get("runId", "")
            if run_id not in self._runs:
                raise Refused(errors.run_not_found(run_id))
            return self._runs[run_id].replay()
        raise Refused(errors.unsupported(method))

    def end(self) -> None:
        """The bridge has died: so does all that runs on it."""
        for run in self._playing:
            run.interrupt()
        self.forget_agents()

    def forget_agents(self) -> None:
        """Keep that no agent is open any more."""
        with self._cursor._changing():
            for agent in self._agents.values():
                agent.record.is_open = False

    # --- agents ---

    async def _create_agent(self, message: Json) -> Json:
        options = message.get("options", {})
        if message.get("idempotencyKey") and "cloud" not in options:
            raise Refused(errors.CREATE_KEY)
        check_store(options)
        wish = self._take_wish(options)
        await self._bridge.spend(self._bridge.phases.create)
        agent = self._agent(options, wish)
        agent_id = agent.record.id
        if agent.record.is_lease:
            await self._hold_executor(agent)
        else:
            self._check_agent(options, agent)
        self._dispose(agent_id)
        self._agents[agent_id] = agent
        with self._cursor._changing():
            self._cursor._agents.append(agent.record)
        return {"agentId": agent_id, **({} if agent.model is None else {"model": agent.model})}

    def _take_wish(self, options: Json) -> Json:
        """Take out what ChatCursor's extension is asked for, as the extension does."""
        agents = options.get("agents", {})
        if not self._extended or _MARK not in agents:
            return {}
        wish: Json = json.loads(agents.pop(_MARK)["prompt"])
        if not agents:
            del options["agents"]
        if not self._cursor.features.system_prompts:
            wish.pop("systemPrompt", None)
        return {"retries": False, **wish}

    def _agent(self, options: Json, wish: Json) -> _Agent:
        model = options.get("model")
        is_lease = bool(wish.get("prewarm"))
        given_id = "" if is_lease else options.get("agentId", "")
        kept = {**options, "apiKey": fingerprint(options.get("apiKey", ""))}
        return _Agent(
            record=FakeAgent(
                id=given_id or f"{'lease' if is_lease else 'agent'}-{uuid.uuid4()}",
                options=kept,
                model="" if model is None else model["id"],
                system_prompt=wish.get("systemPrompt"),
                is_lease=is_lease,
                bridge=self._number,
            ),
            model=model,
            executor=executor_key(options, retries=wish.get("retries", True)),
            sandbox=bool(options.get("local", {}).get("sandboxOptions", {}).get("enabled")),
        )

    def _check_agent(self, options: Json, agent: _Agent) -> None:
        check_is_local(options)
        if self._cursor.refuse_all_keys:
            raise Refused(errors.REFUSED_KEY)
        check_model(agent.model, self._cursor.models)
        if self._cursor.features.tools:
            check_tools(options)
        system_prompt = agent.record.system_prompt
        if system_prompt is not None and not system_prompt.strip():
            raise Refused(errors.BLANK_SYSTEM_PROMPT)

    async def _hold_executor(self, agent: _Agent) -> None:
        if agent.sandbox and not self._cursor.sandbox:
            raise Refused(errors.NO_SANDBOX)
        key = agent.executor
        if self._executors.hold(key, agent.record.id):
            with self._cursor._changing():
                self._cursor._executor_builds += 1
            built = self._building[key] = asyncio.Event()
            try:
                await self._bridge.spend(self._bridge.phases.build)
            finally:
                del self._building[key]
                built.set()
        elif key in self._building:
            await self._building[key].wait()
            await self._bridge.spend(0)

    async def _close_agent(self, message: Json) -> Json:
        agent = self._find_agent(message)
        await self._bridge.spend(self._bridge.phases.close)
        self._dispose(agent.record.id)
        return {}

    def _dispose(self, agent_id: str) -> None:
        agent = self._agents.pop(agent_id, None)
        if agent is None:
            return
        self._executors.release(agent_id)
        # A run under way goes on; the bridge only forgets it.
        for run in agent.runs:
            del self._runs[run.record.id]
        with self._cursor._changing():
            agent.record.is_open = False

    async def _reload_agent(self, message: Json) -> Json:
        if self._find_agent(message).record.is_lease:
            raise Refused(errors.not_a_function("getAgent(...).reload"))
        return {}

    async def _list_artifacts(self, message: Json) -> Json:
        if self._find_agent(message).record.is_lease:
            raise Refused(errors.not_a_function("getAgent(...).listArtifacts"))
        return {}

    def _find_agent(self, message: Json) -> _Agent:
        agent_id = message.get("agentId", "")
        if agent_id not in self._agents:
            raise Refused(errors.unknown_agent(agent_id))
        return self._agents[agent_id]

    # --- runs ---

    async def _send(self, message: Json) -> Run:
        agent = self._find_agent(message)
        options = message.get("options", {})
        if message.get("idempotencyKey"):
            raise Refused(errors.SEND_KEY)
        check_images(message.get("message", {}))
        if agent.record.is_lease:
            raise Refused(errors.not_a_function("agent.send"))
        images = read_images(message.get("message", {}))
        model = self._check_send(agent, options)
        agent.sending += 1
        try:
            await self._hold_executor(agent)
        finally:
            agent.sending -= 1
        number = agent.record.runs + 1
        received = ReceivedRun(
            text=message.get("message", {}).get("text", ""),
            system_prompt=agent.record.system_prompt,
            images=images,
            model=agent.record.model,
            allowed_tools=_allowed_tools(agent.record.options),
            request_id=str(uuid.uuid4()),
            agent_id=agent.record.id,
            turn=number,
            received_at=time.monotonic(),
        )
        record = FakeRun(
            id=f"run-{uuid.uuid4()}",
            agent=agent.record,
            received=received,
            options={name: value for name, value in options.items() if name != "apiKey"},
            started_at=self._bridge.clock.now,
        )
        with self._cursor._changing():
            agent.record.runs = number
            self._cursor._runs.append(record)
        run = Run(self._bridge, record, model, self._steps(received))
        self._runs[record.id] = run
        agent.runs.append(run)
        self._playing = {known for known in self._playing if known.active} | {run}
        return run

    def _check_send(self, agent: _Agent, options: Json) -> Json:
        if options.get("cloud", {}).get("envVars"):
            raise Refused(errors.CLOUD_SEND_OPTIONS)
        if options.get("enableDeltas") or options.get("enableSteps"):
            raise Refused(errors.unsupported("`on_delta` and `on_step`"))
        chosen = options.get("model")
        check_model(chosen, self._cursor.models)
        if chosen is not None:
            agent.model, agent.record.model = chosen, chosen["id"]
        if agent.model is None:
            raise Refused(errors.NO_MODEL)
        busy = agent.sending or any(run.active for run in agent.runs)
        if busy and not options.get("local", {}).get("force"):
            raise Refused(errors.agent_busy(agent.record.id))
        return agent.model

    def _steps(self, received: ReceivedRun) -> Iterator[FakeStep]:
        if received.system_prompt is not None and self._cursor.system_prompt == "refused":
            return iter([Error("invalid_argument", SYSTEM_PROMPT_REFUSAL)])
        return self._cursor._player.steps(received)

    async def _wait_live_run(self, message: Json) -> Json:
        return {"result": await self._find_run(message).wait()}

    async def _cancel_run(self, message: Json) -> Json:
        run_id = message.get("runId", "")
        if run_id not in self._runs:
            raise Refused(errors.run_not_found(run_id))
        self._runs[run_id].cancel()
        return {}

    def _find_run(self, message: Json) -> Run:
        run_id = message.get("runId", "")
        if run_id not in self._runs:
            raise Refused(errors.unknown_run(run_id))
        return self._runs[run_id]

    # --- the account ---

    async def _list_models(self, message: Json) -> Json:
        self._check_key(message)
        return {"items": [{"id": model, "displayName": model} for model in self._cursor.models]}

    async def _me(self, message: Json) -> Json:
        self._check_key(message)
        return {"user": {}}

    def _check_key(self, message: Json) -> None:
        if not message.get("options", {}).get("apiKey"):
            raise Refused(errors.NO_KEY)
        if self._cursor.refuse_all_keys:
            raise Refused(errors.REFUSED_KEY)

    # --- the rest ---

    async def _shutdown(self, message: Json) -> Json:
        self._bridge.loop.call_soon(self._bridge.end)
        return {}

    async def _get_run(self, message: Json) -> Json:
        raise Refused(errors.run_not_found(message.get("runId", "")))

    async def _get_agent(self, message: Json) -> Json:
        raise Refused(errors.agent_not_found(message.get("agentId", "")))

    async def _change_stored_agent(self, message: Json) -> Json:
        raise Refused(errors.agent_not_stored(message.get("agentId", "")))

    async def _answer_nothing(self, message: Json) -> Json:
        return {}

    async def _ping(self, message: Json) -> Json:
        return {"message": "pong"}

    async def _get_version(self, message: Json) -> Json:
        return dict(_VERSION)


# An agent's store goes with it, so that nothing is found there; see `memoryStore` of the extension.
_ANSWERS: Mapping[str, Callable[[Service, Json], Awaitable[Json]]] = {
    "CreateAgent": Service._create_agent,
    "CloseAgent": Service._close_agent,
    "ReloadAgent": Service._reload_agent,
    "ListArtifacts": Service._list_artifacts,
    "GetAgent": Service._get_agent,
    "ListRuns": Service._get_agent,
    "ResumeAgent": Service._get_agent,
    "ArchiveAgent": Service._change_stored_agent,
    "UnarchiveAgent": Service._change_stored_agent,
    "DeleteAgent": Service._change_stored_agent,
    "ListAgents": Service._answer_nothing,
    "ListAgentMessages": Service._answer_nothing,
    "GetRun": Service._get_run,
    "CancelRun": Service._cancel_run,
    "WaitLiveRun": Service._wait_live_run,
    "ListModels": Service._list_models,
    "Me": Service._me,
    "Ping": Service._ping,
    "GetVersion": Service._get_version,
    "SetToolCallback": Service._answer_nothing,
    "Shutdown": Service._shutdown,
}


def _allowed_tools(options: Mapping[str, Any]) -> str | None:
    names = options.get("tools", {}).get("names")
    return None if names is None else ",".join(names)
