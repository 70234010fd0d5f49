"""The command line in process, on FakeCursor: what each command prints, and its exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from langchain_cursor import CursorStartupError, cli
from langchain_cursor.catalog import ModelInfo, ModelParameter
from langchain_cursor.cli import app as commands
from langchain_cursor.cli import bench, terminal
from langchain_cursor.cli.doctor import RUNS
from langchain_cursor_fakes import (
    Error,
    FakeCursor,
    Hang,
    Phases,
    Text,
    Thinking,
    ThinkingDone,
)
from tests.conftest import API_KEY

pytestmark = pytest.mark.fake
clause = pytest.mark.clause

PNG = b"\x89PNG\r\n\x1a\n" + b"the rest is not looked at"

Run = Callable[..., Result]


@pytest.fixture
def fake() -> FakeCursor:
    return FakeCursor()


@pytest.fixture
def run(fake: FakeCursor, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command that gets its answers from the fake."""
    monkeypatch.setattr(bench, "PAUSE", 0.0)

    @contextmanager
    def on_the_fake(offline: bool) -> Iterator[dict[str, Any]]:
        yield {"sdk_loader": fake.sdk}

    monkeypatch.setattr(commands, "account", on_the_fake)

    def run(*arguments: str, given: str | bytes = "") -> Result:
        return CliRunner().invoke(commands.app, arguments, input=given)

    return run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- the command itself ---


@clause("CLI-1")
@pytest.mark.parametrize("missing", [("typer", "rich"), ("rich",)])
def test_without_the_extra_it_says_what_to_install(
    missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name in missing else object())
    assert cli.main() == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"needs {' and '.join(missing)}." in err
    assert 'pip install "langchain-cursor[cli]"' in err


@clause("CLI-2")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(option: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "langchain_cursor", option],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "langchain-cursor" in ran.stdout
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "typer" in loaded
    heavy = {"langchain_core", "cursor_sdk", "langchain_cursor_fakes", "httpx", "rich", "anyio"}
    assert loaded & heavy == set()


@clause("CLI-2")
def test_every_command_has_a_help_that_says_what_it_does(run: Run) -> None:
    for command in ("ask", "models", "doctor", "bench"):
        result = run(command, "--help")
        assert result.exit_code == 0
        assert "--offline" in result.stdout
    assert all(name in run("--help").stdout for name in ("ask", "models", "doctor", "bench"))


@clause("CLI-3")
def test_a_wrong_call_exits_with_2_and_runs_nothing(run: Run, fake: FakeCursor) -> None:
    for wrong in (
        ("ask", "Hi", "--no-such-option"),
        ("ask", "Hi", "--timeout", "0"),
        ("ask", "Hi", "--thinking", "--json-schema", "x.json"),
        ("bench", "--calls", "0"),
        ("no-such-command",),
    ):
        result = run(*wrong)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "Error" in result.stderr
    assert fake.runs == []


@clause("CLI-3")
def test_an_interrupt_before_a_command_has_begun_exits_with_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(**arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "app", interrupted)
    assert cli.main() == 130


@clause("CLI-4")
def test_a_failed_run_is_one_line(run: Run, fake: FakeCursor) -> None:
    fake.reply_with([Error("permission_denied", "Not\nallowed: crsr_0123456789abcdef")])
    result = run("ask", "Hi")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("langchain-cursor: ")
    assert "Not allowed: crsr_***" in result.stderr
    assert result.stderr.count("\n") == 1


@clause("CLI-4")
def test_an_error_after_a_part_of_the_answer_begins_on_a_line_of_its_own(
    run: Run, fake: FakeCursor
) -> None:
    fake.reply_with([[Text("Half an"), Error("permission_denied", "stop")]])
    result = run("ask", "Hi")
    assert (result.exit_code, result.stdout) == (1, "Half an\n")
    assert "stop" in result.stderr


