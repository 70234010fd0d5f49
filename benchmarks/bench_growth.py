"""Whether calls get slower, or memory grows, the more of them a process and its bridge have made.

One process makes 600 calls. Its last 100 are made by turns with the first 100 after warming up of
a second process that runs the same code, with a bridge of its own, on the same instant cloud. So
the ratio is that of the last 100 to the first 100 after warming up, but measured at the same time:
from one minute to the next, other work on a machine changes times by more than the 5 % that are
allowed. Warming up takes 100 calls, over which Node compiles what it runs often.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks import caller
from benchmarks.cloud import serve
from benchmarks.measure import Ratio
from benchmarks.surroundings import neutral

_CALLS = 600
_WARM_UP = 100
_COMPARED = 100
# Seconds before each compared call: what the other one left to be done is done by then.
_PAUSE = 0.03


def run() -> list[Ratio]:
    """Compare an aged process with a fresh one, and print what the aged one holds."""
    with neutral(), serve() as cloud, caller.start(cloud.url) as aged:
        for _ in range(_WARM_UP):
            aged.call()
        before = aged.memory()
        alone = [aged.call() for _ in range(_CALLS - _WARM_UP - _COMPARED)]
        with caller.start(cloud.url) as fresh:
            for _ in range(_WARM_UP):
                fresh.call()
            times: dict[caller.Caller, list[float]] = {aged: [], fresh: []}
            for pair in range(_COMPARED):
                for one in (aged, fresh) if pair % 2 else (fresh, aged):
                    time.sleep(_PAUSE)
                    times[one].append(one.call())
            print(f"\nmemory after {_WARM_UP} calls: {before}")
            print(f"memory after {_CALLS} calls: {aged.memory()}")
            print(f"memory of the fresh one after {_WARM_UP + _COMPARED} calls: {fresh.memory()}")
    blocks = [alone[at : at + _COMPARED] for at in range(0, len(alone), _COMPARED)]
    medians = ", ".join(f"{median(block) * 1000:.1f}" for block in blocks)
    print(f"medians of the calls before, a hundred each, in a row: {medians} ms\n", flush=True)
    ratio = Ratio(
        f"call {_CALLS - _COMPARED + 1} to {_CALLS}, against the first {_COMPARED}",
        median(times[aged]),
        median(times[fresh]),
        limit=1.05,
    )
    return [ratio]
