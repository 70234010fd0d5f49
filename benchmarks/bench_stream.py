"""What each further chunk of a stream costs, from an instant cloud.

The difference between a reply of 4,000 deltas and one of 10, from the call to the end of the
iteration: so bridge, SDK and this process are in it, and nothing that a call costs once. Shown for
1,000 chunks.

* *end to end*: the time of ChatCursor's chunks against that of the bare SDK's events. ChatCursor's
  bridge keeps its runs in memory, which is faster than the SDK's own store.
* *own code*: what ChatCursor itself adds in this process, against all that the bare SDK's events
  cost, in its bridge and here; in processor time, so that it does not depend on how busy the
  machine is. What it adds is what its chunks cost, less what the SDK's events cost here, less what
  LangChain's chunks cost, by a model that only makes them. Each is the least of several runs, for
  other load on a machine only adds to it. Not shown on systems without `/proc`.

Without garbage collection, as `timeit` measures: LangChain keeps the chunks to add them up, and to
look through them all costs 10 us a chunk when it happens and nothing when it does not.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from functools import partial

from benchmarks.measure import Ratio, compare_seconds
from benchmarks.streams import Clock, Streaming, Ways, ways
from langchain_cursor_fakes import Delays

_LONG, _SHORT = 4000, 10
_PAIRS = 7
_TRIES = 3
_ROUNDS = 3
_PAUSE = 0.05


def run() -> list[Ratio]:
    """Compare `stream` with the sync client, and `astream` with the async one."""
    return list(_compared())


def _compared() -> Iterator[Ratio]:
    with ways(Delays()) as all_ways:
        for way in all_ways:
            yield compare_seconds(
                f"{way.name}: 1,000 chunks end to end, against the bare SDK",
                partial(_thousand, way.ours, time.perf_counter),
                partial(_thousand, way.bare, time.perf_counter),
                limit=1.05,
                pairs=_PAIRS,
                pause=_PAUSE,
            )
            if math.isnan(way.processors()):
                continue
            yield compare_seconds(
                f"{way.name}: 1,000 chunks, own code, against the bare SDK",
                partial(_own, way),
                partial(_thousand, way.bare, way.processors, _TRIES),
                limit=0.05,
                pairs=_ROUNDS,
                pause=_PAUSE,
            )


def _own(way: Ways) -> float:
    ours, bare, langchain = (
        _thousand(streaming, time.process_time, _TRIES)
        for streaming in (way.ours, way.bare, way.langchain)
    )
    return ours - bare - langchain


def _thousand(way: Streaming, clock: Clock, tries: int = 1) -> float:
    long, short = (min(_total(way, n, clock) for _ in range(tries)) for n in (_LONG, _SHORT))
    return 1000 * (long - short) / (_LONG - _SHORT)


def _total(way: Streaming, n: int, clock: Clock) -> float:
    time.sleep(_PAUSE)
    gc.collect()
    gc.disable()
    try:
        lap = way(n, clock)
    finally:
        gc.enable()
    return lap.first + lap.rest
