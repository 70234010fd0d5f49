"""`FakeCursor`: an in-process stand-in for the SDK's bridge, for testing what uses ChatCursor.

It takes the place of the bridge at the SDK's own transport seam, so that the SDK's types, its
serialization and its error parsing are the real ones. There is no process, no network and no key.

    >>> from langchain_cursor import ChatCursor
    >>> fake = FakeCursor(["Hello.", "Bye."])
    >>> llm = ChatCursor(sdk_loader=fake.sdk)
    >>> llm.invoke("Hi").text
    'Hello.'
    >>> fake.assert_prompted("Hi")
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from ._account import DEFAULT_MODELS
from ._sdk_bridge import FakeBridge
from ._sdk_clock import FakeClock, Timeline
from ._sdk_module import features_of, sdk_module
from ._sdk_record import FakeRecord
from ._sdk_script import Player, Script

__all__ = ["FakeCursor", "Phases"]


@dataclass(frozen=True)
class Phases:
    """How long a fake bridge takes, in seconds of its clock.

    Attributes:
        start: To start.
        create: To create an agent or a lease.
        build: To build an executor.
        first_token: From a run's begin to its first text or thinking.
        per_token: Before each further one.
        close: To close an agent.
    """

    start: float = 0.0
    create: float = 0.0
    build: float = 0.0
    first_token: float = 0.0
    per_token: float = 0.0
    close: float = 0.0

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if seconds < 0:
                raise ValueError(f"Phases.{name} must be 0 or more seconds, not {seconds!r}")


_INSTANT = Phases()


class FakeCursor(FakeRecord):
    """A Cursor of a test's own: scripted replies, and a record of what was asked.

    Hand its `sdk` to a model: ``ChatCursor(sdk_loader=fake.sdk)``. Any number of models, copies and
    threads may share it. `sandbox`, `system_prompt`, `models`, `refuse_all_keys` and `phases` are
    attributes that may be changed at any time.

    Args:
        script: What is answered: a list of replies, one a run; a dict of rules, of which the first
            that matches a run answers it; a function from a `ReceivedRun` to a reply; None for the
            default brain, see `brain.answer`.
        version: The version of cursor-sdk to be; the installed one by default. Before 1.0.29
            agents cannot be denied their tools, before 1.0.31 they have no system prompt.
        sandbox: Whether the machine supports Cursor's sandbox.
        system_prompt: Whether the account may set an agent's system prompt.
        models: Ids of the account's models.
        refuse_all_keys: Whether every API key is refused.
        phases: How long things take.
        real_time: Whether delays take real time. Else `clock` alone tells that it has passed.

    Raises:
        TypeError: The script is none, or `phases` or `models` are of another type.
        ValueError: The version is none, or `system_prompt` is another word.

    Example:
        >>> from langchain_cursor import ChatCursor
        >>> from langchain_cursor_fakes import tool_call
        >>> def now() -> str:
        ...     "Tell the time."
        ...     return "noon"
        >>> fake = FakeCursor({"time": tool_call("now"), "noon": "It is noon."})
        >>> llm = ChatCursor(sdk_loader=fake.sdk).bind_tools([now])
        >>> llm.invoke("What time is it?").tool_calls[0]["name"]
        'now'
        >>> fake.assert_tools_offered(["now"])
    """

    def __init__(
        self,
        script: Script = None,
        *,
        version: str | None = None,
        sandbox: bool = True,
        system_prompt: Literal["allowed", "refused"] = "allowed",
        models: Sequence[str] = DEFAULT_MODELS,
        refuse_all_keys: bool = False,
        phases: Phases = _INSTANT,
        real_time: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(phases, Phases):
            raise TypeError(f"phases are a `Phases(...)`, not {phases!r}")
        if isinstance(models, str):
            raise TypeError(f"models are a list of ids, not the text {models!r}")
        if system_prompt not in ("allowed", "refused"):
            raise ValueError(f"system_prompt is 'allowed' or 'refused', not {system_prompt!r}")
        self.features = features_of(version)
        self.clock = FakeClock(real_time=real_time)
        self.sandbox = sandbox
        self.system_prompt = system_prompt
        self.models = models
        self.refuse_all_keys = refuse_all_keys
        self.phases = phases
        self.sdk = SdkLoader(self)
        self._player = Player(script)
        self._bridges: list[FakeBridge] = []
        self._timelines: dict[asyncio.AbstractEventLoop, Timeline] = {}

    def __repr__(self) -> str:
        return f"<FakeCursor {self.features.version} runs={len(self.runs)}>"

    def reply_with(self, script: Script) -> None:
        """Go on with another script.

        Raises:
            TypeError: The script is none.
        """
        self._player = Player(script)

    def client(self) -> Any:
        """Make an `AsyncClient` of the SDK, for code that uses the SDK without ChatCursor.

        Call it on the event loop that the client is used on.
        """
        sdk = self.sdk()
        bridge = self._open(sdk, extended=self.features.tools)
        return _client(sdk, bridge)

    def kill_bridge(self) -> None:
        """End every bridge, as if its process were killed; from any thread."""
        for bridge in self._bridges:
            bridge.end()

    def assert_done(self) -> None:
        """Assert that everything went by the script.

        Raises:
            AssertionError: There was a run that the script did not expect, a function of the
                script raised something, or a reply of a list was not asked for. The first error of
                the script is the cause.
        """
        failures, left = self.failures, self._player.left
        if failures:
            more = f" ({len(failures) - 1} more follow)" if len(failures) > 1 else ""
            error = failures[0]
            told = str(error) if isinstance(error, AssertionError) else repr(error)
            raise AssertionError(f"{told}{more}") from error
        if left:
            replies = ", ".join(repr(reply)[:80] for reply in left)
            raise AssertionError(
                f"Not asked for, of the script's replies: {replies}. Runs so far: {len(self.runs)}."
            )

    def _timeline(self) -> Timeline:
        """The timeline of the running event loop: bridges that live on one loop have one order."""
        loop = asyncio.get_running_loop()
        with self._changed:
            if loop not in self._timelines:
                open_ones = {
                    one: line for one, line in self._timelines.items() if not one.is_closed()
                }
                self._timelines = {**open_ones, loop: Timeline(self.clock)}
            return self._timelines[loop]

    def _open(
        self, sdk: ModuleType, *, extended: bool, on_death: Callable[[], None] = lambda: None
    ) -> FakeBridge:
        bridge = FakeBridge(self, sdk, extended=extended, on_death=on_death)
        self._bridges = [known for known in self._bridges if known.alive]
        self._bridges.append(bridge)
        return bridge


class SdkLoader:
    """What goes into `ChatCursor(sdk_loader=...)`: returns the SDK module on a fake bridge.

    A model copied or deep-copied keeps it; it does not travel to another process.
    """

    default_api_key = "crsr_fake"
    """The key of a model that is given none."""

    def __init__(self, cursor: FakeCursor) -> None:
        self._cursor = cursor
        self._module: ModuleType | None = None

    def __call__(self) -> ModuleType:
        """Return the module."""
        if self._module is None:
            self._module = sdk_module(self._cursor.features, self._bridge)
        return self._module

    def __copy__(self) -> SdkLoader:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SdkLoader:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"{self._cursor!r} belongs to this process and cannot be pickled")

    async def _bridge(self, settings: Any, on_exit: Callable[[FakeProcess], None]) -> Connection:
        """The hook of `langchain_cursor.bridge.launch`."""
        sdk = self()
        extended = bool(settings.extension) and self._cursor.features.tools
        process: FakeProcess
        bridge = self._cursor._open(sdk, extended=extended, on_death=lambda: on_exit(process))
        process = FakeProcess(bridge)
        try:
            await bridge.spend(self._cursor.phases.start)
        except sdk.NetworkError as error:  # as of a process that has ended
            raise _startup_error(process) from error
        except asyncio.CancelledError:
            bridge.end()
            raise
        version = self._cursor.features.version if extended else None
        return Connection(_client(sdk, bridge), version, process)


@dataclass(frozen=True)
class Connection:
    """What ChatCursor gets in place of a bridge that it has started.

    Attributes:
        client: An `AsyncClient` of the SDK.
        extension_version: The version that the bridge extension reports; None without it.
        process: The bridge's process.
        workspace: The working directory of its agents, which is nowhere.
    """

    client: Any
    extension_version: str | None
    process: FakeProcess
    workspace: str = "workspace"


class FakeProcess:
    """Stands for a bridge's process.

    Attributes:
        memory: Bytes that it takes, so that it is never thought to have grown too large.
    """

    memory = 0

    def __init__(self, bridge: FakeBridge) -> None:
        self._bridge = bridge

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._bridge.alive

    def last_words(self) -> str:
        """What an error says of its end."""
        return " Its last lines were:\nFakeCursor ended this bridge."

    def end(self, grace: float = 0.0, wait: float = 5.0) -> None:
        """End it; from any thread."""
        self._bridge.end()

    def abandon(self) -> None:
        """In a forked child: there is nothing to let go of."""


def _startup_error(process: FakeProcess) -> Exception:
    """What ChatCursor raises if a bridge has ended before it was ready."""
    from langchain_cursor.errors import CursorStartupError  # not at import

    return CursorStartupError(f"The bridge ended at its start.{process.last_words()}")


def _client(sdk: ModuleType, bridge: FakeBridge) -> Any:
    return sdk.AsyncClient(transport=bridge, allow_api_key_env_fallback=True)
