"""Many calls at once: how many a second, how fairly, in how much memory; what more bridges bring.

Bare is the SDK's own `AsyncClient`: an agent for each call, send, wait, close, all started at once
by `asyncio.gather`. ChatCursor's calls are started the same way, by `ainvoke`; all but the last
four agents of a round are closed within it. The cloud is instant, so what is compared is the
computing on this machine, most of it in the bridge's one thread. The two take turns.

Several bridges are compared with one on a cloud whose turns take 2 s, as in the field, and on the
instant one; all of them are warm.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.account import chat
from benchmarks.bare import Bare
from benchmarks.cloud import serve
from benchmarks.measure import Ratio
from benchmarks.surroundings import event_loop, neutral
from langchain_cursor import ChatCursor
from langchain_cursor_fakes import Delays

_QUESTION = "count to 10"
_ANSWER = "1 2 3 4 5 6 7 8 9 10"
# Calls at once, how many rounds of them are one measurement, and how many measurements.
_LOADS = ((1, 12, 7), (8, 3, 7), (32, 2, 7), (128, 1, 7))
_CROWD = 256
_CROWDS = 3
_TURN = 2.0
# Seconds before each measurement: what the last one left to be done is done by then.
_PAUSE = 1.0

# On two cores a second bridge has no processor of its own, and may cost a little.
_NO_BETTER = 1.5

Ask = Callable[[], Awaitable[str]]


def run() -> list[Ratio]:
    """Compare with the bare SDK under four loads, and then several bridges with one."""
    with neutral() as home:
        return [*_against_bare(home), *_several_bridges()]


@dataclass
class _Times:
    """What the calls of one way took.

    Args:
        rounds: Seconds of a measurement's rounds, all calls together.
        unfairness: For each round, its slowest call's time by its median one's.
    """

    rounds: list[float] = field(default_factory=list)
    unfairness: list[float] = field(default_factory=list)


def _against_bare(home: Path) -> Iterator[Ratio]:
    with (
        event_loop() as loop,
        serve() as cloud,
        Bare(cloud.url, home) as bare,
        bare.async_client(loop) as client,
        chat(cloud.url) as llm,
    ):

        async def answer() -> str:
            async with bare.arun(client, _QUESTION) as one:
                text: str = (await one.wait()).result
                return text

        bare.begin("say: warm")
        llm.prewarm()
        for at_once, rounds, measurements in _LOADS:
            ours, theirs = _Times(), _Times()
            for number in range(measurements + 1):
                order = [(ours, _ask(llm)), (theirs, answer)]
                for times, ask in order if number % 2 else reversed(order):
                    time.sleep(_PAUSE)
                    measured = loop.run_until_complete(_rounds(ask, at_once, rounds))
                    if number:
                        times.rounds.append(measured.rounds[0])
                        times.unfairness += measured.unfairness
            calls = at_once * rounds
            print(
                f"{at_once:4} at once: ChatCursor {calls / median(ours.rounds):5.1f} calls a "
                f"second, the bare SDK {calls / median(theirs.rounds):5.1f}; slowest by median "
                f"{max(ours.unfairness):.2f} and {max(theirs.unfairness):.2f}",
                flush=True,
            )
            yield Ratio(
                f"{at_once} calls at once, against the bare SDK",
                median(ours.rounds),
                median(theirs.rounds),
                limit=1 / 0.95,
            )
            if at_once > 1:
                yield Ratio(
                    f"{at_once} calls at once: the slowest, against the median",
                    max(ours.unfairness),
                    1.0,
                    limit=2.0,
                    unit="",
                )
        yield from _memory(bare)


def _memory(bare: Bare) -> Iterator[Ratio]:
    peaks = _peaks()
    theirs = peaks.pop(bare.pid, None)
    if theirs is None or not peaks:  # no /proc
        return
    yield Ratio(
        "most memory of the bridge, MiB, against the bare SDK's",
        max(peaks.values()) / 2**20,
        theirs / 2**20,
        limit=1.1,
        unit="",
    )


def _several_bridges() -> Iterator[Ratio]:
    for turn in (_TURN, 0.0):
        seconds: dict[int, list[float]] = {1: [], 2: []}
        with ExitStack() as stack:
            loop = stack.enter_context(event_loop())
            models = {}
            for bridges in seconds:
                # Models with the same cloud share their bridges: each has its own.
                cloud = stack.enter_context(serve(Delays(first_token=turn)))
                models[bridges] = stack.enter_context(chat(cloud.url, bridges=bridges))
                models[bridges].prewarm()
                _round_of(loop, models[bridges])
            for number in range(_CROWDS):
                for bridges in seconds if number % 2 else reversed(seconds):
                    time.sleep(_PAUSE)
                    seconds[bridges].append(_round_of(loop, models[bridges]))
        one, two = (median(seconds[bridges]) for bridges in (1, 2))
        print(
            f"{_CROWD} calls at once, turns of {turn:g} s: {_CROWD / one:.1f} calls a second on "
            f"one bridge, {_CROWD / two:.1f} on two",
            flush=True,
        )
        yield Ratio(
            f"{_CROWD} calls, turns of {turn:g} s: two bridges, against one",
            two,
            one,
            limit=_NO_BETTER,
        )


def _round_of(loop: asyncio.AbstractEventLoop, llm: ChatCursor) -> float:
    return loop.run_until_complete(_rounds(_ask(llm), _CROWD, 1)).rounds[0]


def _ask(llm: ChatCursor) -> Ask:
    async def ask() -> str:
        return (await llm.ainvoke(_QUESTION)).text

    return ask


async def _rounds(ask: Ask, at_once: int, rounds: int) -> _Times:
    async def timed() -> float:
        started = time.perf_counter()
        text = await ask()
        if text != _ANSWER:
            raise AssertionError(f"the answer is {text!r}")
        return time.perf_counter() - started

    times = _Times()
    started = time.perf_counter()
    for _ in range(rounds):
        calls = await asyncio.gather(*(timed() for _ in range(at_once)))
        times.unfairness.append(max(calls) / median(calls))
    times.rounds.append(time.perf_counter() - started)
    return times


def _peaks() -> dict[int, int]:
    """The most memory, in bytes, that each bridge of this process has held, by process id."""
    if sys.platform != "linux":
        return {}
    peaks = {}
    for entry in Path("/proc").glob("[0-9]*/status"):
        try:
            status = entry.read_text()
            command = entry.with_name("cmdline").read_bytes()
        except OSError:
            continue
        found = dict(re.findall(r"^(PPid|VmHWM):\s+(\d+)", status, re.MULTILINE))
        if found.get("PPid") == str(os.getpid()) and b"--workspace" in command:
            peaks[int(entry.parent.name)] = 1024 * int(found["VmHWM"])
    return peaks
