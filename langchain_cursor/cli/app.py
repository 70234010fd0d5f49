"""The commands. What is heavy is imported by those that need it."""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langchain_cursor.cli.account import account
from langchain_cursor.cli.terminal import (
    Problem,
    accept_any_text,
    as_json,
    console,
    fits,
    note,
    progress,
    shown,
    told,
)

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

    from langchain_cursor.catalog import ModelInfo
    from langchain_cursor.chat_models import ChatCursor
    from langchain_cursor.cli.bench import Row
    from langchain_cursor.cli.doctor import Finding, Mark

app = typer.Typer(
    help="Ask Cursor from the command line, and see what works here.",
    no_args_is_help=True,
    add_completion=False,
    # Plain help: it is quick, and goes through pipes.
    rich_markup_mode=None,
    # A traceback with local variables would show keys and prompts.
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)

Offline = Annotated[
    bool,
    typer.Option("--offline", help="Answer from a stand-in on this machine; needs no key."),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Model id or alias; the command `models` lists them."),
]
# Not 0, which is no time at all.
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, help="How long to wait for each call.")
]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"langchain-cursor {version('langchain-cursor')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    accept_any_text()


@app.command()
def ask(
    prompt: Annotated[
        str | None,
        typer.Argument(show_default=False, help="What to ask; `-`, or none, reads a pipe."),
    ] = None,
    model: Model = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message to go first.")
    ] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="A picture to ask about; may be repeated."),
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A JSON Schema; the answer is JSON that fits it."),
    ] = None,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Show on stderr what the model thinks.")
    ] = False,
    timeout: Timeout = 600.0,
    offline: Offline = False,
) -> None:
    """Ask a question; the answer is streamed."""
    if thinking and json_schema is not None:
        raise typer.BadParameter("--thinking and --json-schema exclude each other.")
    with told():
        text = _prompt(prompt)
        schema = None if json_schema is None else _schema(json_schema)
        blocks = [_image_block(path) for path in image or ()]
        with account(offline) as arguments, progress("Starting Cursor ...") as begun:
            from langchain_core.messages import HumanMessage, SystemMessage

            content: Any = [{"type": "text", "text": text}, *blocks] if blocks else text
            messages: list[BaseMessage] = [HumanMessage(content)]
            if system:
                messages.insert(0, SystemMessage(system))
            with _chat(arguments, model, timeout=timeout) as llm:
                if schema is None:
                    _stream(llm, messages, begun, thinking=thinking)
                else:
                    chain = llm.with_structured_output(schema, method="json_schema")
                    answer = chain.invoke(messages)
                    begun()
                    print(shown(as_json(answer, sys.stdout), sys.stdout), flush=True)


@app.command()
def models(
    as_data: Annotated[bool, typer.Option("--json", help="Print all that is known.")] = False,
    offline: Offline = False,
) -> None:
    """List the models that the account may use."""
    with told(), account(offline) as arguments:
        with progress("Asking Cursor ..."):
            from langchain_cursor.models import list_models

            listed = list_models(**arguments)
        if as_data:
            print(as_json([each.to_json() for each in listed], sys.stdout), flush=True)
        else:
            _table(
                ("id", "name", "aliases", "parameters"),
                [
                    (each.id, each.display_name, ", ".join(each.aliases), _parameters(each))
                    for each in listed
                ],
            )


@app.command()
def doctor(
    runs: Annotated[
        bool, typer.Option("--runs/--no-runs", help="Whether to make runs on the account.")
    ] = True,
    model: Model = None,
    timeout: Timeout = 60.0,
    offline: Offline = False,
) -> None:
    """See what works here, and what to do if not."""
    with told(), _quiet(), account(offline) as arguments:
        with progress("Loading ..."):
            from langchain_cursor.cli.doctor import RUNS, examine
        if runs:
            where = "on the stand-in" if offline else "on your account; --no-runs leaves them out"
            note(f"This makes {RUNS} short runs {where}.")
        usable = True
        with _chat(arguments, model, timeout=timeout, max_retries=0) as llm:
            findings = examine(llm, runs=runs)
            while True:
                with progress("Looking ..."):
                    finding = next(findings, None)
                if finding is None:
                    break
                usable = usable and finding.mark != "bad"
                _tell(finding)
        print("ChatCursor can be used." if usable else "ChatCursor cannot be used yet.", flush=True)
        raise typer.Exit(0 if usable else 1)


