"""Starting a bridge and connecting to it: with the extension, stock, or the user's own."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import isawaitable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import anyio
import httpx

from langchain_cursor import catalog
from langchain_cursor.agents import Capabilities, capabilities
from langchain_cursor.bridge.connections import connections
from langchain_cursor.bridge.process import (
    EXTENSION,
    START_TIMEOUT,
    BridgeProcess,
    environment,
    node,
    vendored,
)
from langchain_cursor.cache import private_directory
from langchain_cursor.errors import CursorStartupError, forget_locals
from langchain_cursor.loop import in_thread

if TYPE_CHECKING:
    from langchain_cursor.scratch import Scratch

logger = logging.getLogger("langchain_cursor")

SdkLoader = Callable[[], ModuleType]

# The function by which an SDK module brings its own bridge instead of a process to start, as a
# double for tests does. It gets the settings and what to call with the process when that has ended,
# and returns, or is awaited for, an object with `client`, `extension_version`, `process` and
# `workspace`.
BRIDGE_HOOK = "__langchain_cursor_bridge__"

# Seconds until a request that is not answered fails. The bridge asks Cursor's cloud for what an
# agent and its executor need in silence; see `watchdog` for a run that has begun.
ANSWER_TIMEOUT = 90.0
# To connect to loopback; a bridge that is busy or stopped is connected to all the same.
CONNECT_TIMEOUT = 10.0
_TIMEOUT = httpx.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT, pool=None)
# Seconds in which a bridge that lives answers a ping, however long Cursor's cloud takes.
PING_TIMEOUT = 10.0
# Seconds until the end of a process that has cut a connection is noticed.
EXIT_TIMEOUT = 0.25


@dataclass(frozen=True)
class BridgeSettings:
    """What decides which bridge serves a model; equal settings share one bridge.

    Args:
        api_key: The account's key.
        backend: Cursor's backend, or None for the SDK's default.
        extension: Whether to start the bridge with the extension.
        loader: Returns the SDK module; None imports `cursor_sdk`.
        own_command: The user's own bridge launcher (CURSOR_SDK_BRIDGE_BIN).
        own_url: The user's own running bridge (CURSOR_SDK_BRIDGE_URL).
        own_token: Its token (CURSOR_SDK_BRIDGE_TOKEN).
        catalog: The user's own model catalog (CURSOR_SDK_LOCAL_MODEL_CATALOG_JSON).
        cache_catalog: Whether to keep the account's model catalog on disk.
        number: Which of several bridges that are alike.
    """

    api_key: str = field(repr=False)
    backend: str | None = None
    extension: bool = True
    loader: SdkLoader | None = None
    own_command: str | None = None
    own_url: str | None = None
    own_token: str | None = field(default=None, repr=False)
    catalog: str | None = field(default=None, repr=False)
    cache_catalog: bool = True
    number: int = 0

    @classmethod
    def from_environment(
        cls,
        api_key: str,
        backend: str | None = None,
        extension: bool = True,
        loader: SdkLoader | None = None,
        cache_catalog: bool = True,
    ) -> BridgeSettings:
        """Complete the settings with what the SDK's environment variables say now."""
        url = os.environ.get("CURSOR_SDK_BRIDGE_URL") or None
        return cls(
            api_key=api_key,
            backend=backend or os.environ.get("CURSOR_BACKEND_URL") or None,
            extension=extension,
            loader=loader,
            own_command=os.environ.get("CURSOR_SDK_BRIDGE_BIN", "").strip() or None,
            own_url=url,
            own_token=os.environ.get("CURSOR_SDK_BRIDGE_TOKEN") if url else None,
            catalog=os.environ.get("CURSOR_SDK_LOCAL_MODEL_CATALOG_JSON"),
            cache_catalog=cache_catalog,
        )


