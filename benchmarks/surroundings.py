"""Where benchmarks run: without the settings of whoever runs them, and on which machine."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import cursor_sdk

from langchain_cursor.bridge.process import node, vendored

_DROPPED_STARTS = ("CURSOR_", "LANGSMITH_", "LANGCHAIN_TRACING", "XDG_")


@contextmanager
def neutral() -> Iterator[Path]:
    """No account, settings, tracing or proxies of the user's, and a temporary home, returned."""
    before = dict(os.environ)
    with quiet(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        try:
            for name in before:
                if name.startswith(_DROPPED_STARTS) or name.lower().endswith("_proxy"):
                    del os.environ[name]
            os.environ["HOME"] = home
            yield Path(home)
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings: that a machine has no sandbox would be told for each bridge."""
    logger = logging.getLogger("langchain_cursor")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that is run again and again (`asyncio.Runner` came with Python 3.11)."""
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def machine() -> dict[str, str]:
    """What the numbers depend on: processor, Python, cursor-sdk and Node."""
    return {
        "machine": f"{os.cpu_count()} cores, {_processor()}, {platform.system()}",
        "Python": platform.python_version(),
        "cursor-sdk": version("cursor-sdk"),
        "langchain-core": version("langchain-core"),
        "Node": _node_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _node_version() -> str:
    root = vendored(cursor_sdk.__file__)
    if root is None:
        return "unknown"
    done = subprocess.run([node(root), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("v")