@clause("CLI-4")
def test_what_nobody_has_foreseen_is_one_line_without_secrets(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("no way:\nBearer abcdef0123456789abcdef0123456789")

    monkeypatch.setattr(commands, "_chat", broken)
    result = run("ask", "Hi")
    assert result.exit_code == 1
    assert result.stderr == "langchain-cursor: RuntimeError: no way: Bearer ***\n"


@clause("CLI-4")
@clause("SECURITY-8")
@clause("CLI-16")
def test_tracebacks_with_local_variables_are_off() -> None:
    assert commands.app.pretty_exceptions_enable is False
    assert commands.app.pretty_exceptions_show_locals is False


# --- terminals and pipes ---


@clause("CLI-5")
def test_nothing_but_a_terminal_gets_control_codes(
    run: Run, monkeypatch: pytest.MonkeyPatch, fake: FakeCursor
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    fake.reply_with(lambda run: [Thinking("Hm."), ThinkingDone(1), Text("Hi")])
    for arguments in (
        ("--help",),
        ("ask", "Hi", "--thinking"),
        ("ask", "--no-such-option"),
        ("models",),
        ("doctor",),
        ("bench", "--offline", "--calls", "1"),
    ):
        assert "\x1b" not in run(*arguments).output


@clause("CLI-5")
def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    green = "\x1b[32m"
    for no_color, coloured in ((None, True), ("1", False)):
        if no_color:
            monkeypatch.setenv("NO_COLOR", no_color)
        stream = Terminal()
        terminal.console(stream).print("good", style="green")
        assert (green in stream.getvalue()) is coloured


@clause("CLI-5")
def test_what_the_model_writes_cannot_control_a_terminal() -> None:
    text = "a\x1b[2J\r\x07b\n\tc\x9b"
    assert terminal.shown(text, Terminal()) == "a�[2J��b\n\tc�"
    assert terminal.shown(text, io.StringIO()) == text


@clause("CLI-5")
def test_a_table_for_a_program_is_not_broken_into_lines(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "a-very-long-name-" * 20
    monkeypatch.setattr(
        "langchain_cursor.models.list_models", lambda **_: (ModelInfo(long, "[red]N[/red] :x:"),)
    )
    _, row = run("models").stdout.splitlines()
    assert row.split() == [long, "[red]N[/red]", ":x:"]


@clause("CLI-12")
def test_progress_is_shown_on_a_terminal_alone_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream, seen in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal.progress("Starting ...") as begun:
            begun()
            after = stream.getvalue()
            begun()
        assert stream.getvalue() == after
        assert ("Starting ..." in after) is seen
        assert ("\x1b[2K" in after.rpartition("Starting ...")[2]) is seen  # the line is erased


@clause("CLI-6")
def test_a_reader_that_has_gone_is_no_error_message(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*arguments: Any, **named: Any) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(commands, "_stream", gone)
    result = run("ask", "Hi")
    assert (result.exit_code, result.output) == (1, "")


@clause("CLI-6")
def test_an_interrupt_is_no_error_message(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_stream", interrupted)
    result = run("ask", "Hi")
    assert (result.exit_code, result.output) == (130, "")


@clause("CLI-7")
def test_offline_refuses_a_bridge_that_talks_to_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_URL", "http://127.0.0.1:1")
    for command in (("ask", "Hi"), ("models",), ("doctor",), ("bench",)):
        result = CliRunner().invoke(commands.app, [*command, "--offline"])
        assert (result.exit_code, result.stdout) == (1, "")
        assert "Unset it for --offline" in result.stderr


# --- ask ---


@clause("CLI-8")
def test_the_prompt_is_the_argument_or_what_comes_through_the_pipe(
    run: Run, fake: FakeCursor
) -> None:
    fake.reply_with(lambda run: "line\n")
    for arguments, given, asked in (
        (("Zürich?",), "unread", "Zürich?"),
        (("-",), "piped\n", "piped\n"),
        ((), "\ufeffZürich\n", "Zürich\n"),
    ):
        result = run("ask", *arguments, given=given.encode())
        assert (result.stdout, result.exit_code) == ("line\n", 0)
        assert fake.runs[-1].question.strip() == asked.strip()


@clause("CLI-8")
def test_a_prompt_that_is_none_is_refused(
    run: Run, fake: FakeCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "The prompt is empty." in run("ask", given=" \n").stderr
    assert "The prompt is empty." in run("ask", "").stderr
    assert "not UTF-8" in run("ask", given="Zürich".encode("latin-1")).stderr
    monkeypatch.setattr("sys.stdin", Terminal())
    with pytest.raises(commands.typer.BadParameter, match="pipe one in"):
        commands._prompt(None)
    assert fake.runs == []


@clause("CLI-9")
def test_model_system_and_images_go_along(run: Run, fake: FakeCursor, tmp_path: Path) -> None:
    pictures = {
        "png": PNG,
        "jpeg": b"\xff\xd8\xff\xe0 rest",
        "gif": b"GIF89a rest",
        "webp": b"RIFF\0\0\0\0WEBP rest",
    }
    options = []
    for number, data in enumerate(pictures.values()):
        path = tmp_path / f"misnamed-{number}.txt"
        path.write_bytes(data)
        options += ["--image", str(path)]
    result = run("ask", "What?", "--model", "auto", "--system", "Be brief.", *options)
    assert result.exit_code == 0
    (asked,) = fake.runs
    assert (asked.model, asked.system, asked.question[:5]) == ("auto", "Be brief.", "What?")
    assert [image.data for image in asked.images] == list(pictures.values())


@clause("CLI-9")
def test_what_is_no_picture_is_refused(run: Run, fake: FakeCursor, tmp_path: Path) -> None:
    text = tmp_path / "text.png"
    text.write_text("text")
    assert "no PNG, JPEG, GIF or WebP" in run("ask", "Hi", "--image", str(text)).stderr
    assert "No such file" in run("ask", "Hi", "--image", str(tmp_path / "none")).stderr
    assert fake.runs == []


@clause("CLI-9")
def test_the_time_limit_holds(run: Run, fake: FakeCursor) -> None:
    fake.reply_with([Hang()])
    result = run("ask", "Hi", "--timeout", "0.2")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "No answer within 0.2 s" in result.stderr


@clause("CLI-10")
def test_data_by_a_schema_is_printed_as_json(run: Run, fake: FakeCursor, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    path = tmp_path / "city.json"
    path.write_text(json.dumps(schema))
    fake.reply_with(['{"title": "wrong"}', 'Here it is: {"name": "Zürich"}'])
    result = run("ask", "Which city?", "--json-schema", str(path))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == '{\n  "name": "Zürich"\n}\n'
    fake.assert_done()


@clause("CLI-10")
def test_a_schema_that_is_none_is_refused(run: Run, fake: FakeCursor, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    for content, complaint in (("{", "is not JSON"), ("[]", "is no JSON Schema")):
        path.write_text(content)
        result = run("ask", "Hi", "--json-schema", str(path))
        assert result.exit_code == 1
        assert complaint in result.stderr
    assert fake.runs == []


@clause("CLI-10")
def test_json_is_in_characters_that_the_stream_has() -> None:
    old = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    assert terminal.as_json(["é✓"], old) == '[\n  "\\u00e9\\u2713"\n]'
    assert terminal.as_json(["é"], old) == '[\n  "é"\n]'


@clause("CLI-11")
def test_thinking_is_shown_on_demand_and_on_stderr(run: Run, fake: FakeCursor) -> None:
    fake.reply_with(lambda run: [Thinking("Hm, "), Thinking("[1]"), ThinkingDone(1), Text("Yes.")])
    quiet, loud = run("ask", "Hi"), run("ask", "Hi", "--thinking")
    assert (quiet.stdout, quiet.stderr) == ("Yes.\n", "")
    assert (loud.stdout, loud.stderr) == ("Yes.\n", "Hm, [1]\n")


# --- models ---


@clause("CLI-13")
def test_models_are_listed_with_aliases_and_parameters(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ModelInfo(
        "composer-2.5",
        "Composer",
        aliases=("composer", "latest"),
        parameters=(ModelParameter("effort", "Effort", ("low", "high")), ModelParameter("fast")),
    )
    monkeypatch.setattr("langchain_cursor.models.list_models", lambda **_: (known,))
    head, row = run("models").stdout.splitlines()
    assert head.split() == ["id", "name", "aliases", "parameters"]
    assert row.split() == [
        *("composer-2.5", "Composer", "composer,", "latest", "effort=low|high", "fast=")
    ]
    assert json.loads(run("models", "--json").stdout) == [known.to_json()]


@clause("CLI-13")
def test_models_that_cannot_be_listed_are_an_error(run: Run, fake: FakeCursor) -> None:
    fake.refuse_all_keys = True
    result = run("models")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Invalid API key" in result.stderr


# --- doctor ---


def marks(result: Result) -> dict[str, str]:
    """The mark of each subject."""
    lines = [line for line in result.stdout.splitlines() if ": " in line]
    return {line[2:].partition(":")[0]: line[0] for line in lines}


def line_of(result: Result, subject: str) -> str:
    (line,) = (line for line in result.stdout.splitlines() if line[2:].startswith(f"{subject}: "))
    return line


ALL = [
    *("Python", "SDK", "Key", "Bridge", "Extension", "Cursor", "Account"),
    *("Call", "Sandbox", "System prompt", "Warm executor"),
]


@clause("CLI-14")
@clause("CLI-15")
@clause("CLI-17")
def test_all_is_well(run: Run, fake: FakeCursor) -> None:
    result = run("doctor")
    assert result.exit_code == 0
    assert marks(result) == dict.fromkeys(ALL, "✓")
    assert f"makes {RUNS} short runs on your account" in result.stderr
    assert "--no-runs" in result.stderr
    assert len(fake.runs) == RUNS
    assert fake.executor_builds == 1
    assert "tools" in line_of(result, "SDK")


@clause("CLI-17")
def test_without_runs_nothing_is_run(run: Run, fake: FakeCursor) -> None:
    result = run("doctor", "--no-runs")
    assert (result.exit_code, result.stderr) == (0, "")
    assert marks(result) == dict.fromkeys(ALL[:7], "✓") | dict.fromkeys(ALL[7:], "-")
    assert fake.runs == []


@clause("CLI-14")
@clause("CLI-15")
@pytest.mark.parametrize(
    ("ailing", "subject", "told"),
    [
        ({"sandbox": False}, "Sandbox", "agents run without it"),
        ({"system_prompt": "refused"}, "System prompt", "refused for this account"),
    ],
)
def test_what_is_worse_than_it_could_be(
    ailing: dict[str, Any], subject: str, told: str, run: Run, fake: FakeCursor
) -> None:
    vars(fake).update(ailing)
    result = run("doctor")
    assert result.exit_code == 0
    assert marks(result) == dict.fromkeys(ALL, "✓") | {subject: "!"}
    assert told in line_of(result, subject)
    assert "`ChatCursor(" in line_of(result, subject)  # what to do
    assert result.stderr.count("\n") == 1  # the package's own warning says it no second time


@clause("CLI-15")
def test_an_sdk_that_is_too_old(run: Run, fake: FakeCursor) -> None:
    fake.features = FakeCursor(version="1.0.24").features
    result = run("doctor")
    poor = ("SDK", "Extension", "System prompt", "Warm executor")
    assert result.exit_code == 0
    assert marks(result) == dict.fromkeys(ALL, "✓") | dict.fromkeys(poor, "!")
    assert "cannot deny an agent its tools" in line_of(result, "SDK")
    assert "pip install --upgrade" in line_of(result, "SDK")


@clause("CLI-15")
@pytest.mark.parametrize(
    ("version", "mark", "told"),
    [("1.1.0", "✓", "1.1.0 can"), ("1.0.30", "!", "1.0.30 cannot set an agent's system prompt")],
)
def test_the_version_decides_on_the_system_prompt(
    version: str, mark: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langchain_cursor.cli import doctor

    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    sdk = FakeCursor().sdk()
    finding = doctor._sdk(sdk, own=False)
    assert (finding.mark == "good") is (mark == "✓")
    assert told in finding.text


@clause("CLI-14")
@clause("CLI-15")
def test_a_refused_key(run: Run, fake: FakeCursor) -> None:
    fake.refuse_all_keys = True
    result = run("doctor")
    assert result.exit_code == 1
    assert marks(result) == (
        dict.fromkeys(ALL[:6], "✓") | {"Account": "✗"} | dict.fromkeys(ALL[7:], "-")
    )
    assert "Invalid API key" in line_of(result, "Account")
    assert result.stdout.endswith("ChatCursor cannot be used yet.\n")
    assert fake.runs == []


@clause("CLI-15")
def test_without_a_key_the_bridge_is_examined_all_the_same(
    run: Run, fake: FakeCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(fake.sdk), "default_api_key")
    result = run("doctor")
    assert result.exit_code == 1
    assert marks(result) == {
        **dict.fromkeys(("Python", "SDK", "Bridge", "Extension"), "✓"),
        **{"Key": "✗", "Everything else": "-"},
    }
    assert "set the environment variable CURSOR_API_KEY" in line_of(result, "Key")


@clause("CLI-15")
@clause("CLI-16")
@pytest.mark.parametrize("place", ["CURSOR_API_KEY", "~/.cursor/sdk/auth.json"])
def test_the_keys_place_is_told_and_the_key_is_not(
    place: str, run: Run, fake: FakeCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langchain_cursor import credentials

    monkeypatch.delattr(type(fake.sdk), "default_api_key")
    if place == "CURSOR_API_KEY":
        monkeypatch.setenv(place, API_KEY)
    else:
        monkeypatch.setattr(credentials, "_stored_login", lambda backend: (API_KEY, ""))
    result = run("doctor", "--no-runs")
    assert result.exit_code == 0
    assert place in line_of(result, "Key")
    assert API_KEY not in result.output


@clause("CLI-16")
def test_a_key_of_another_form_that_an_error_holds_is_not_shown(
    run: Run, fake: FakeCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(fake.sdk), "default_api_key")
    monkeypatch.setenv("CURSOR_API_KEY", "plain-0123456789")
    fake.reply_with([Error("permission_denied", "plain-0123456789 may not do this")])
    result = run("doctor")
    assert "*** may not do this" in line_of(result, "Call")
    assert "plain-0123456789" not in result.output


@clause("CLI-15")
def test_an_sdk_that_cannot_be_imported(
    run: Run, fake: FakeCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> ModuleType:
        raise ModuleNotFoundError("No module named 'cursor_sdk'")

    monkeypatch.setattr(fake, "sdk", missing)
    result = run("doctor", "--no-runs")
    assert (result.exit_code, result.stderr) == (1, "")
    assert marks(result) == {"Python": "✓", "SDK": "✗", "Everything else": "-"}
    assert "No module named 'cursor_sdk'" in line_of(result, "SDK")


@clause("CLI-15")
def test_a_bridge_that_does_not_start(
    run: Run, fake: FakeCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*arguments: Any) -> Any:
        raise CursorStartupError("The bridge ended at its start.\nError: no such thing")

    monkeypatch.setattr(type(fake.sdk), "_bridge", broken)
    result = run("doctor", "--no-runs")
    assert (result.exit_code, result.stderr) == (1, "")
    assert marks(result) == (
        dict.fromkeys(ALL[:3], "✓") | {"Bridge": "✗"} | dict.fromkeys(ALL[4:], "-")
    )
    assert "no such thing. Reinstall cursor-sdk." in line_of(result, "Bridge")
    monkeypatch.setenv("CURSOR_SDK_BRIDGE_BIN", "/no/such/bridge")
    assert "Check CURSOR_SDK_BRIDGE_BIN" in line_of(run("doctor", "--no-runs"), "Bridge")


@clause("CLI-15")
def test_a_call_that_fails(run: Run, fake: FakeCursor) -> None:
    fake.reply_with([Error("resource_exhausted", "plan used up")])
    result = run("doctor")
    assert result.exit_code == 1
    assert marks(result) == (
        dict.fromkeys(ALL[:7], "✓") | {"Call": "✗"} | dict.fromkeys(ALL[8:], "-")
    )
    assert "plan used up" in line_of(result, "Call")
    assert len(fake.runs) == 1  # nothing is tried again: runs are counted

    fake.reply_with(["done", Error("resource_exhausted", "plan used up")])
    result = run("doctor")
    assert result.exit_code == 1
    assert marks(result) == dict.fromkeys(ALL, "✓") | {"Warm executor": "✗"}


@clause("CLI-14")
def test_a_stream_without_the_characters_gets_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_cursor.cli.doctor import Finding

    for encoding, mark in (("cp1252", b"x"), ("utf-8", "✗".encode())):
        buffer = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding=encoding))
        commands._tell(Finding("bad", "Bridge", "ends", "Reinstall it."))
        assert buffer.getvalue() == mark + b" Bridge: ends. Reinstall it.\n"


@clause("CLI-18")
def test_no_step_takes_longer_than_the_limit(run: Run, fake: FakeCursor) -> None:
    fake.reply_with([Hang()])
    started = time.monotonic()
    result = run("doctor", "--timeout", "0.3")
    assert result.exit_code == 1
    assert "No answer within 0.3 s" in line_of(result, "Call")
    assert time.monotonic() - started < 5


@clause("CLI-18")
def test_a_bridge_that_takes_too_long_to_start_is_not_waited_for(
    run: Run, fake: FakeCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = FakeCursor(phases=Phases(start=30), real_time=True)
    monkeypatch.setattr(fake, "sdk", slow.sdk)
    started = time.monotonic()
    result = run("doctor", "--timeout", "0.2")
    assert result.exit_code == 1
    assert "No answer within 0.2 s" in line_of(result, "Bridge")
    assert time.monotonic() - started < 5


# --- bench ---


@clause("CLI-19")
def test_every_scenario_is_measured(
    run: Run, fake: FakeCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "PAUSE", 0.25)
    result = run("bench", "--offline", "--calls", "2")
    assert result.exit_code == 0
    head, *rows = result.stdout.splitlines()
    assert head.split()[-4:] == ["times", "median", "min", "max"]
    assert [row.split()[-4] for row in rows] == ["2", "2", "2", "1", "1"]
    assert all(float(figure) >= 0 for row in rows for figure in row.split()[-3:])
    assert len(fake.runs) == 7
    # The executor is built once where it is kept, for each call where it is not, and by prewarm.
    assert fake.executor_builds == 1 + 3 + 1
    assert fake.bridge_starts == 3


@clause("CLI-19")
def test_a_run_that_fails_is_not_tried_again(run: Run, fake: FakeCursor) -> None:
    fake.reply_with([Error("unavailable", "busy")])
    result = run("bench", "--offline", "--calls", "1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "busy" in result.stderr
    assert len(fake.runs) == 1


@clause("CLI-20")
def test_where_nobody_can_be_asked_nothing_is_spent(
    run: Run, fake: FakeCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURSOR_API_KEY", API_KEY)
    refused = run("bench", given="y\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "makes 9 short runs on your account" in refused.stderr
    assert "--yes" in refused.stderr
    assert fake.runs == []
    agreed = run("bench", "--yes", "--calls", "1")
    assert agreed.exit_code == 0
    assert "makes 5 short runs on your account" in agreed.stderr
    assert len(fake.runs) == 5


@clause("CLI-20")
def test_without_a_key_there_is_no_question(run: Run) -> None:
    result = run("bench", "--yes")
    assert result.exit_code == 1
    assert "No Cursor API key" in result.stderr
    assert "runs" not in result.stderr


@clause("CLI-20")
@pytest.mark.parametrize(
    ("answer", "agreed"),
    [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("", False)],
)
def test_it_asks_before_it_spends(
    answer: str, agreed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", asked)
    if agreed:
        commands._agree(9, yes=False)
    else:
        with pytest.raises(commands.typer.Exit) as left:
            commands._agree(9, yes=False)
        assert left.value.exit_code == 1
    assert asked.getvalue().startswith("This makes 9 short runs on your account. Go on? [y/N] ")
