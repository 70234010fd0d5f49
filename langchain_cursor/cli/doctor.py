"""What works on this machine and this account, found out step by step."""

from __future__ import annotations

import platform
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
from pydantic import SecretStr

from langchain_cursor.agents import capabilities, version_tuple
from langchain_cursor.bridge.launch import Bridge, BridgeSettings
from langchain_cursor.credentials import DEFAULT_BACKEND, find_api_key
from langchain_cursor.errors import (
    CursorAuthenticationError,
    CursorError,
    CursorPermissionDeniedError,
    CursorRateLimitError,
    CursorTimeoutError,
    redact,
)

if TYPE_CHECKING:
    from langchain_cursor.chat_models import ChatCursor
    from langchain_cursor.runtime import Runtime

T = TypeVar("T")

RUNS = 2
"""How many runs `examine` makes on the account."""

Mark = Literal["good", "poor", "bad", "skipped"]

_QUESTION = [("system", "Answer with one word."), ("human", "say: done")]
_UPGRADE = 'Install cursor-sdk 1.0.32 or later: pip install --upgrade "cursor-sdk>=1.0.32".'
_OWN_BRIDGE = "CURSOR_SDK_BRIDGE_BIN and CURSOR_SDK_BRIDGE_URL"
_SEEN_BY_RUNNING = ("Call", "Sandbox", "System prompt", "Warm executor")


@dataclass(frozen=True)
class Finding:
    """What one step has found.

    Args:
        mark: ``good``; ``poor``: works, but worse than it could; ``bad``: must be mended;
            ``skipped``: not looked at.
        subject: What was looked at.
        text: What was found.
        advice: What to do, unless all is good.
    """

    mark: Mark
    subject: str
    text: str
    advice: str = ""


def examine(llm: ChatCursor, *, runs: bool = True) -> Iterator[Finding]:
    """Look at one thing after the other, as far as what it needs works.

    Args:
        llm: The model as it would be used. No step takes longer than its `timeout`.
        runs: Whether to make `RUNS` runs on the account.

    Example:
        >>> from langchain_cursor import ChatCursor
        >>> from langchain_cursor_fakes import FakeCursor
        >>> findings = examine(ChatCursor(sdk_loader=FakeCursor().sdk))
        >>> {finding.mark for finding in findings}
        {'good'}
    """
    yield Finding("good", "Python", platform.python_version())
    try:
        sdk = _load_sdk(llm)
    except Exception as error:
        yield Finding("bad", "SDK", f"cannot be imported: {redact(str(error))}", _UPGRADE)
        yield Finding("skipped", "Everything else", "needs the SDK")
        return
    yield _sdk(sdk, own=llm.sdk_loader is not None)
    try:
        _, place = find_api_key(llm._given_key(), llm.base_url)
    except CursorAuthenticationError as error:
        yield Finding("bad", "Key", str(error))
        # The bridge starts without a key all the same.
        with llm.model_copy(update={"api_key": SecretStr("none")}) as keyless:
            yield from _bridge(_Probe(keyless))
        yield Finding("skipped", "Everything else", "needs a key")
        return
    yield Finding("good", "Key", place)
    probe = _Probe(llm)
    yield from _bridge(probe)
    if probe.bridge is None:
        yield from _not_seen(
            "needs the bridge", "Extension", "Cursor", "Account", *_SEEN_BY_RUNNING
        )
        return
    yield from _account(probe)
    if not probe.usable:
        yield from _not_seen("needs the account", *_SEEN_BY_RUNNING)
    elif not runs:
        yield from _not_seen("needs a run", *_SEEN_BY_RUNNING)
    else:
        yield from _calls(probe)


class _Probe:
    """The model, its runtime, and what is known of them so far."""

    def __init__(self, llm: ChatCursor) -> None:
        self.llm = llm
        self.settings: BridgeSettings = llm._bridge_settings()
        self.bridge: Bridge | None = None
        self.usable = False

    def use(self, work: Callable[[Runtime], Awaitable[T]]) -> T:
        """Do something with the runtime, within the model's time limit.

        Raises:
            CursorTimeoutError: It took longer.
        """
        seconds = self.llm.timeout

        async def bounded(runtime: Runtime) -> T:
            with anyio.move_on_after(seconds):
                return await work(runtime)
            raise CursorTimeoutError(f"No answer within {seconds:g} s. Allow more with --timeout.")

        return self.llm._as_user().use(self.settings, bounded)

    def words(self, error: Exception) -> str:
        """What an error says, on one line and without the key."""
        text = str(error) if isinstance(error, CursorError) else f"{type(error).__name__}: {error}"
        text, key = redact(" ".join(text.split())), self.settings.api_key
        # A short one, such as that for the stand-in, would tear ordinary words apart.
        return text.replace(key, "***") if len(key) >= 8 else text

    def ask(self) -> float:
        """Make one run, and tell how many seconds it took.

        Raises:
            CursorError: It failed.
        """
        started = time.perf_counter()
        self.llm.invoke(_QUESTION)
        return time.perf_counter() - started


def _load_sdk(llm: ChatCursor) -> ModuleType:
    if llm.sdk_loader is not None:
        return llm.sdk_loader()
    import cursor_sdk

    return cursor_sdk


