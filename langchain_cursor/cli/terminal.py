"""What the commands print, and how: streams, terminals, progress, and how a command ends."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console

# What a terminal would obey, in the place of showing it.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# A table that no terminal limits: its lines are for other programs.
_ENDLESS = 10_000


class Problem(Exception):
    """Why a command cannot do what was asked, in a sentence for the user."""


@contextmanager
def told() -> Iterator[None]:
    """Turn whatever ends a command into a line on stderr and an exit code.

    Raises:
        typer.Exit: With 1 after a failure, and with 130 after Ctrl-C.
    """
    try:
        yield
    except (typer.Exit, typer.BadParameter):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:
        if _reader_has_gone(error):
            _drop_output()
        else:
            note(f"langchain-cursor: {_sentence(error)}")
        raise typer.Exit(1) from None


def note(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr, flush=True)


def console(stream: TextIO) -> Console:
    """A console that writes plain text wherever the stream is no terminal."""
    from rich.console import Console

    terminal = stream.isatty()
    return Console(
        file=stream,
        # Else FORCE_COLOR and the like would put control codes into pipes.
        force_terminal=terminal,
        width=None if terminal else _ENDLESS,
        markup=False,
        emoji=False,
        highlight=False,
    )


@contextmanager
def progress(text: str) -> Iterator[Callable[[], None]]:
    """Show on a terminal's stderr that something goes on.

    Yields:
        A function that ends it. It must be called before anything is printed.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    # A spinner of ASCII: every terminal can show it.
    with console(sys.stderr).status(text, spinner="line") as status:
        yield status.stop


def shown(text: str, stream: TextIO) -> str:
    """The text as it may go to the stream: it cannot control a terminal."""
    return _CONTROL.sub("�", text) if stream.isatty() else text


def fits(text: str, stream: TextIO) -> bool:
    """Whether the stream has all these characters."""
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def as_json(value: Any, stream: TextIO) -> str:
    """Write JSON in characters that the stream has."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if fits(text, stream) else json.dumps(value, indent=2)


def accept_any_text() -> None:
    """Let no character that an old code page lacks fail the output."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # else it is of somebody else's making
            with suppress(OSError):
                stream.reconfigure(errors="replace")


def _sentence(error: Exception) -> str:
    text = str(error)
    if isinstance(error, Problem):
        return text
    from langchain_cursor.errors import CursorError, redact

    if not isinstance(error, CursorError):
        text = f"{type(error).__name__}: {text}"
    return redact(" ".join(text.split()))


def _reader_has_gone(error: Exception) -> bool:
    if isinstance(error, BrokenPipeError):
        return True
    return sys.platform == "win32" and isinstance(error, OSError) and error.errno == errno.EINVAL


def _drop_output() -> None:
    # What is still buffered would fail once more when the interpreter flushes it.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):  # a stream without a file has nothing to flush
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
