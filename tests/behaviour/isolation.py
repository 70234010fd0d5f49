"""A test that plays a cassette starts no process and opens no connection."""

from __future__ import annotations

import socket
import subprocess
from typing import Any

import pytest


def isolate(patch: pytest.MonkeyPatch) -> None:
    """Make both fail, as long as the patch lasts.

    pytest-recording's `block_network` has no effect beside pytest-socket, which lets loopback pass.
    """
    patch.setattr(subprocess, "Popen", no_process)
    for way in ("connect", "connect_ex"):
        patch.setattr(socket.socket, way, no_connection)


def no_process(*arguments: Any, **named: Any) -> None:
    """Stands for `subprocess.Popen`."""
    raise AssertionError("a process was started")


def no_connection(*arguments: Any, **named: Any) -> None:
    """Stands for a socket's `connect`."""
    raise AssertionError("a connection was opened")
