"""A session: one throwaway agent on the bridge, its runs, and what each of them says."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import httpx

from langchain_cursor.agents import GUARDRAIL, AgentSettings
from langchain_cursor.bridge.launch import ANSWER_TIMEOUT, Bridge
from langchain_cursor.bridge.watchdog import Watchdog
from langchain_cursor.errors import (
    CursorBridgeError,
    CursorCancelledError,
    CursorError,
    CursorTimeoutError,
    forget_locals,
    run_error,
    sdk_error,
    with_sdk_class,
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
from langchain_cursor.serializer import Prompt

if TYPE_CHECKING:
    from langchain_cursor.runtime import Runtime

logger = logging.getLogger("langchain_cursor")

# Seconds that cleaning up behind a caller's back may take before it is given up.
_CLOSE_TIMEOUT = 10.0


class Agent:
    """A throwaway agent: made for one call, able to do nothing but answer.

    Args:
        runtime: Where it lives.
        bridge: Where it is made; elsewhere if that turns out to be dead.
        settings: Model, sandbox, and how system text is to travel.
        system: The text of the system messages that come first, if any.
    """

    def __init__(
        self, runtime: Runtime, bridge: Bridge, settings: AgentSettings, system: str | None
    ) -> None:
        self.bridge = bridge
        self.turns = 0
        self._runtime = runtime
        self._settings = settings
        self._system = system
        self.scope: anyio.CancelScope | None = None  # of the call's time limit
        self._native = False  # whether the agent was given the system text as its own prompt
        self._agent: Any = None
        self._run: Any = None
        # What was asked of the bridge and not answered yet. A task of its own, so that a caller
        # who gives up leaves nothing behind: `aclose` waits for it and undoes it.
        self._asked: asyncio.Task[Any] | None = None

    async def open(self) -> None:
        """Create the agent; once more, on a new bridge, if the bridge turns out to be dead."""
        for attempt in (1, 2):
            if self.bridge.lost:
                self.bridge = await self._runtime.bridge()
            bridge = self.bridge
            self._native = self._system is not None and self._runtime.carries_system(
                bridge, self._settings.native_system_prompt
            )
            system = self._system if self._native else None
            try:
                self._agent = await self._ask(
                    # The options hold the key: they are no local variable.
                    bridge.client.create_agent(
                        self._runtime.options(bridge, self._settings, system_prompt=system)
                    )
                )
            except Exception as error:
                if not is_transport(error, bridge):
                    raise self._runtime.failed(sdk_error(error)) from error
                await self._runtime.lost_if_gone(bridge, error)
                slow = isinstance(error.__cause__, httpx.TimeoutException) and not bridge.lost
                if attempt == 2 or slow:
                    raise bridge_error(bridge, error) from error
            else:
                return

    async def send(self, prompt: Prompt) -> AsyncGenerator[Event, None]:
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
            # No generator between: this runs for every token.
            with Watchdog(on_silence=partial(self._runtime.silent, self.bridge)) as watchdog:
                async with aclosing(run.events()) as events:
                    async for event in events:
                        watchdog.rest()
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
                        watchdog.listen()
            result = await run.wait()
        except Exception as error:
            if is_transport(error, self.bridge):
                await self._runtime.lost_if_gone(self.bridge, error)
                raise bridge_error(self.bridge, error, run_id=run.id) from error
            raise sdk_error(error) from error
        self._run = None
        self.turns += 1
        if result.status == "finished":
            if not texts and result.result:
                texts.append(result.result)
                yield TextDelta(result.result)
            yield self._finished(result, "".join(texts))
            return
        failure = self._failure(result, said)
        del result, said  # Cursor's words may echo the key; a traceback may show local variables
        try:
            if texts or not self._may_inline(failure):
                raise failure
        finally:
            del failure  # else it and this frame keep each other
        await self._reopen()
        async with aclosing(self.send(prompt)) as again:
            async for told in again:
                yield told

    def _finished(self, result: Any, text: str) -> Finished:
        return Finished(
            run_id=result.id,
            model=result.model.id if result.model else self._settings.model,
            duration_ms=result.duration_ms,
            usage=_usage(result.usage),
            text=text,
        )

    def _failure(self, result: Any, said: str) -> CursorError:
        if result.status == "cancelled":
            return CursorCancelledError("The run was cancelled.", run_id=result.id)
        return self._runtime.failed(
            run_error(
                getattr(result, "error_message", None) or said,
                code=getattr(result, "error_code", None),
                run_id=result.id,
                usage=usage_metadata(_usage(result.usage)),
                sdk=self.bridge.sdk,
            )
        )

    def _may_inline(self, failure: CursorError) -> bool:
        """Whether the account refused the agent's own system prompt, and the text may do."""
        # cursor-sdk 1.1.0: the run ends with [invalid_argument] and this text.
        if not self._native or "Custom system prompt is not enabled" not in str(failure):
            return False
        if self._settings.native_system_prompt:
            return False
        if self._runtime.native_system_works:
            self._runtime.native_system_works = False
            logger.warning(
                "Cursor has not enabled custom system prompts for this account: system messages "
                "stand in the prompt. Silence this with `ChatCursor(native_system_prompt=False)`."
            )
        return True

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """What happens in this context does not count against the call's time limit."""
        scope = self.scope
        if scope is None:
            yield
            return
        left, scope.deadline = scope.deadline - anyio.current_time(), math.inf
        try:
            yield
        finally:
            scope.deadline = anyio.current_time() + left

    @property
    def idle(self) -> bool:
        """Whether no run is under way."""
        return self._run is None and self._asked is None

    async def aclose(self) -> None:
        """Cancel a run that is under way, and close the agent. Never raises, never hangs."""
        if not self.idle:
            # Who gave up has had no answer: if the bridge is dead, it must not keep the next call.
            self._runtime.doubt(self.bridge)
        try:
            # What was asked is answered within the time that an answer may take; not to wait for
            # it would leave a run behind that nobody cancels.
            with anyio.move_on_after(ANSWER_TIMEOUT + _CLOSE_TIMEOUT):
                await self._settle()
                if self._run is not None:
                    await self._run.cancel()
                    await self._run.wait()  # reads the stream to its end, which closes it
        except Exception as error:
            _not_clean(error)
        if self._agent is not None:
            await close_agent(self.bridge, self._agent)

    async def _ask(self, question: Coroutine[Any, Any, Any]) -> Any:
        bridge = self.bridge
        asked = self._asked = asyncio.ensure_future(question)
        asked.add_done_callback(retrieve)
        try:
            with Watchdog(on_silence=lambda: self._runtime.doubt(bridge)):
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
                self._run = await self._ask(self._agent.send(self._message(prompt)))
                return self._run
            except Exception as error:
                again = await self._may_send_again(error)
                if self.turns or attempt > 2 or not again:
                    if is_transport(error, self.bridge):
                        raise bridge_error(self.bridge, error) from error
                    raise sdk_error(error) from error
            await self._reopen()

    async def _reopen(self) -> None:
        self._runtime.behind(close_agent(self.bridge, self._agent))
        self._agent, self.turns = None, 0
        await self.open()

    def _message(self, prompt: Prompt) -> Any:
        sdk = self.bridge.sdk
        if not self._native:
            prompt = prompt.inlined()
        if not self.bridge.can.tools and self.turns == 0:
            prompt = Prompt(GUARDRAIL, prompt.text, prompt.images).inlined()
        images = [
            sdk.SDKImage(data=image.data, mime_type=image.mime_type) for image in prompt.images
        ]
        return sdk.UserMessage(text=prompt.text, images=images or None)

    async def _may_send_again(self, error: Exception) -> bool:
        """Whether the run certainly did not begin, and may if it is sent to a new agent."""
        if is_transport(error, self.bridge):
            await self._runtime.lost_if_gone(self.bridge, error)
            return isinstance(error.__cause__, httpx.ConnectError) or _is_closed(error)
        if is_sandbox_refusal(error):
            self._runtime.sandbox_refused()
            return True
        return False