@app.command()
def bench(
    calls: Annotated[
        int, typer.Option(min=1, max=50, show_default=True, help="Later calls of each kind.")
    ] = 3,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before making runs.")] = False,
    model: Model = None,
    timeout: Timeout = 600.0,
    offline: Offline = False,
) -> None:
    """Measure how long calls take on your account."""
    with told(), _quiet(), account(offline) as arguments:
        with progress("Loading ..."):
            from langchain_cursor.cli.bench import measure, runs_of
            from langchain_cursor.credentials import resolve_api_key

        if not offline:
            resolve_api_key(None)  # rather now than after the question
            _agree(runs_of(calls), yes)
        chosen = {"model": model} if model else {}
        with progress(f"Measuring: {runs_of(calls)} runs ..."):
            measured = list(measure({**arguments, **chosen, "timeout": timeout}, calls))
        _table(("seconds until it returns", "times", "median", "min", "max"), map(_row, measured))


def _chat(arguments: Mapping[str, Any], model: str | None, **settings: Any) -> ChatCursor:
    from langchain_cursor.chat_models import ChatCursor

    chosen: dict[str, Any] = {"model": model} if model else {}
    return ChatCursor(**arguments, **chosen, **settings)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out the package's warnings: the command's own lines say the same."""
    logger, handler = logging.getLogger("langchain_cursor"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


# --- ask ---


def _prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise typer.BadParameter("Give a prompt, or pipe one in.", param_hint="PROMPT")
    text = given
    if text is None or text == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Problem("The prompt on the standard input is not UTF-8.") from None
    if not text.strip():
        raise Problem("The prompt is empty.")
    return text


def _schema(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(_bytes(path))
    except ValueError as error:
        raise Problem(f"{path} is not JSON: {error}.") from None
    if not isinstance(schema, dict):
        raise Problem(f"{path} is no JSON Schema: it must hold an object.")
    return schema


def _image_block(path: Path) -> dict[str, Any]:
    data = _bytes(path)
    # Read off the bytes, as the SDK does; names can be wrong.
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        kind = "png"
    elif data.startswith(b"\xff\xd8\xff"):
        kind = "jpeg"
    elif data.startswith((b"GIF87a", b"GIF89a")):
        kind = "gif"
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        kind = "webp"
    else:
        raise Problem(f"{path} is no PNG, JPEG, GIF or WebP picture.")
    encoded = base64.b64encode(data).decode("ascii")
    return {"type": "image", "base64": encoded, "mime_type": f"image/{kind}"}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}.") from None


def _stream(llm: ChatCursor, messages: list[BaseMessage], begun: Any, *, thinking: bool) -> None:
    from rich.text import Text

    thought, last = "", ""
    try:
        for chunk in llm.stream(messages):
            if thinking and (more := chunk.additional_kwargs.get("reasoning_content")):
                begun()
                thought = more
                # Not made before: while the progress shows, `sys.stderr` is rich's.
                aside = console(sys.stderr)
                aside.print(Text(shown(more, sys.stderr), "dim"), end="", soft_wrap=True)
            if chunk.text:
                begun()
                if thought:
                    note("")
                    thought = ""
                last = chunk.text
                sys.stdout.write(shown(last, sys.stdout))
                sys.stdout.flush()
    finally:
        begun()
        # Whatever comes next, an error's line included, begins on a line of its own.
        if last and not last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


# --- models ---


def _parameters(model: ModelInfo) -> str:
    return " ".join(f"{each.id}={'|'.join(each.values)}" for each in model.parameters)


# --- doctor ---

_MARKS: dict[Mark, tuple[str, str, str]] = {
    "good": ("✓", "+", "green"),
    "poor": ("!", "!", "yellow"),
    "bad": ("✗", "x", "red"),
    "skipped": ("-", "-", "dim"),
}


def _tell(finding: Finding) -> None:
    from rich.text import Text

    pretty, plain, style = _MARKS[finding.mark]
    mark = pretty if fits(pretty, sys.stdout) else plain
    line = Text.assemble((mark, style), f" {finding.subject}: {shown(finding.text, sys.stdout)}")
    if finding.advice:
        line.append(f". {finding.advice}" if finding.text[-1] != "." else f" {finding.advice}")
    console(sys.stdout).print(line, soft_wrap=True)
    sys.stdout.flush()


# --- bench ---


def _agree(runs: int, yes: bool) -> None:
    spent = f"This makes {runs} short runs on your account."
    if yes:
        note(spent)
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Problem(f"{spent} Nobody can be asked here: agree to it with --yes.")
    print(f"{spent} Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("Nothing was run.")
        raise typer.Exit(1)


def _row(row: Row) -> tuple[str, ...]:
    from statistics import median

    figures = (median(row.seconds), min(row.seconds), max(row.seconds))
    return (row.name, str(len(row.seconds)), *(f"{figure:.2f}" for figure in figures))


def _table(head: tuple[str, ...], rows: Any) -> None:
    from rich.table import Table

    table = Table(*head, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(shown(cell, sys.stdout) for cell in row))
    console(sys.stdout).print(table)
    sys.stdout.flush()
