"""The runtime: the one place that talks to the SDK. A bridge, a warm executor, agents, runs.

A runtime is shared by all models of a process with the same key, backend and bridge settings, for
a bridge is 130 MB and a second. Everything here runs on the private loop, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import httpx
import tenacity

from langchain_cursor.agents import GUARDRAIL, AgentSettings, agent_options
from langchain_cursor.bridge.launch import Bridge, BridgeSettings, start_bridge
from langchain_cursor.bridge.process import BridgeProcess
from langchain_cursor.errors import (
    CursorBridgeError,
    CursorCancelledError,
    CursorError,
    CursorTimeoutError,
    run_error,
    sdk_error,
)
from langchain_cursor.events import (
    Event,
    Finished,
    Started,
    TextDelta,
    ThinkingDelta,
    Usage,
    usage_metadata,
)
from langchain_cursor.lease import Lease
from langchain_cursor.loop import refuse_at_end
from langchain_cursor.scratch import Scratch, sweep

if TYPE_CHECKING:
    from langchain_cursor.serializer import Prompt

logger = logging.getLogger("langchain_cursor")

T = TypeVar("T")

# Seconds that cleaning up behind a caller's back may take before it is given up.
_CLOSE_TIMEOUT = 10.0
# The bridge is one thread: an agent that closes takes time from a call that runs. So agents are
# closed once nothing has run for this many seconds, but at most so many wait for that.
_IDLE = 0.01
_MOST_WAITING = 4
# Seconds that `close()` waits for it; closing an agent waits up to 2 s for the SDK's telemetry.
_SETTLE_TIMEOUT = 3.0
_LONGEST_RETRY_WAIT = 8.0


@dataclass(frozen=True)
class CallSettings:
    """What a call wants of the runtime.

    Args:
        agent: Model and sandbox.
        keep_alive: Seconds to keep the executor warm after the call.
        timeout: Seconds for the whole call, retries included; None for no limit.
        max_retries: How often a transient failure is tried again.
    """

    agent: AgentSettings
    keep_alive: float = 60.0
    timeout: float | None = None
    max_retries: int = 0


class Agent:
    """A throwaway agent: made for one call, able to do nothing but answer."""

    def __init__(self, runtime: Runtime, settings: AgentSettings) -> None:
        self.bridge: Bridge
        self.turns = 0
        self._runtime = runtime
        self._settings = settings
        self._agent: Any = None
        self._run: Any = None
        # What was asked of the bridge and not answered yet. A task of its own, so that a caller
        # who gives up leaves nothing behind: `aclose` waits for it and undoes it.
        self._asked: asyncio.Task[Any] | None = None

    async def open(self) -> None:
        """Create the agent; once more, on a new bridge, if the bridge turns out to be dead."""
        for attempt in (1, 2):
            self.bridge = bridge = await self._runtime.bridge()
            settings = self._settings
            if not self._runtime.sandbox_works:
                settings = replace(settings, sandbox=False)
            options = agent_options(
                bridge.sdk,
                bridge.can,
                settings,
                api_key=self._runtime.settings.api_key,
                workspace=self._runtime.workspace,
            )
            try:
                self._agent = await self._ask(bridge.client.create_agent(options))
            except Exception as error:
                if not _is_transport(error):
                    raise sdk_error(error) from error
                await self._runtime.lost_if_gone(bridge, error)
                if attempt == 2 or isinstance(error.__cause__, httpx.TimeoutException):
                    raise _bridge_error(bridge, error) from error
            else:
                return

    async def send(self, prompt: Prompt) -> AsyncIterator[Event]:
        """Send a prompt, and yield what the run says.

        A second prompt continues the conversation.

        Raises:
            CursorError: The run failed, by the table in `errors`.
        """
        run = await self._begin(prompt)
        yield Started(run.id)
        said = ""
        texts: list[str] = []
        try:
            async with aclosing(run.events()) as events:
                async for event in events:
                    message = event.sdk_message
                    kind = getattr(message, "type", None)
                    if kind == "assistant":
                        for block in message.message.content:
                            text = getattr(block, "text", "")
                            if text:
                                texts.append(text)
                                yield TextDelta(text)
                    elif kind == "thinking":
                        if message.text:
                            yield ThinkingDelta(message.text)
                    elif kind == "status" and message.message:
                        said = message.message
            result = await run.wait()
        except Exception as error:
            if _is_transport(error):
                await self._runtime.lost_if_gone(self.bridge, error)
                raise _bridge_error(self.bridge, error, run_id=run.id) from error
            raise sdk_error(error) from error
        self._run = None
        self.turns += 1
        usage = _usage(result.usage)
        if result.status == "cancelled":
            raise CursorCancelledError("The run was cancelled.", run_id=result.id)
        if result.status != "finished":
            raise run_error(
                getattr(result, "error_message", None) or said,
                sdk=self.bridge.sdk,
                code=getattr(result, "error_code", None),
                run_id=result.id,
                usage=usage_metadata(usage),
            )
        if not texts and result.result:
            texts.append(result.result)
            yield TextDelta(result.result)
        yield Finished(
            run_id=result.id,
            model=result.model.id if result.model else self._settings.model,
            duration_ms=result.duration_ms,
            usage=usage,
            text="".join(texts),
        )

    @property
    def idle(self) -> bool:
        """Whether no run is under way."""
        return self._run is None and self._asked is None

    async def aclose(self) -> None:
        """Cancel a run that is under way, and close the agent. Never raises, never hangs."""
        try:
            with anyio.move_on_after(_CLOSE_TIMEOUT):
                await self._settle()
                if self._run is not None:
                    await self._run.cancel()
                if self._agent is not None and not self.bridge.lost:
                    await self._agent.close()
        except Exception as error:
            # It may hold a prompt: name its class alone.
            logger.debug("An agent did not close cleanly: %s", type(error).__name__)

    async def _ask(self, question: Coroutine[Any, Any, Any]) -> Any:
        asked = self._asked = asyncio.ensure_future(question)
        asked.add_done_callback(_retrieve)
        try:
            answer = await asyncio.shield(asked)
        except Exception:
            self._asked = None
            raise
        self._asked = None
        return answer

    async def _settle(self) -> None:
        asked, self._asked = self._asked, None
        if asked is None:
            return
        answer = await asked
        if self._agent is None:
            self._agent = answer
        else:
            self._run = answer

    async def _begin(self, prompt: Prompt) -> Any:
        for attempt in itertools.count(1):
            try:
                self._run = await self._ask(self._agent.send(_message(self.bridge, prompt)))
                return self._run
            except Exception as error:
                if self.turns or attempt > 2 or not await self._may_send_again(error):
                    if _is_transport(error):
                        raise _bridge_error(self.bridge, error) from error
                    raise sdk_error(error) from error
            self._runtime.behind(_close_refused(self.bridge, self._agent))
            self._agent = None
            await self.open()

    async def _may_send_again(self, error: Exception) -> bool:
        """Whether the run certainly did not begin, and may if it is sent to a new agent."""
        if _is_transport(error):
            await self._runtime.lost_if_gone(self.bridge, error)
            return isinstance(error.__cause__, httpx.ConnectError)
        if _is_sandbox_refusal(error) and self._runtime.sandbox_works:
            self._runtime.sandbox_works = False
            logger.warning(
                "Cursor's sandbox is not supported on this machine: agents run without it. They "
                "have no tools either way. Silence this with `ChatCursor(sandbox=False)`."
            )
        return _is_sandbox_refusal(error)


async def _close_refused(bridge: Bridge, agent: Any) -> None:
    if bridge.lost:
        return
    try:
        with anyio.move_on_after(_CLOSE_TIMEOUT):
            await agent.close()
    except Exception as error:
        logger.debug("An agent did not close cleanly: %s", type(error).__name__)


class Runtime:
    """A bridge that is started when needed and again when it dies, and its warm executor.

    Args:
        settings: Which bridge.
    """

    def __init__(self, settings: BridgeSettings) -> None:
        self.settings = settings
        self.users: set[int] = set()
        self.sandbox_works = True
        self.last_keep_alive = 0.0
        self._extension = settings.extension
        self._scratch: Scratch | None = None
        self._bridge: Bridge | None = None
        self._starting: asyncio.Task[Bridge] | None = None
        self._processes: set[BridgeProcess] = set()
        self._behind: set[asyncio.Task[None]] = set()
        self._tools_told = False
        self._running = 0
        self._retired: deque[Agent] = deque()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._lease: Lease[Agent] = Lease(asyncio.get_running_loop().call_later, self.retire)

    @property
    def workspace(self) -> str:
        """The empty directory that agents work in."""
        assert self._scratch is not None  # made before the first bridge
        return str(self._scratch.workspace)

    async def bridge(self) -> Bridge:
        """The bridge, started or restarted if need be; callers at once share one start."""
        if self._bridge is not None and not self._bridge.lost:
            return self._bridge
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
            self._starting.add_done_callback(self._started)
        try:
            return await asyncio.shield(self._starting)
        except CursorError as error:
            raise copy(error) from error.__cause__  # one exception for each who waits

    @asynccontextmanager
    async def agent(self, settings: AgentSettings, keep_alive: float) -> AsyncIterator[Agent]:
        """An agent for one call. Leaving the context never waits for its end."""
        agent = Agent(self, settings)
        self._lease.begin()
        self.last_keep_alive = keep_alive
        self._running += 1
        self._watch_for_idle()
        try:
            await agent.open()
            yield agent
        finally:
            self._running -= 1
            if agent.idle and agent.turns and not agent.bridge.lost and agent.bridge.can.tools:
                self._lease.end(agent, keep_alive)
            else:
                self._lease.end(None, keep_alive)
                if agent.idle:
                    self.retire(agent)
                else:
                    self.behind(agent.aclose())  # at once: a run must be cancelled
            self._watch_for_idle()

    async def call(
        self,
        settings: CallSettings,
        talk: Callable[[Agent], Awaitable[T]],
        may_retry: Callable[[], bool] = lambda: True,
    ) -> T:
        """Run one call: an agent, what `talk` does with it, retries, and the time limit.

        Args:
            settings: The call's settings.
            talk: Sends prompts to the agent and makes a result of the answers. It is called
                again, with a new agent, when a transient failure is retried.
            may_retry: Whether that is still possible: not once a caller has seen a part.

        Raises:
            CursorTimeoutError: The limit has passed.
            CursorError: The call failed, by the table in `errors`.
        """
        result: T
        with anyio.move_on_after(settings.timeout) as scope:
            async for attempt in tenacity.AsyncRetrying(
                stop=tenacity.stop_after_attempt(settings.max_retries + 1),
                retry=tenacity.retry_if_exception(
                    lambda error: _is_retryable(error) and may_retry()
                ),
                wait=_retry_wait,
                reraise=True,
            ):
                with attempt:
                    async with self.agent(settings.agent, settings.keep_alive) as agent:
                        result = await talk(agent)
        if scope.cancelled_caught:
            raise CursorTimeoutError(
                f"No answer within {settings.timeout:g} s. Allow more time with `timeout`, or "
                "try again."
            )
        return result

    def retire(self, agent: Agent) -> None:
        """Close an agent when the bridge has nothing better to do, soon at any rate."""
        self._retired.append(agent)
        if len(self._retired) > _MOST_WAITING:
            self.behind(self._retired.popleft().aclose())
        self._watch_for_idle()

    def _watch_for_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._retired and not self._running:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(_IDLE, lambda: self.behind(self._close_retired()))

    async def _close_retired(self) -> None:
        # One after another: a call that begins meanwhile waits for one at most.
        while self._retired and not self._running:
            await self._retired.popleft().aclose()

    def behind(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something behind the caller's back; `aclose` waits for it."""
        task = asyncio.ensure_future(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def lost_if_gone(self, bridge: Bridge, error: Exception) -> None:
        """After a failed exchange: see whether the bridge is gone, or silent for too long."""
        cause = error.__cause__
        silent = isinstance(cause, (httpx.ReadTimeout, httpx.WriteTimeout, httpx.ConnectTimeout))
        if await bridge.has_ended() or silent or isinstance(cause, httpx.ConnectError):
            bridge.lose()

    async def aclose(self) -> None:
        """End the bridge and delete its files, after waiting a little for what is under way."""
        self._lease.give_up()
        while self._retired:
            self.behind(self._retired.popleft().aclose())
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._behind:
            await asyncio.wait(self._behind, timeout=_SETTLE_TIMEOUT)
        for task in self._behind:
            task.cancel()
        if self._bridge is not None:
            await self._bridge.aclose()
        await asyncio.get_running_loop().run_in_executor(None, self.kill)

    def kill(self) -> None:
        """End the processes and delete the files at once, from any thread."""
        scratch = self._scratch
        if scratch is not None:
            scratch.remove()  # first: if this process is killed now, the bridge deletes the rest
        for process in list(self._processes):
            process.end()
        if scratch is not None:
            scratch.remove()  # what the bridge has written meanwhile

    def abandon(self) -> None:
        """In a forked child: let go of what belongs to the parent."""
        for process in self._processes:
            process.abandon()
        if self._scratch is not None:
            self._scratch.let_go()

    async def _start(self) -> Bridge:
        refuse_at_end()
        old, self._bridge = self._bridge, None
        if old is not None:
            await old.aclose()
        if self._scratch is None:
            self._scratch = Scratch()
            self.behind(_sweep_once())
        else:
            self._scratch.clean()
        bridge = await start_bridge(
            replace(self.settings, extension=self._extension),
            self._scratch,
            self._processes.add,
            self._exited,
        )
        self._extension = self._extension and bridge.can.extension
        if not bridge.can.tools and not self._tools_told:
            self._tools_told = True
            logger.warning(
                "This cursor-sdk cannot deny an agent its tools (1.0.29 and later can): a "
                "paragraph in the prompt asks the model to use none, and no executor is kept."
            )
        self._bridge = bridge
        return bridge

    def _started(self, task: asyncio.Task[Bridge]) -> None:
        _retrieve(task)
        self._starting = None

    def _exited(self, process: BridgeProcess) -> None:
        self._processes.discard(process)
        bridge = self._bridge
        if bridge is not None and bridge.process is process:
            bridge.lose()
            self._lease.give_up()


def _message(bridge: Bridge, prompt: Prompt) -> Any:
    sdk = bridge.sdk
    text = prompt.text if bridge.can.tools else f"{GUARDRAIL}\n\n{prompt.text}"
    images = [sdk.SDKImage(data=image.data, mime_type=image.mime_type) for image in prompt.images]
    return sdk.UserMessage(text=text, images=images or None)


def _usage(usage: Any) -> Usage | None:
    if usage is None:
        return None
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def _is_transport(error: BaseException) -> bool:
    """Whether it failed between Python and the bridge."""
    return isinstance(error.__cause__, httpx.RequestError)


def _is_sandbox_refusal(error: BaseException) -> bool:
    # cursor-sdk 1.1.0: BadRequestError, code invalid_argument, raised by send.
    return "sandboxing is not supported" in str(error)


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, CursorError) and error.is_retryable


def _retry_wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    told = error.retry_after if isinstance(error, CursorError) else None
    if told is not None:
        return told
    wait: float = min(0.5 * 2 ** (state.attempt_number - 1), _LONGEST_RETRY_WAIT)
    return wait * random.uniform(0.75, 1.25)  # so that calls that failed together part


def _bridge_error(
    bridge: Bridge, error: BaseException | None, run_id: str | None = None
) -> CursorError:
    cause = error.__cause__ if error is not None else None
    if isinstance(cause, httpx.TimeoutException):
        return CursorTimeoutError(
            "The bridge of cursor-sdk has been silent for too long; the next call starts another.",
            run_id=run_id,
        )
    words = bridge.process.last_words() if bridge.lost and bridge.process is not None else ""
    return CursorBridgeError(
        "The bridge of cursor-sdk ended during the call; the next call starts another." + words,
        run_id=run_id,
    )


def _retrieve(task: asyncio.Task[Any]) -> None:
    # Whoever waited may have been cancelled: the exception counts as seen.
    if not task.cancelled():
        task.exception()


_swept = False


async def _sweep_once() -> None:
    global _swept
    if not _swept:
        _swept = True
        await asyncio.get_running_loop().run_in_executor(None, sweep)
