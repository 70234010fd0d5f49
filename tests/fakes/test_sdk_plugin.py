"""The pytest plugin, and what importing the fakes costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.fake

TESTS = """
import pytest

from langchain_cursor import ChatCursor


def ask(fake, question):
    with ChatCursor(sdk_loader=fake.sdk, max_retries=0) as llm:
        return llm.invoke(question).text


def test_default_brain(fake_cursor):
    assert ask(fake_cursor, "Hello!") == "Hello from Cursor. You said: Hello!"


def test_scripted(fake_cursor):
    fake_cursor.reply_with(["one"])
    assert ask(fake_cursor, "x") == "one"


def test_unused_reply(fake_cursor):
    fake_cursor.reply_with(["one", "two"])
    ask(fake_cursor, "x")


def test_swallowed_failure(fake_cursor):
    fake_cursor.reply_with([])
    try:
        ask(fake_cursor, "x")
    except Exception:
        pass


def test_failed_by_itself(fake_cursor):
    fake_cursor.reply_with(["one"])
    raise ValueError("by itself")


def test_skipped(fake_cursor):
    fake_cursor.reply_with(["one"])
    pytest.skip("before the reply is asked for: it must not be missed")


@pytest.mark.xfail(reason="fails before the reply is asked for")
def test_expected_to_fail(fake_cursor):
    fake_cursor.reply_with(["one"])
    raise ValueError("known")


@pytest.mark.xfail(reason="passes all the same, and is not judged by the reply that is left")
def test_expected_to_fail_that_passes(fake_cursor):
    fake_cursor.reply_with(["one"])


@pytest.fixture
def broken(fake_cursor):
    fake_cursor.reply_with(["one"])
    raise ValueError("before the test")


def test_not_begun(broken):
    pass
"""


@pytest.mark.clause("FAKE-14")
def test_the_fixture_checks_the_script_at_the_end(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_app=TESTS)
    # By its module, whether or not the installed package has the entry point yet.
    plugins = ["no:langchain_cursor", "langchain_cursor_fakes.pytest_plugin", "no:asyncio"]
    out = str(pytester.runpytest("-q", *(f"-p{name}" for name in plugins)).stdout)
    assert "1 failed, 4 passed, 1 skipped, 1 xfailed, 1 xpassed, 3 errors" in out
    assert "Not asked for, of the script's replies: 'two'" in out
    assert "ERROR test_app.py::test_swallowed_failure" in out
    assert "FAILED test_app.py::test_failed_by_itself - ValueError: by itself" in out
    # The three are two whose script was not followed, and the one that could not begin.
    for alone in ("test_failed_by_itself", "test_skipped", "test_expected_to_fail"):
        assert f"ERROR test_app.py::{alone}" not in out
    assert out.count("ERROR test_app.py::test_not_begun - ValueError: before the test") == 1


@pytest.mark.clause("FAKE-14")
def test_the_entry_point_names_the_plugin() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = text.partition("[project.entry-points.pytest11]\n")[2].partition("\n\n")[0]
    assert table == 'langchain_cursor = "langchain_cursor_fakes.pytest_plugin"'


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}\nimport sys; print(*sys.modules)"],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'fakes'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.clause("FAKE-14")
def test_loading_the_plugin_loads_nothing_else() -> None:
    loaded = loaded_by("import pytest\nimport langchain_cursor_fakes.pytest_plugin")
    assert {name for name in loaded if name.startswith("langchain_cursor")} == {
        "langchain_cursor_fakes",
        "langchain_cursor_fakes.pytest_plugin",
    }
    assert not {"cursor_sdk", "langchain_core", "asyncio.tasks", "httpx"} & loaded


@pytest.mark.clause("FAKE-14")
@pytest.mark.since("httpx", "0.28", because="httpx imports h11 late")
def test_importing_the_fake_brings_neither_sdk_nor_langchain_nor_the_server() -> None:
    loaded = loaded_by("from langchain_cursor_fakes import FakeCursor, tool_call")
    assert not {"cursor_sdk", "langchain_core", "jsonschema", "h11"} & loaded
    assert "langchain_cursor_fakes.cloud" not in loaded