class Bridge:
    """A bridge that is ready, and the client that talks to it.

    Args:
        sdk: The SDK module.
        client: Its `AsyncClient`.
        can: What this SDK and bridge can carry.
        process: The process, unless the bridge is the user's own running one.
        http: The HTTP client under `client`, if it has one of ours.
        workspace: The working directory of its agents.

    Attributes:
        silent: Whether it was given up because it did not answer any more.
    """

    def __init__(
        self,
        sdk: ModuleType,
        client: Any,
        can: Capabilities,
        process: BridgeProcess | None,
        http: httpx.AsyncClient | None,
        workspace: str,
    ) -> None:
        self.sdk = sdk
        self.client = client
        self.can = can
        self.process = process
        self.workspace = workspace
        self.silent = False
        self._lost = asyncio.Event()
        self._http = http

    @property
    def lost(self) -> bool:
        """Whether the bridge has ended, or counts as ended."""
        return self._lost.is_set()

    @property
    def memory(self) -> int:
        """The process's resident memory in bytes, as the extension last told; 0 if it has not."""
        return 0 if self.process is None else self.process.memory

    def lose(self) -> None:
        """Count it as ended: nothing is sent to it any more."""
        self._lost.set()

    async def has_ended(self) -> bool:
        """Whether the process has gone, allowing its end `EXIT_TIMEOUT` seconds to be noticed."""
        if self.process is not None:
            with anyio.move_on_after(EXIT_TIMEOUT):
                await self._lost.wait()
        return self.lost

    async def answers(self) -> bool:
        """Whether it lives: answers a ping within `PING_TIMEOUT` seconds."""
        with anyio.move_on_after(PING_TIMEOUT):
            try:
                await self.client.ping()
            except Exception as error:  # a refusal is an answer too
                return not isinstance(error.__cause__, httpx.RequestError)
            return True
        return False

    async def aclose(self) -> None:
        """Close the connections and end the process."""
        self.lose()
        if self._http is not None:
            await self._http.aclose()
        if self.process is not None:
            await in_thread(self.process.end)


async def start_bridge(
    settings: BridgeSettings,
    scratch: Callable[[], Scratch],
    track: Callable[[BridgeProcess], None],
    on_exit: Callable[[BridgeProcess], None],
) -> Bridge:
    """Start a bridge, or connect to the user's own, and wait until it is ready.

    Args:
        settings: Which bridge.
        scratch: Returns where it may write; a double of the SDK does not ask.
        track: Called with each process as soon as it exists, so that its end is certain.
        on_exit: Called on the running loop when the process has ended.

    Raises:
        CursorStartupError: No bridge starts on this machine.
        Exception: Whatever the SDK loader raises, as it is.
    """
    spawn = _Spawn(settings, scratch, track, on_exit)
    try:
        if settings.loader is not None:
            sdk = await in_thread(partial(_load, settings.loader))
            if hasattr(sdk, BRIDGE_HOOK):
                return await _hooked(settings, sdk, track, on_exit)
            if not settings.own_url:
                spawn.start(vendored(getattr(sdk, "__file__", None)))
        else:
            # Node needs longer to load than Python: import while it does.
            spec = find_spec("cursor_sdk")
            if not settings.own_url:
                spawn.start(vendored(spec.origin if spec else None))
            sdk = await in_thread(partial(_load, _import_sdk))
        return _connect(settings, sdk, await spawn.ready(), str(scratch().workspace))
    except BaseException:
        await spawn.end()
        raise


async def _hooked(
    settings: BridgeSettings,
    sdk: ModuleType,
    track: Callable[[BridgeProcess], None],
    on_exit: Callable[[BridgeProcess], None],
) -> Bridge:
    """Take the bridge that the SDK module itself brings."""
    given = getattr(sdk, BRIDGE_HOOK)(settings, on_exit)
    if isawaitable(given):
        given = await given
    track(given.process)
    can = capabilities(sdk, given.extension_version)
    return Bridge(sdk, given.client, can, given.process, None, given.workspace)


def _load(loader: SdkLoader) -> ModuleType:
    try:
        sdk = loader()
    except Exception:
        raise
    except BaseException as error:  # a `SystemExit` would end the private loop
        raise CursorStartupError(f"The SDK's loader gave up: {error!r}") from error
    if not hasattr(sdk, BRIDGE_HOOK):
        # What else a first call needs, 35 ms: now, while Node starts, and not in the call's way.
        for name in ("httpcore", "langchain_cursor.conversation"):
            with suppress(ImportError):
                import_module(name)
    return sdk


def _import_sdk() -> ModuleType:
    import cursor_sdk

    return cursor_sdk


def _connect(
    settings: BridgeSettings, sdk: ModuleType, process: BridgeProcess | None, workspace: str
) -> Bridge:
    if process is None:
        if not settings.own_token:
            raise CursorStartupError(
                "CURSOR_SDK_BRIDGE_URL names a bridge of your own: set CURSOR_SDK_BRIDGE_TOKEN "
                "to its token too."
            )
        endpoint = sdk.BridgeEndpoint(url=settings.own_url, auth_token=settings.own_token)
    else:
        try:
            endpoint = sdk.BridgeEndpoint.from_discovery(process.discovery.result())
        except Exception as error:
            forget_locals(error)  # they hold the token
            raise CursorStartupError(
                "The bridge of cursor-sdk gave an address that cursor-sdk does not understand: "
                f"{error}.{process.last_words()}"
            ) from error
    http = httpx.AsyncClient(
        timeout=_TIMEOUT,
        trust_env=False,  # a proxy from the environment must not get loopback calls and the token
        follow_redirects=False,
        transport=connections(endpoint.url),
    )
    client = sdk.AsyncClient(
        endpoint,
        timeout=_TIMEOUT,
        http_client=http,
        # Else the SDK takes the bridge for a foreign one and refuses to cancel runs.
        allow_api_key_env_fallback=True,
    )
    version = process.extension["sdk"] if process is not None and process.extension else None
    return Bridge(sdk, client, capabilities(sdk, version), process, http, workspace)


