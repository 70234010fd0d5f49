"""Runs every benchmark, prints its ratios, and fails if one passes its limit."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.measure import HEADER


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all of them."""
    # An end on request is an end like any other: what runs beside this process ends too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    found = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    print(HEADER)
    failed = 0
    for name in names or found:
        for ratio in import_module(f"benchmarks.{name}").run():
            print(ratio, flush=True)
            failed += not ratio.holds
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
