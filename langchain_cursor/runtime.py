"""The runtime: the one place that talks to the SDK. A bridge, a warm executor, agents, runs.

A runtime is shared by all models of a process with the same key, backend and bridge settings, for
a bridge is 130 MB and a second. Everything here runs on the private loop, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import anyio
import httpx
import tenacity

from langchain_cursor import catalog
from langchain_cursor.agents import AgentSettings, agent_options
from langchain_cursor.bridge.launch import (
    Bridge,
    BridgeSettings,
    fetched_catalog,
    start_bridge,
)
from langchain_cursor.bridge.process import BridgeProcess
from langchain_cursor.catalog import ModelInfo
from langchain_cursor.errors import (
    CursorAuthenticationError,
    CursorError,
    CursorInvalidRequestError,
    CursorTimeoutError,
    sdk_error,
    with_sdk_class,
)
from langchain_cursor.lease import Lease
from langchain_cursor.loop import in_thread, refuse_at_end
from langchain_cursor.pool import Member
from langchain_cursor.scratch import Scratch, sweep
from langchain_cursor.session import Agent, bridge_error, close_agent, is_transport, retrieve

logger = logging.getLogger("langchain_cursor")

T = TypeVar("T")

# The bridge is one thread: an agent that closes takes time from a call that runs. So agents are
# closed once nothing has run for this many seconds, but at most so many wait for that.
_IDLE = 0.01
_MOST_WAITING = 4
# Seconds that `close()` waits for each of: a start, a lease that is being taken, what goes on
# behind callers' backs. Closing an agent waits up to 2 s for the SDK's telemetry.
_SETTLE_TIMEOUT = 3.0
_MODELS_TIMEOUT = 60.0
_LONGEST_RETRY_WAIT = 8.0
_LONGEST_TOLD_WAIT = 60.0  # what Cursor may ask for; a longer wait is the caller's to decide


@dataclass(frozen=True)
class CallSettings:
    """What a call wants of the runtime.

    Args:
        agent: Model, sandbox, and how system text travels.
        system: The text of the system messages that come first.
        bridge_max_rss: Bytes of memory from which on the bridge is replaced; None never.
        bridges: How many bridges may share the calls.
        keep_alive: Seconds to keep the executor warm after the call.
        timeout: Seconds for the whole call, retries included; None for no limit.
        max_retries: How often a transient failure is tried again.
    """

    agent: AgentSettings
    system: str | None = None
    bridge_max_rss: int | None = None
    bridges: int = 1
    keep_alive: float = 60.0
    timeout: float | None = None
    max_retries: int = 0


class Closing(Protocol):
    """Something on the bridge that holds the executor until it is closed: an agent, a lease."""

    async def aclose(self) -> None:
        """Close it. Never raises, never hangs."""


@dataclass(frozen=True)
class BridgeLease:
    """The extension's lease on an executor; to the SDK an agent that is only ever closed."""

    bridge: Bridge
    agent: Any

    async def aclose(self) -> None:
        """Give the executor up."""
        await close_agent(self.bridge, self.agent)


@dataclass(frozen=True)
class _Executor:
    """What decides which executor an agent uses, as far as it varies within a runtime."""

    bridge: Bridge
    sandbox: bool