class _Spawn:
    """Starts the process of one bridge: with the extension, and stock if that does not come up."""

    def __init__(
        self,
        settings: BridgeSettings,
        scratch: Callable[[], Scratch],
        track: Callable[[BridgeProcess], None],
        on_exit: Callable[[BridgeProcess], None],
    ) -> None:
        self._settings = settings
        self._make_scratch = scratch
        self._track = track
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._process: BridgeProcess | None = None
        self._fallback: Path | None = None

    def start(self, root: Path | None) -> None:
        self._scratch = self._make_scratch()
        own = self._settings.own_command
        if own:
            command = Path(own).expanduser()
            if not command.is_file():
                raise CursorStartupError(f"CURSOR_SDK_BRIDGE_BIN={own!r} is not a file.")
            self._run([str(command)])
        elif root is None:
            found = shutil.which("cursor-sdk-bridge")
            if found is None:
                raise CursorStartupError(
                    "The installed cursor-sdk has no bridge for this platform. Install a wheel "
                    "that has one, or set CURSOR_SDK_BRIDGE_BIN to a bridge of your own."
                )
            self._run([found])
        elif not self._settings.extension:
            self._stock(root)
        else:
            self._fallback = root
            self._run(
                [_executable(root), str(EXTENSION)],
                LANGCHAIN_CURSOR_BRIDGE_ROOT=str(root),
                LANGCHAIN_CURSOR_SCRATCH=str(self._scratch.root),
                LANGCHAIN_CURSOR_PARENT=str(os.getpid()),
                LANGCHAIN_CURSOR_COMPILE_CACHE=str(private_directory("node") or ""),
                LANGCHAIN_CURSOR_CATALOG=self._cached_catalog(),
            )

    async def ready(self) -> BridgeProcess | None:
        """The process once it listens; None if none was started."""
        if self._process is None:
            return None
        try:
            await self._process.ready(START_TIMEOUT)
        except CursorStartupError as error:
            await self.end()
            root, self._fallback = self._fallback, None
            if root is None:
                raise
            logger.warning(
                "The bridge does not start with ChatCursor's extension; the stock bridge serves, "
                "more slowly and with system messages in the prompt. %s",
                error,
            )
            self._stock(root)
            return await self.ready()
        return self._process

    async def end(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            await in_thread(process.end)

    def _cached_catalog(self) -> str:
        """A file with the account's catalog from the disk, or an empty text if there is none."""
        settings = self._settings
        known = None
        if settings.cache_catalog and not settings.catalog:
            known = catalog.load(settings.api_key, settings.backend)
        if known is None:
            return ""
        path = self._scratch.root / "known-catalog.json"
        try:
            path.write_text(known, encoding="utf-8")
        except OSError:  # the disk is full: the bridge fetches it
            return ""
        return str(path)

    def _keep_catalog(self) -> None:
        settings = self._settings
        if settings.cache_catalog and not settings.catalog:
            fetched = fetched_catalog(self._scratch)
            if fetched is not None:
                catalog.store(settings.api_key, settings.backend, fetched)

    def _stock(self, root: Path) -> None:
        self._run([_executable(root), str(root / "dist" / "bin" / "cursor-sdk-bridge.js")])

    def _run(self, command: list[str], **extra: str) -> None:
        scratch = self._scratch
        argv = [*command, "--workspace", str(scratch.workspace)]
        argv += ["--state-root", str(scratch.root / "state")]
        env = environment(scratch.root, self._settings.backend) | extra
        self._process = BridgeProcess(
            argv, env, scratch.workspace, self._ended, [self._settings.api_key], self._keep_catalog
        )
        self._track(self._process)

    def _ended(self, process: BridgeProcess) -> None:
        try:
            self._loop.call_soon_threadsafe(self._on_exit, process)
        except RuntimeError:  # the loop has closed before the process ended
            return


def fetched_catalog(scratch: Scratch) -> str | None:
    """The model catalog that the extension has fetched last, as Cursor sent it."""
    try:
        return (scratch.root / "catalog.json").read_text(encoding="utf-8")
    except OSError:
        return None


def _executable(root: Path) -> str:
    path = node(root)
    if not os.access(path, os.X_OK):  # some installers drop the bit
        with suppress(OSError):  # not ours to change: then its start says what is wrong
            path.chmod(0o755)
    return str(path)