def _sdk(sdk: ModuleType, own: bool) -> Finding:
    version = ""
    if not own:
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version("cursor-sdk")
    named = f"cursor-sdk {version}".strip()
    if not capabilities(sdk).tools:
        return Finding(
            "poor",
            "SDK",
            f"{named} cannot deny an agent its tools, prewarm an executor or set a system prompt: "
            "a paragraph in the prompt asks the model to use no tools",
            _UPGRADE,
        )
    if version and version_tuple(version) < (1, 0, 31):
        return Finding("poor", "SDK", f"{named} cannot set an agent's system prompt", _UPGRADE)
    return Finding(
        "good", "SDK", f"{named} can deny an agent its tools, prewarm and set a system prompt"
    )


def _bridge(probe: _Probe) -> Iterator[Finding]:
    own = bool(probe.settings.own_command or probe.settings.own_url)
    started = time.perf_counter()
    try:
        probe.bridge = probe.use(lambda runtime: runtime.bridge())
    except Exception as error:
        advice = f"Check {_OWN_BRIDGE}." if own else "Reinstall cursor-sdk."
        yield Finding("bad", "Bridge", probe.words(error), advice)
        return
    seconds = time.perf_counter() - started
    what = "your own one answers" if own else "starts"
    yield Finding("good", "Bridge", f"{what} in {seconds:.2f} s")
    if probe.bridge.can.extension:
        yield Finding("good", "Extension", "works")
        return
    text = "is not used: calls are slower, and system messages stand in the prompt"
    if own:
        advice = f"Unset {_OWN_BRIDGE}, unless you need them."
    elif not probe.llm.bridge_extension:
        advice = "Leave out `bridge_extension=False`."
    else:
        advice = _UPGRADE
    yield Finding("poor", "Extension", text, advice)


def _account(probe: _Probe) -> Iterator[Finding]:
    backend = redact(probe.settings.backend or DEFAULT_BACKEND)
    started = time.perf_counter()
    try:
        models = probe.use(lambda runtime: runtime.models())
    except Exception as error:
        refusals = (CursorAuthenticationError, CursorPermissionDeniedError, CursorRateLimitError)
        if isinstance(error, refusals):
            yield Finding("good", "Cursor", f"{backend} can be reached")
            yield Finding("bad", "Account", probe.words(error))
        else:
            yield Finding(
                "bad",
                "Cursor",
                f"{backend}: {probe.words(error)}",
                "Check the network, a firewall, and CURSOR_BACKEND_URL.",
            )
            yield from _not_seen("needs Cursor", "Account")
        return
    seconds = time.perf_counter() - started
    yield Finding("good", "Cursor", f"{backend} answers in {seconds:.2f} s")
    probe.usable = True
    who = ""
    with suppress(Exception):  # only for information: a call needs no name
        who = probe.use(_name)
    yield Finding("good", "Account", f"{who}{len(models)} models")


async def _name(runtime: Runtime) -> str:
    bridge = await runtime.bridge()
    user = await bridge.client.me(api_key=runtime.settings.api_key)
    return f"{redact(user.user_email)}, " if user.user_email else ""


def _calls(probe: _Probe) -> Iterator[Finding]:
    try:
        first = probe.ask()
    except Exception as error:
        yield Finding("bad", "Call", probe.words(error))
        yield from _not_seen("needs a call that works", *_SEEN_BY_RUNNING[1:])
        return
    yield Finding("good", "Call", f"{probe.llm.model} answers in {first:.2f} s")
    yield probe.use(_sandbox)
    yield probe.use(_system_prompt)
    yield _warm_executor(probe, first)


async def _sandbox(runtime: Runtime) -> Finding:
    bridge = await runtime.bridge()
    if bridge.can.sandbox and runtime.sandbox_works:
        return Finding("good", "Sandbox", "works")
    return Finding(
        "poor",
        "Sandbox",
        "is not supported on this machine: agents run without it, and have no tools either way",
        "Silence the warning with `ChatCursor(sandbox=False)`.",
    )


async def _system_prompt(runtime: Runtime) -> Finding:
    bridge = await runtime.bridge()
    if not bridge.can.system_prompt:
        return Finding(
            "poor",
            "System prompt",
            "cannot be the agent's own here: system messages stand in the prompt",
            "See the SDK and the extension above.",
        )
    if runtime.native_system_works:
        return Finding("good", "System prompt", "granted: system messages become the agent's own")
    return Finding(
        "poor",
        "System prompt",
        "refused for this account: system messages stand in the prompt",
        "Ask Cursor's support for custom system prompts, or save the attempt with "
        "`ChatCursor(native_system_prompt=False)`.",
    )


def _warm_executor(probe: _Probe, first: float) -> Finding:
    async def kept(runtime: Runtime) -> bool:
        return runtime.keeps_executor

    before = probe.use(kept)
    try:
        second = probe.ask()
    except Exception as error:
        return Finding("bad", "Warm executor", f"the second call failed: {probe.words(error)}")
    if before and probe.use(kept):
        return Finding(
            "good",
            "Warm executor",
            f"kept from the first call ({first:.2f} s) to the second ({second:.2f} s)",
        )
    return Finding(
        "poor",
        "Warm executor",
        f"not kept: the second call took {second:.2f} s, the first {first:.2f} s",
        "See the SDK and the extension above.",
    )


def _not_seen(why: str, *subjects: str) -> Iterator[Finding]:
    return (Finding("skipped", subject, why) for subject in subjects)
