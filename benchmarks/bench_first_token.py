"""How soon the first token of a stream is there, where the model needs 0.1 s for it.

From the call to the first chunk with text, against from `create_agent` to the run's first assistant
event.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from benchmarks.measure import Ratio, compare_seconds
from benchmarks.streams import Streaming, ways
from langchain_cursor_fakes import Delays

_FIRST_TOKEN = Delays(first_token=0.1)
_PAIRS = 40
_PAUSE = 0.05


def run() -> list[Ratio]:
    """Compare `stream` with the sync client, and `astream` with the async one."""
    return list(_compared())


def _compared() -> Iterator[Ratio]:
    with ways(_FIRST_TOKEN) as all_ways:
        for way in all_ways:
            yield compare_seconds(
                f"{way.name}: first token, against the bare SDK",
                partial(_first, way.ours),
                partial(_first, way.bare),
                limit=1.05,
                pairs=_PAIRS,
                pause=_PAUSE,
            )


def _first(way: Streaming) -> float:
    return way(3, time.perf_counter).first
