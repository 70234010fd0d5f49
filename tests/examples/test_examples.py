"""The examples run, and what the README names is there."""

from __future__ import annotations

import base64
import importlib
import inspect
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.main import get_command

from langchain_cursor import ChatCursor
from langchain_cursor.cli.app import app
from langchain_cursor_fakes import CursorCloud, FakeCursor
from langchain_cursor_fakes.brain import answer
from langchain_cursor_fakes.runs import Error, ReceivedRun, Step
from tests.conftest import API_KEY, ROOT

EXAMPLES = ROOT / "examples"

Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports an example as Python does that runs it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.fixture
def _key(cloud: CursorCloud, chat: Callable[..., ChatCursor]) -> Iterator[None]:
    """An environment with a key, for which the stand-in answers; one bridge for all examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CURSOR_API_KEY", API_KEY)
        patch.setenv("CURSOR_BACKEND_URL", cloud.url)
        keeper = chat()
        keeper.prewarm()
        yield
        del keeper  # the bridge stays a while, for the next example


@pytest.mark.bridge
@pytest.mark.usefixtures("_key")
@pytest.mark.clause("EXAMPLES-1")
def test_the_agent_calls_its_tools_and_remembers(
    load: Load, cloud: CursorCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    load("langgraph_agent").main()
    out = capsys.readouterr().out
    assert "tools: It is sunny in Bern, 21 degrees." in out
    assert "ask:   get_time({'city': 'Oslo'})" in out
    assert len(cloud.runs) == 4
    assert "sunny in Bern" in cloud.runs[-1].received.text


@pytest.mark.bridge
@pytest.mark.usefixtures("_key")
@pytest.mark.clause("EXAMPLES-2")
def test_the_chat_remembers_and_goes_on_after_an_error(
    load: Load,
    cloud: CursorCloud,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("count to 3\nfail: permission_denied no\nHi\n"))
    load("terminal_chat").main()
    out = capsys.readouterr().out
    assert re.fullmatch(r"> 1 2 3\n> \nCursor ended the run: no .*\n> Hello from .*\n> ", out)
    last = cloud.runs[-1].received.text
    assert "count to 3" in last
    assert "permission_denied" not in last


@pytest.mark.clause("EXAMPLES-2")
@pytest.mark.fake
def test_an_answer_can_be_stopped_in_the_chat(
    load: Load, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, example = FakeCursor(["never read", "Hello"]), load("terminal_chat")
    lines = iter(["Stop!", "Go on.", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    reply = example.reply

    def interrupted(llm: ChatCursor, history: list[Any]) -> Any:
        message = reply(llm, history)
        if history[-1].content == "Stop!":
            raise KeyboardInterrupt
        return message

    monkeypatch.setattr(example, "reply", interrupted)
    with ChatCursor(sdk_loader=fake.sdk) as llm:
        example.chat(llm)
    assert "(stopped)" in capsys.readouterr().out
    assert "Stop!" not in fake.runs[-1].received.text


@pytest.mark.bridge
@pytest.mark.usefixtures("_key")
@pytest.mark.clause("EXAMPLES-3")
def test_the_document_that_fits_is_given_to_the_model(
    load: Load, cloud: CursorCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    load("rag").main()
    out = capsys.readouterr().out
    assert re.findall(r"Found:    (\w+)", out) == ["bridges", "ferries"]
    texts = {run.received.text + (run.received.system_prompt or "") for run in cloud.runs}
    assert len(texts) == 2
    for text in texts:
        assert ("1461" in text) is ("When was the bridge built?" in text)
        assert "ford is a shallow" not in text


@pytest.mark.bridge
@pytest.mark.usefixtures("_key")
@pytest.mark.clause("EXAMPLES-4")
def test_each_image_of_a_folder_is_described(
    load: Load, cloud: CursorCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("extract_images")
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": title=")[0] for line in lines] == [
        f"{name}.png" for name in example.FLAGS
    ]
    sent = {base64.b64encode(image.data) for run in cloud.runs for image in run.received.images}
    assert sent == {base64.b64encode(example.flag(colours)) for colours in example.FLAGS.values()}


@pytest.mark.clause("EXAMPLES-4")
@pytest.mark.fake
def test_an_image_that_fails_does_not_stop_the_others(load: Load) -> None:
    example, fake = load("extract_images"), FakeCursor()
    refused = example.flag(example.FLAGS["italy"])

    def reply(run: ReceivedRun) -> list[Step]:
        if any(image.data == refused for image in run.images):
            return [Error("invalid_argument", "not this one")]
        return answer(run)

    fake.reply_with(reply)
    with example.flags() as folder, ChatCursor(sdk_loader=fake.sdk) as llm:
        found = example.extract(llm, folder)
    assert isinstance(found["france.png"], example.Picture)
    assert "not this one" in str(found["italy.png"])


TESTS = {"test_the_stock_is_looked_up", "test_a_busy_hour_is_told_politely"}


@pytest.mark.fake
@pytest.mark.clause("EXAMPLES-5")
@pytest.mark.parametrize("name", sorted(TESTS))
def test_the_tests_of_the_application_pass(name: str, load: Load, fake_cursor: FakeCursor) -> None:
    getattr(load("test_application"), name)(fake_cursor)


@pytest.mark.clause("EXAMPLES-5")
def test_there_are_no_other_tests_of_the_application(load: Load) -> None:
    functions = dict(inspect.getmembers(load("test_application"), inspect.isfunction))
    assert {name for name in functions if name.startswith("test_")} == TESTS


PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "spec/examples.md", "spec/security.md"]


@pytest.mark.clause("EXAMPLES-6")
def test_every_command_that_is_named_exists() -> None:
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    named = set(re.findall(r"(?:\$ |`)make ([\w-]+)", text))
    assert named >= {"demo", "test", "lint", "bench"}
    assert named <= set(targets)
    group: Any = get_command(app)
    commands = set(group.commands)
    named = set(re.findall(r"(?:[$|] |`)langchain-cursor (\w+)", text))
    assert named >= {"ask", "models", "doctor", "bench"}
    assert named <= commands
    for path in re.findall(r"(?:python|pytest|bash) ((?:examples|tests|\.ci)[\w./-]*)", text):
        assert (ROOT / path).exists(), path


@pytest.mark.clause("EXAMPLES-6")
@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
        assert (ROOT / page).parent.joinpath(link).exists(), link
    headings = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


@pytest.mark.clause("EXAMPLES-6")
def test_every_example_is_named() -> None:
    pages = [ROOT / "spec" / name for name in ("examples.md", "scale.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for path in EXAMPLES.glob("*.py"):
        assert path.name in text or path.name in ("account.py", "demo.py")