class Runtime:
    """A bridge that is started when needed and again when it dies, and its warm executor.

    Args:
        settings: Which bridge.
    """

    def __init__(self, settings: BridgeSettings) -> None:
        self.settings = settings
        self.users: set[int] = set()
        self.sandbox_works = True
        self.native_system_works = True
        self.last_keep_alive = 0.0
        self._extension = settings.extension
        self._scratch: Scratch | None = None
        self._bridge: Bridge | None = None
        self._starting: asyncio.Task[Bridge] | None = None
        self._processes: set[BridgeProcess] = set()
        self._behind: set[asyncio.Task[None]] = set()
        self._tools_told = False
        self._running = 0
        self._retired: deque[Closing] = deque()
        self._idle_timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._lease: Lease[Closing] = Lease(loop.call_later, self.retire, loop.time)
        self._leased: _Executor | None = None  # what the lease holds, or is about to
        self._taking: asyncio.Task[bool] | None = None
        self._key_refused = False
        self._agents: set[Agent] = set()  # of the calls that run now
        self._bridges: set[Bridge] = set()
        self._doubted: set[Bridge] = set()  # those that are being asked if they still answer
        self._replacing: asyncio.Task[None] | None = None

    @property
    def member(self) -> Member:
        """This runtime among several."""
        warm = self._running > 0 or self._taking is not None or self._lease.held
        return Member(self._running, warm)

    @property
    def keeps_executor(self) -> bool:
        """Whether an executor is kept for the next call."""
        return self._lease.held

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

    def options(
        self,
        bridge: Bridge,
        settings: AgentSettings,
        *,
        system_prompt: str | None = None,
        wishes: Mapping[str, Any] | None = None,
    ) -> Any:
        """The SDK's options for an agent, as this runtime's bridge and account allow."""
        if not self.sandbox_works:
            settings = replace(settings, sandbox=False)
        wishes = dict(wishes or {})
        if self._key_refused:
            self._key_refused = False
            wishes["forgetKey"] = True
        return agent_options(
            bridge.sdk,
            bridge.can,
            settings,
            api_key=self.settings.api_key,
            workspace=bridge.workspace,
            system_prompt=system_prompt,
            wishes=wishes,
        )

    def carries_system(self, bridge: Bridge, wanted: bool | None) -> bool:
        """Whether system text can be an agent's own system prompt here.

        Raises:
            CursorInvalidRequestError: It must be, and cannot.
        """
        if wanted is False:
            return False
        if wanted and not bridge.can.system_prompt:
            raise CursorInvalidRequestError(
                "native_system_prompt=True, but this SDK and bridge cannot carry a system prompt "
                "(cursor-sdk 1.0.31 and later can, with the bridge extension). Leave it out, and "
                "system messages stand in the prompt."
            )
        return bridge.can.system_prompt and (bool(wanted) or self.native_system_works)

    def sandbox_refused(self) -> None:
        """The machine does not support the sandbox: go on without, and tell it once."""
        if self.sandbox_works:
            self.sandbox_works = False
            logger.warning(
                "Cursor's sandbox is not supported on this machine: agents run without it. They "
                "have no tools either way. Silence this with `ChatCursor(sandbox=False)`."
            )

    def failed(self, error: CursorError) -> CursorError:
        """A call has failed: if its key was refused, what the bridge got for it is not reused."""
        if isinstance(error, CursorAuthenticationError):
            self._key_refused = True
            # An executor remembers that its key was refused (cursor-sdk 1.1.0).
            self._leased = None
            self._lease.give_up()
            if self.settings.cache_catalog:
                catalog.forget(self.settings.api_key, self.settings.backend)
        return error

    async def models(self) -> tuple[ModelInfo, ...]:
        """The models that the account may use, asked of Cursor now.

        Raises:
            CursorError: Cursor could not be asked.
        """
        with anyio.move_on_after(_MODELS_TIMEOUT):
            bridge = await self.bridge()
            try:
                listed = await bridge.client.models.list(api_key=self.settings.api_key)
            except Exception as error:
                if is_transport(error, bridge):
                    await self.lost_if_gone(bridge, error)
                    raise bridge_error(bridge, error) from error
                raise self.failed(sdk_error(error)) from error
            except asyncio.CancelledError:
                self.doubt(bridge)
                raise
            # What reaches Python lacks the aliases; the extension has seen the whole answer.
            whole = None if self._scratch is None else fetched_catalog(self._scratch)
            if bridge.can.extension and whole is not None:
                with suppress(ValueError):  # a catalog of another form
                    return catalog.parse(whole)
            return tuple(ModelInfo.from_sdk(model) for model in listed)
        raise self._timed_out()(f"The models were not listed within {_MODELS_TIMEOUT:g} s.")

    @asynccontextmanager
    async def agent(self, settings: CallSettings) -> AsyncIterator[Agent]:
        """An agent for one call. Leaving the context never waits for its end."""
        agent: Agent | None = None
        self._lease.begin()
        self.last_keep_alive = settings.keep_alive
        self._running += 1
        self._watch_for_idle()
        try:
            bridge = await self.bridge()
            if self._key_refused:
                await self._let_executor_go()
            if self._replacing is None:  # else the next bridge's executor is about to be leased
                self._take_lease_beside(bridge, settings)
            agent = Agent(self, bridge, settings.agent, settings.system)
            self._agents.add(agent)
            await agent.open()
            yield agent
        finally:
            self._running -= 1
            self._leave(agent, settings)
            self._watch_for_idle()

    def _leave(self, agent: Agent | None, settings: CallSettings) -> None:
        if agent is None:
            self._lease.end(None, settings.keep_alive)
            return
        self._agents.discard(agent)
        usable = agent.idle and agent.turns and not agent.bridge.lost and agent.bridge.can.tools
        usable = usable and not self._key_refused  # else its executor would be kept
        if usable and agent.bridge is self._bridge and not self._lease_taken:
            self._lease.end(agent, settings.keep_alive)
        else:
            self._lease.end(None, settings.keep_alive)
            if agent.idle:
                self.retire(agent)
            else:
                self.behind(agent.aclose())  # at once: a run must be cancelled
        if agent.bridge is self._bridge:
            self._replace_if_grown(agent.bridge, settings)
        else:
            self._end_if_unused(agent.bridge)

    def _replace_if_grown(self, bridge: Bridge, settings: CallSettings) -> None:
        """Start a fresh bridge beside one that has grown too large; no call waits for it."""
        limit = settings.bridge_max_rss
        if limit is not None and bridge.memory > limit and self._replacing is None:
            self._replacing = asyncio.ensure_future(self._replace(bridge, settings))
            self._replacing.add_done_callback(self._replaced)

    async def _replace(self, old: Bridge, settings: CallSettings) -> None:
        new = await self._launch()
        await self._warm(new, settings)
        if self._bridge is old:
            self._bridge = new
            self._end_if_unused(old)
        else:  # it died meanwhile, and has been replaced for that
            self._end_if_unused(new)

    def _end_if_unused(self, bridge: Bridge) -> None:
        """End a bridge that has been replaced, once its last call has ended."""
        if not bridge.lost and not any(agent.bridge is bridge for agent in self._agents):
            self._bridges.discard(bridge)
            self.behind(bridge.aclose())

    def _replaced(self, task: asyncio.Task[None]) -> None:
        retrieve(task)
        self._replacing = None

    async def prewarm(self, settings: CallSettings) -> None:
        """Start the bridge and, with the extension, build the executor, without a model call.

        Raises:
            CursorStartupError: The bridge does not start.
            CursorTimeoutError: It took longer than the settings' `timeout`.
        """
        with anyio.move_on_after(settings.timeout) as scope:
            self.last_keep_alive = settings.keep_alive
            await self._warm(await self.bridge(), settings)
        if scope.cancelled_caught:
            raise self._timed_out()(f"Not warm within {settings.timeout:g} s.")

    async def _warm(self, bridge: Bridge, settings: CallSettings) -> None:
        self._take_lease_beside(bridge, settings)
        if self._taking is not None:
            await asyncio.shield(self._taking)

    @property
    def _lease_taken(self) -> bool:
        return self._leased is not None and self._lease.held

    def _take_lease_beside(self, bridge: Bridge, settings: CallSettings) -> None:
        """Take the bridge's own lease on the executor, beside what runs, if it is not held."""
        if not bridge.can.extension or settings.keep_alive <= 0:
            return
        executor = _Executor(bridge, settings.agent.sandbox and self.sandbox_works)
        if self._leased == executor and (self._lease.held or self._taking is not None):
            return
        self._leased = executor
        self._taking = asyncio.ensure_future(
            self._take_lease(executor, settings.agent, settings.keep_alive)
        )
        self._taking.add_done_callback(self._took)

    async def _take_lease(
        self, executor: _Executor, settings: AgentSettings, keep_alive: float
    ) -> bool:
        bridge = executor.bridge
        options = self.options(bridge, settings, wishes={"prewarm": True})
        try:
            lease = BridgeLease(bridge, await bridge.client.create_agent(options))
        except Exception as error:
            # No failure of a lease fails a call: the call builds the executor itself.
            logger.debug("The executor was not built beforehand: %s", type(error).__name__)
            if self._leased == executor:
                self._leased = None
            return False
        if self._leased != executor or bridge.lost:
            self.retire(lease)
        else:
            self._lease.hold(lease, keep_alive)
        return True

    def _took(self, task: asyncio.Task[bool]) -> None:
        retrieve(task)
        if self._taking is task:
            self._taking = None

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
        loop = asyncio.get_running_loop()
        with anyio.move_on_after(settings.timeout) as scope:
            attempts = tenacity.AsyncRetrying(
                # Rather tell now what failed than later that the time is up.
                stop=lambda state: (
                    state.attempt_number > settings.max_retries
                    or loop.time() + state.upcoming_sleep >= scope.deadline
                ),
                retry=tenacity.retry_if_exception(
                    lambda error: _is_retryable(error) and may_retry()
                ),
                wait=_retry_wait,
                reraise=True,
            )
            try:
                async for attempt in attempts:
                    with attempt:
                        async with self.agent(settings) as agent:
                            agent.scope = scope
                            result = await talk(agent)
            finally:
                # They refer to each other, and would keep the prompt until a cyclic collection.
                attempt.retry_state.outcome = None
                vars(attempts).clear()
        if scope.cancelled_caught:
            raise self._timed_out()(
                f"No answer within {settings.timeout:g} s. Allow more time with `timeout`, or "
                "try again."
            )
        return result

    def _timed_out(self) -> type[CursorError]:
        sdk = None if self._bridge is None else self._bridge.sdk
        return with_sdk_class(CursorTimeoutError, getattr(sdk, "APITimeoutError", None))

    def retire(self, agent: Closing) -> None:
        """Close an agent or lease when the bridge has nothing better to do, soon at any rate."""
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

    async def _let_executor_go(self) -> None:
        while self._retired:
            self.behind(self._retired.popleft().aclose())
        if self._behind:
            await asyncio.wait(self._behind, timeout=_SETTLE_TIMEOUT)

    def behind(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something behind the caller's back; `aclose` waits for it."""
        task = asyncio.ensure_future(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def lost_if_gone(self, bridge: Bridge, error: Exception) -> None:
        """After a failed exchange: see whether the bridge is gone, or does not answer any more."""
        cause = error.__cause__
        if await bridge.has_ended():
            return
        if isinstance(cause, (httpx.ReadTimeout, httpx.WriteTimeout)):
            if not await bridge.answers():  # else it waits for Cursor's cloud
                self.silent(bridge)
        elif isinstance(cause, (httpx.ConnectError, httpx.ConnectTimeout)):
            bridge.lose()

    def doubt(self, bridge: Bridge) -> None:
        """A call was given up without an answer: see, behind its back, if the bridge answers."""
        if bridge not in self._doubted and not bridge.lost:
            self._doubted.add(bridge)
            self.behind(self._examine(bridge))

    async def _examine(self, bridge: Bridge) -> None:
        try:
            if not await bridge.answers():
                self.silent(bridge)
        finally:
            self._doubted.discard(bridge)

    def silent(self, bridge: Bridge) -> None:
        """The bridge counts as dead: end it, and with it all that waits for its answers."""
        if not bridge.lost:
            bridge.silent = True
            bridge.lose()
            self.behind(bridge.aclose())

    async def aclose(self) -> None:
        """End the bridge and delete its files, after waiting a little for what is under way."""
        self._leased = None  # a lease that is being taken is closed as soon as it is there
        self._lease.give_up()
        if self._taking is not None:
            await asyncio.wait([self._taking], timeout=_SETTLE_TIMEOUT)
        while self._retired:
            self.behind(self._retired.popleft().aclose())
        for start in (self._starting, self._replacing):
            if start is not None:
                start.cancel()
                await asyncio.wait([start], timeout=_SETTLE_TIMEOUT)
        if self._behind:
            await asyncio.wait(self._behind, timeout=_SETTLE_TIMEOUT)
        for task in self._behind:
            task.cancel()
        try:
            for bridge in list(self._bridges):
                await bridge.aclose()
        finally:
            await in_thread(self.kill)

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
        old, self._bridge = self._bridge, None
        if old is not None:
            self._bridges.discard(old)
            await old.aclose()
        self._bridge = await self._launch()
        return self._bridge

    async def _launch(self) -> Bridge:
        refuse_at_end()
        if self._scratch is not None and not self._processes:
            self._scratch.clean()
        bridge = await start_bridge(
            replace(self.settings, extension=self._extension),
            self._made_scratch,
            self._processes.add,
            self._exited,
        )
        self._bridges.add(bridge)
        self._extension = self._extension and bridge.can.extension
        if not bridge.can.tools and not self._tools_told:
            self._tools_told = True
            logger.warning(
                "This cursor-sdk cannot deny an agent its tools (1.0.29 and later can): a "
                "paragraph in the prompt asks the model to use none, and no executor is kept."
            )
        return bridge

    def _made_scratch(self) -> Scratch:
        if self._scratch is None:
            self._scratch = Scratch()
            self.behind(_sweep_once())
        return self._scratch

    def _started(self, task: asyncio.Task[Bridge]) -> None:
        retrieve(task)
        self._starting = None

    def _exited(self, process: BridgeProcess) -> None:
        self._processes.discard(process)
        for bridge in self._bridges:
            if bridge.process is process:
                bridge.lose()
        if self._bridge is not None and self._bridge.process is process:
            self._lease.give_up()


def _is_retryable(error: BaseException) -> bool:
    return (
        isinstance(error, CursorError)
        and error.is_retryable
        and (error.retry_after or 0) <= _LONGEST_TOLD_WAIT
    )


def _retry_wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    told = error.retry_after if isinstance(error, CursorError) else None
    if told is not None:
        return told
    wait: float = min(0.5 * 2 ** (state.attempt_number - 1), _LONGEST_RETRY_WAIT)
    return wait * random.uniform(0.75, 1.25)  # so that calls that failed together part


_swept = False


async def _sweep_once() -> None:
    global _swept
    if not _swept:
        _swept = True
        await in_thread(sweep)
