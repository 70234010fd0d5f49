"""A ChatCursor in a process of its own, which makes a call whenever it is told to.

`python -m benchmarks.caller URL` answers a line `call` with the seconds that the call took, and a
line `memory` with the memory of its process and of its bridge. It ends with its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from benchmarks.account import chat
from benchmarks.cloud import Lines, child
from benchmarks.measure import timed
from benchmarks.surroundings import quiet

_MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    """Resident memory, in bytes."""

    python: int
    bridge: int

    def __str__(self) -> str:
        return f"bridge {self.bridge / _MIB:.0f} MiB, Python {self.python / _MIB:.0f} MiB"


class Caller:
    """The parent's side of one such process."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def call(self) -> float:
        """Let it make a call; returns seconds."""
        return float(self._lines.ask("call"))

    def memory(self) -> Memory | None:
        """What it holds; None where there is no `ps`."""
        answer = json.loads(self._lines.ask("memory"))
        return Memory(**answer) if answer else None


@contextmanager
def start(url: str) -> Iterator[Caller]:
    """Start a caller that lasts as long as the context."""
    with child("benchmarks.caller", url) as lines:
        yield Caller(lines)


def main(url: str) -> None:
    """Call on command until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for the parent
    with quiet(), chat(url) as llm:

        def call() -> None:
            text = llm.invoke("count to 10").text
            if text != "1 2 3 4 5 6 7 8 9 10":
                raise AssertionError(f"the answer is {text!r}")

        for line in sys.stdin:
            if line.strip() == "call":
                print(timed(call)(), flush=True)
            else:
                memory = _memory()
                print(json.dumps(memory and asdict(memory)), flush=True)


def _memory() -> Memory | None:
    command = ["ps", "-A", "-o", "pid=,ppid=,rss="]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        return None
    own = os.getpid()
    rows = [[int(column) for column in line.split()] for line in listing.splitlines()]
    return Memory(
        python=1024 * sum(rss for pid, _, rss in rows if pid == own),
        # The other child is `ps`, of some 4 MiB.
        bridge=1024 * max((rss for _, parent, rss in rows if parent == own), default=0),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
