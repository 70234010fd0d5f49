"""Runs every benchmark, prints its ratios, and fails if one passes its limit twice."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.measure import HEADER

_ATTEMPTS = 2


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all of them."""
    # An end on request is an end like any other: what runs beside this process ends too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    found = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    print(HEADER)
    failed = [name for name in names or found if not _holds(name)]
    return 1 if failed else 0


def _holds(name: str) -> bool:
    """Whether a benchmark keeps its limits; a machine that had something else to do may repeat."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            print(f"{name} once more:", flush=True)
        ratios = []
        for ratio in import_module(f"benchmarks.{name}").run():
            print(ratio, flush=True)
            ratios.append(ratio)
        if all(ratio.holds for ratio in ratios):
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
