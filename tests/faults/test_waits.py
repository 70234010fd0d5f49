"""The list of waits in spec/errors.md is the list of waits in the code."""

from __future__ import annotations

import ast
import asyncio
import functools
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import langchain_cursor
from langchain_cursor.bridge import watchdog
from langchain_cursor.bridge.watchdog import Watchdog
from tests.conftest import ROOT

PACKAGE = Path(langchain_cursor.__file__).parent
BLOCKING = {"wait", "join", "result", "get", "acquire", "communicate", "recv", "select", "wait_for"}
# What waits for another task or thread when it is awaited.
HANDED_ON = {"shield", "gather", "wrap_future", "to_thread", "run_in_executor"}
LIMITS = {"move_on_after", "fail_after"}


def section(clause: str) -> list[list[str]]:
    """The rows of the table under a heading of spec/errors.md."""
    text = (ROOT / "spec" / "errors.md").read_text(encoding="utf-8")
    text = text.partition(f"## {clause}:")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[2:]]


def name_of(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


class Waits(ast.NodeVisitor):
    """Finds the functions of a module that wait for something without a limit on the spot."""

    def __init__(self, module: str) -> None:
        self.found: set[str] = set()
        self._where = [module]
        self._limited = 0

    def visit_ClassDef(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        limited, self._limited = self._limited, 0
        self._where.append(node.name)
        self.generic_visit(node)
        self._where.pop()
        self._limited = limited

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef  # type: ignore[assignment]

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        items = [item.context_expr for item in node.items]
        if any("lock" in ast.unparse(item) for item in items):
            self._note()
        limits = [item for item in items if isinstance(item, ast.Call) and name_of(item) in LIMITS]
        self._limited += len(limits)
        self.generic_visit(node)
        self._limited -= len(limits)

    visit_AsyncWith = visit_With  # type: ignore[assignment]

    def visit_Call(self, node: ast.Call) -> None:
        name = name_of(node)
        limited = any(keyword.arg in ("timeout", "wait") for keyword in node.keywords)
        of_module = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in (
            "asyncio",
            "os",
        )
        limited = limited or (name == "wait_for" and len(node.args) > 1)
        variable = name == "get" and ast.unparse(node.func).partition(".")[0].isupper()
        # `asyncio.wait(tasks)` has no limit; `process.wait(5)` and `"".join(list)` are no such.
        if name in BLOCKING and not limited and not variable and (of_module or not node.args):
            self._note()
        if name == "keep_waiting":
            self._note()
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        awaited = node.value
        plain = isinstance(awaited, (ast.Name, ast.Attribute))
        if plain or (isinstance(awaited, ast.Call) and name_of(awaited) in HANDED_ON):
            self._note()
        self.generic_visit(node)

    def _note(self) -> None:
        if not self._limited:
            self.found.add(".".join(self._where))


def waits() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        finder = Waits(module)
        finder.visit(ast.parse(path.read_text(encoding="utf-8")))
        yield from sorted(finder.found)


@pytest.mark.clause("WAIT-2")
def test_every_wait_without_a_limit_of_its_own_is_listed_with_its_reason() -> None:
    rows = section("WAIT-2")
    listed = {where for where, _ in rows}
    found = set(waits())
    assert sorted(found - listed) == []
    assert sorted(listed - found) == []
    assert all(reason for _, reason in rows)


@pytest.mark.clause("WAIT-2")
@pytest.mark.parametrize(
    "code",
    [
        "queue.get()",
        "thread.join()",
        "future.result()",
        "event.wait()",
        "keep_waiting(event.wait)",
        "lock.acquire()",
        "with self._lock: pass",
        "await asyncio.wait(tasks)",
        "await asyncio.wait([task])",
        "await asyncio.shield(task)",
        "await task",
    ],
)
def test_a_new_wait_would_be_found(code: str) -> None:
    finder = Waits("module")
    finder.visit(ast.parse(f"async def function():\n    {code}"))
    assert finder.found == {"module.function"}


@pytest.mark.clause("WAIT-2")
@pytest.mark.parametrize(
    "code",
    [
        "queue.get(timeout=1)",
        "mapping.get(key)",
        "thread.join(2)",
        "', '.join(words)",
        "await asyncio.wait(tasks, timeout=3)",
        "with anyio.move_on_after(3):\n        await event.wait()",
    ],
)
def test_a_wait_with_a_limit_is_not(code: str) -> None:
    finder = Waits("module")
    finder.visit(ast.parse(f"async def function():\n    {code}"))
    assert finder.found == set()


@pytest.mark.clause("WAIT-1")
def test_the_limits_are_what_the_specification_says() -> None:
    for limit, seconds, _, then in section("WAIT-1"):
        module, _, name = limit.rpartition(".")
        if limit == "chat_models.ChatCursor.timeout":
            fields = import_module("langchain_cursor.chat_models").ChatCursor.model_fields
            value = fields["timeout"].default
        else:
            value = getattr(import_module(f"langchain_cursor.{module}"), name)
        assert value == float(seconds), limit
        assert then


@pytest.mark.clause("WAIT-1")
def test_every_limit_of_the_code_is_in_the_specification() -> None:
    listed = {row[0] for row in section("WAIT-1")}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                name = ast.unparse(node.targets[0])
                if name.endswith("_TIMEOUT") or name == "GRACE":
                    assert f"{module}.{name}" in listed


@pytest.mark.clause("WAIT-1")
def test_no_limit_is_a_number_in_the_middle_of_the_code() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                given = [word.value for word in node.keywords if word.arg in ("timeout", "wait")]
                if name_of(node) in LIMITS | {"call_later"}:
                    given += node.args[:1]
                assert not [value for value in given if isinstance(value, ast.Constant)], path


# --- The watchdog ---------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SILENCE_TIMEOUT", 0.05)
    monkeypatch.setattr(watchdog, "GRACE", 0.02)


@pytest.mark.clause("FAULT-16")
@pytest.mark.usefixtures("quick")
async def test_the_watchdog_calls_once_when_nothing_is_heard() -> None:
    loop = asyncio.get_running_loop()
    called: list[float] = []
    began = loop.time()
    with Watchdog(on_silence=lambda: called.append(loop.time() - began)):
        await asyncio.sleep(0.2)
    (after,) = called
    assert 0.07 <= after < 0.15


@pytest.mark.clause("FAULT-16")
@pytest.mark.usefixtures("quick")
async def test_the_watchdog_is_quiet_while_something_is_heard() -> None:
    called: list[bool] = []
    with Watchdog(on_silence=functools.partial(called.append, True)) as dog:
        for _ in range(20):
            dog.rest()
            dog.listen()
            await asyncio.sleep(0.01)
        dog.rest()
        await asyncio.sleep(0.1)
        dog.listen()
    await asyncio.sleep(0.1)
    assert called == []


@pytest.mark.clause("FAULT-19")
@pytest.mark.usefixtures("quick")
async def test_the_watchdog_lets_a_late_loop_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    clock = asyncio.get_running_loop().time
    late = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + late)
    with Watchdog(on_silence=functools.partial(called.append, True)) as dog:
        late = 100.0  # the process was stopped
        await asyncio.sleep(0)
        dog.rest()
        dog.listen()
        await asyncio.sleep(0.03)
    assert called == []


@pytest.mark.clause("FAULT-16")
async def test_hearing_something_sets_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_later = loop.call_later

    def counted(delay: float, *given: Any) -> asyncio.TimerHandle:
        timers.append(delay)
        return call_later(delay, *given)

    monkeypatch.setattr(loop, "call_later", counted)
    with Watchdog(on_silence=lambda: None) as dog:
        for _ in range(1000):
            dog.rest()
            dog.listen()
    assert timers == [watchdog.SILENCE_TIMEOUT]
