"""The bridge process: its command, its start, its stderr and its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from langchain_cursor.errors import CursorStartupError

logger = logging.getLogger("langchain_cursor.bridge")

READY = "cursor-sdk-bridge ready "
EXTENSION_READY = "langchain-cursor-extension ready "
EXTENSION_MEMORY = "langchain-cursor-extension memory "
EXTENSION_CATALOG = "langchain-cursor-extension catalog"
EXTENSION = Path(__file__).with_name("extension.mjs")

# Start-up was 0.7 to 1.0 s on two cores (cursor-sdk 1.1.0); a cold, busy machine needs more.
START_TIMEOUT = 30.0
# For the end of a process that was killed, and for the thread that reads what it wrote.
END_TIMEOUT = 5.0
_LONGEST_LINE = 65536  # bytes kept of a line that does not end


def vendored(sdk_file: str | None) -> Path | None:
    """The directory of the bridge inside an installed cursor-sdk, or None if it has none.

    Args:
        sdk_file: `__file__` of the SDK's package.
    """
    if not sdk_file:
        return None
    root = Path(sdk_file).resolve().parent / "_vendor" / "bridge"
    return root if node(root).is_file() else None


def node(root: Path) -> Path:
    """The Node executable in the bridge's directory."""
    return root / "bin" / ("node.exe" if sys.platform == "win32" else "node")


def environment(scratch: Path, backend: str | None) -> dict[str, str]:
    """The environment of a bridge: this process's, with everything it writes moved to scratch.

    The key travels in requests, so CURSOR_API_KEY is left out: the bridge must never answer with
    an account other than the one asked for.
    """
    env = {name: value for name, value in os.environ.items() if name != "CURSOR_API_KEY"}
    env.setdefault("CURSOR_SDK_CLIENT_LANGUAGE", "python")
    if backend:
        env["CURSOR_BACKEND_URL"] = backend
    home, temporary = scratch / "home", scratch / "tmp"
    for name in ("HOME", "USERPROFILE"):
        env[name] = str(home)
    for name in ("TMPDIR", "TEMP", "TMP"):
        env[name] = str(temporary)
    return env


class BridgeProcess:
    """One bridge process, and the thread that reads its stderr until it has ended.

    Args:
        argv: The command.
        env: The environment.
        directory: The working directory: this process's own may have been deleted.
        on_exit: Called from the thread, with this object, when the process has ended.
        secrets: Texts that never appear in a log.
        on_catalog: Called from the thread when the extension has fetched a model catalog.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        directory: Path,
        on_exit: Callable[[BridgeProcess], None],
        secrets: Sequence[str] = (),
        on_catalog: Callable[[], None] = lambda: None,
    ) -> None:
        self.owner = os.getpid()
        self.discovery: Future[dict[str, Any]] = Future()
        self.extension: dict[str, Any] | None = None
        self.memory = 0
        self.last_lines: deque[str] = deque(maxlen=20)
        # Short ones, such as a key for the offline stand-in, would tear ordinary words apart.
        self._secrets = [secret for secret in secrets if len(secret) >= 8]
        del secrets  # a traceback may be printed with local variables
        self._on_exit = on_exit
        self._on_catalog = on_catalog
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # Unbuffered: a buffer's lock, held by the reader, would survive a fork.
                bufsize=0,
                env=dict(env),
                cwd=directory,
                # Ctrl-C in a terminal reaches Python only.
                **_own_group(),
            )
        except OSError as error:
            raise CursorStartupError(
                f"The bridge of cursor-sdk cannot be started: {error.strerror or error} "
                f"({argv[0]}). Reinstall cursor-sdk, or set CURSOR_SDK_BRIDGE_BIN."
            ) from error
        self._thread = threading.Thread(
            target=self._read, name=f"langchain-cursor-bridge-{self._process.pid}", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            self._kill()
            _wait(self._process, END_TIMEOUT)
            self.abandon()
            raise CursorStartupError(
                "The bridge of cursor-sdk was started, but there is no thread to listen to it: "
                f"{error}. Raise the limit on threads or processes."
            ) from error

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    async def ready(self, timeout: float) -> dict[str, Any]:
        """Wait until the bridge says where it listens.

        Raises:
            CursorStartupError: It ended or said nothing within `timeout` seconds; the message
                holds the last lines that it wrote.
        """
        try:
            found = asyncio.wrap_future(self.discovery)
            # Who gives up does not look at it any more: it counts as seen all the same.
            found.add_done_callback(lambda done: done.cancelled() or done.exception())
            return await asyncio.wait_for(asyncio.shield(found), timeout)
        except asyncio.TimeoutError as error:
            raise CursorStartupError(
                f"The bridge of cursor-sdk was not ready after {timeout:g} s.{self.last_words()}"
            ) from error

    def last_words(self) -> str:
        """The last lines of its stderr, as a sentence to append to an error; may be empty."""
        text = "\n".join(self.last_lines).strip()
        return f" Its last lines were:\n{text}" if text else " It wrote nothing to stderr."

    def end(self) -> None:
        """End the process and everything in its group, and reap it."""
        if self.owner != os.getpid():
            return
        self._kill()
        _wait(self._process, END_TIMEOUT)
        if threading.current_thread() is not self._thread:
            self._thread.join(END_TIMEOUT)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's process without touching it."""
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._process.returncode = 0

    def _kill(self) -> None:
        if self._process.returncode is not None:
            return  # reaped: the id may belong to another process by now
        try:
            if sys.platform == "win32":
                self._process.terminate()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def _read(self) -> None:
        stderr = self._process.stderr
        if stderr is None:
            return
        pending = b""
        with stderr:
            while chunk := stderr.read(65536):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    self._line(line.decode("utf-8", "replace").rstrip())
                pending = pending[-_LONGEST_LINE:]
        self._line(pending.decode("utf-8", "replace").rstrip())
        status = self._process.wait()
        if not self.discovery.done():
            self.discovery.set_exception(
                CursorStartupError(
                    f"The bridge of cursor-sdk ended at its start with status {status}."
                    + self.last_words()
                )
            )
        self._on_exit(self)

    def _discover(self, text: str) -> None:
        where = _parsed(text)
        if not isinstance(where, dict):
            self.discovery.set_exception(
                CursorStartupError("The bridge of cursor-sdk gave an address that is no JSON.")
            )
            return
        if token := where.get("authToken"):
            self._secrets.append(str(token))
        self.discovery.set_result(where)

    def _line(self, line: str) -> None:
        # Lines of two writers can run into each other: what cannot be read is a line like others.
        if line.startswith(EXTENSION_READY) and (told := _parsed(line[len(EXTENSION_READY) :])):
            self.extension = told
        elif line.startswith(EXTENSION_MEMORY) and line[len(EXTENSION_MEMORY) :].isdecimal():
            self.memory = int(line[len(EXTENSION_MEMORY) :])
        elif line == EXTENSION_CATALOG:
            self._on_catalog()
        elif line.startswith(READY) and not self.discovery.done():
            self._discover(line[len(READY) :])
        elif line:
            for secret in self._secrets:
                line = line.replace(secret, "***")
            self.last_lines.append(line)
            logger.info("%s", line)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _own_group() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _wait(process: subprocess.Popen[bytes], timeout: float) -> None:
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        return