async def close_agent(bridge: Bridge, agent: Any) -> None:
    """Close an agent of the SDK. Never raises, never hangs."""
    if bridge.lost:
        return
    try:
        with anyio.move_on_after(_CLOSE_TIMEOUT):
            await agent.close()
    except Exception as error:
        _not_clean(error)


def bridge_error(
    bridge: Bridge, error: BaseException | None, run_id: str | None = None
) -> CursorError:
    """Make the exception for an exchange with the bridge that failed on the way."""
    sdk = bridge.sdk
    cause = error.__cause__ if error is not None else None
    if error is not None:
        forget_locals(error)
    if isinstance(cause, httpx.TimeoutException) and not bridge.lost:
        return with_sdk_class(CursorTimeoutError, sdk.APITimeoutError)(
            f"The bridge of cursor-sdk lives, but had no answer after {ANSWER_TIMEOUT:g} s: Cursor "
            "is slow or cannot be reached. Check the network, then try again.",
            run_id=run_id,
        )
    if not bridge.lost:
        text = "The connection to the bridge of cursor-sdk broke during the call. Try again."
    elif bridge.silent:
        text = "The bridge of cursor-sdk did not answer any more; the next call starts another."
    else:
        text = "The bridge of cursor-sdk ended during the call; the next call starts another."
    words = bridge.process.last_words() if bridge.lost and bridge.process is not None else ""
    return with_sdk_class(CursorBridgeError, sdk.NetworkError)(text + words, run_id=run_id)


def is_sandbox_refusal(error: BaseException) -> bool:
    """Whether the machine does not support the sandbox.

    cursor-sdk 1.1.0: `BadRequestError`, code ``invalid_argument``, raised by `send`.
    """
    return "sandboxing is not supported" in str(error)


def is_transport(error: BaseException, bridge: Bridge) -> bool:
    """Whether it failed between Python and the bridge."""
    return isinstance(error.__cause__, httpx.RequestError) or (bridge.lost and _is_closed(error))


def _is_closed(error: BaseException) -> bool:
    # httpx 0.28 says so if the bridge was given up before the request was sent.
    return type(error) is RuntimeError


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


def _not_clean(error: Exception) -> None:
    # It may hold a prompt: name its class alone.
    logger.debug("An agent did not close cleanly: %s", type(error).__name__)


def retrieve(task: asyncio.Task[Any]) -> None:
    """Count a task's exception as seen."""
    # Whoever waited may have been cancelled: the exception counts as seen.
    if not task.cancelled():
        task.exception()
