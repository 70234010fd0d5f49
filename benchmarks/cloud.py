"""The stand-in for Cursor's cloud, in a process of its own: it takes no time from the measured one.

`python -m benchmarks.cloud DELAYS` prints its URL, answers each line on its standard input with
what it has counted so far, and ends with the input: so it never outlives whoever started it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from langchain_cursor_fakes import CursorCloud, Delays

ROOT = Path(__file__).resolve().parent.parent
_NO_DELAYS = Delays()


@dataclass(frozen=True)
class Counts:
    """What a cloud has been asked for so far; builds are known about a second later."""

    executor_builds: int
    key_exchanges: int
    catalog_fetches: int

    def since(self, before: Counts) -> Counts:
        """What has been added since."""
        return Counts(
            self.executor_builds - before.executor_builds,
            self.key_exchanges - before.key_exchanges,
            self.catalog_fetches - before.catalog_fetches,
        )


class Cloud:
    """A cloud that serves in another process."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.url = lines.read()

    def counts(self) -> Counts:
        """What it has been asked for so far."""
        return Counts(**json.loads(self._lines.ask("counts")))


class Lines:
    """Talks to a child process line by line."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin = stdin
        self._stdout = stdout

    def read(self) -> str:
        """The next line of the child."""
        line = self._stdout.readline()
        if not line:
            raise RuntimeError("a child process of the benchmarks has ended; see its error above")
        return line.strip()

    def ask(self, line: str) -> str:
        """Send a line, and wait for the answer."""
        self._stdin.write(f"{line}\n")
        self._stdin.flush()
        return self.read()


@contextmanager
def child(module: str, *arguments: str) -> Iterator[Lines]:
    """Run a module of the benchmarks as a process that ends when its standard input does."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Lines(process.stdin, process.stdout)
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            process.stdout.close()


@contextmanager
def serve(delays: Delays = _NO_DELAYS) -> Iterator[Cloud]:
    """Serve a cloud for as long as the context lasts."""
    with child("benchmarks.cloud", json.dumps(asdict(delays))) as lines:
        yield Cloud(lines)


def main(delays: str) -> None:
    """Serve until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is for the parent
    with CursorCloud(delays=Delays(**json.loads(delays))) as cloud:
        print(cloud.url, flush=True)
        for _ in sys.stdin:
            counts = Counts(cloud.executor_builds, cloud.key_exchanges, cloud.catalog_fetches)
            print(json.dumps(asdict(counts)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
