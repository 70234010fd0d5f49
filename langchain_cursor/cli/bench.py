"""How long calls take on the user's own account."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_cursor.chat_models import ChatCursor

PAUSE = 1.0
"""Seconds between calls that keep nothing, in which the executor is given up."""

_QUESTION = "say: done"


@dataclass(frozen=True)
class Row:
    """What one way of asking took.

    Args:
        name: What was done.
        seconds: How long, each time.
    """

    name: str
    seconds: tuple[float, ...]


def runs_of(calls: int) -> int:
    """How many runs `measure` makes."""
    return 2 * (1 + calls) + 1


def measure(arguments: Mapping[str, Any], calls: int, pause: float | None = None) -> Iterator[Row]:
    """Measure call after call, each scenario on a bridge of its own.

    Args:
        arguments: Of `ChatCursor`. Failures are not tried again: each run is counted.
        calls: How many later calls to measure, for each way of keeping the executor.
        pause: Seconds between calls that keep nothing; `PAUSE` by default.

    Raises:
        CursorError: A call failed.

    Example:
        >>> from langchain_cursor_fakes import FakeCursor
        >>> fake = FakeCursor()
        >>> [len(row.seconds) for row in measure({"sdk_loader": fake.sdk}, calls=3, pause=0)]
        [2, 3, 3, 1, 1]
        >>> len(fake.runs) == runs_of(3)
        True
    """
    settings = {"max_retries": 0, **arguments}
    pause = PAUSE if pause is None else pause
    with ChatCursor(**settings) as llm:
        first = [_seconds(llm)]
        kept = tuple(_seconds(llm) for _ in range(calls))
    with ChatCursor(**settings, keep_alive=0) as llm:
        first.append(_seconds(llm))
        rebuilt = tuple(_seconds(llm, pause) for _ in range(calls))
    yield Row("first call, bridge start included", tuple(first))
    yield Row("later calls, executor kept", kept)
    yield Row("later calls, keep_alive=0", rebuilt)
    with ChatCursor(**settings) as llm:
        yield Row("prewarm(), without a run", (_timed(llm.prewarm),))
        yield Row("first call after prewarm()", (_seconds(llm),))


def _seconds(llm: ChatCursor, pause: float = 0.0) -> float:
    time.sleep(pause)
    return _timed(lambda: llm.invoke(_QUESTION))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
