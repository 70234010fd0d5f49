"""How long a caller waits for an answer when the cloud is as slow as in the field.

The stand-in charges what resembles Cursor's cloud: 0.7 s for a key exchange, 2.1 s for privacy
mode and, beside it, for the server's configuration, 1.3 s for the model catalog, and 2.0 s until
the model's first token. All else that it does is instant, so what remains is this machine's work.

Measured is the time until the call returns. A first call starts its bridge; all modules are loaded
before. The bare SDK's first agent stays open, so that its later calls find a warm executor; each
of these creates an agent, sends and waits. Closing it comes after, as with ChatCursor, and is not
counted; how long it took is printed beside. Calls that are compared are made by turns. The spread
of later calls is that of twenty in a row; with full delays it is taken three times, for chance
has a part in it, and the medians are compared. The chain that a first call cannot do without is
the start of its bridge, one key exchange, privacy mode beside the server's configuration, and the
model's turn.

The environment variable LANGCHAIN_CURSOR_BENCH_SCALE multiplies all delays, 1.0 by default. This
machine's own time does not shrink with them, so bounds that allow for it are then looser. With
the full delays, the results are written to `benchmarks/results/latency.json` and drawn in
`docs/latency.svg`.
"""

from __future__ import annotations

import gc
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.account import chat
from benchmarks.bare import Bare
from benchmarks.cloud import ROOT, Cloud, serve
from benchmarks.latency_chart import Bar, Group, draw
from benchmarks.measure import Ratio, timed
from benchmarks.surroundings import machine, neutral
from langchain_cursor import ChatCursor
from langchain_cursor_fakes import Delays

SCALE = "LANGCHAIN_CURSOR_BENCH_SCALE"
RESULTS = ROOT / "benchmarks" / "results" / "latency.json"
CHART = ROOT / "docs" / "latency.svg"

FIELD = Delays(key_exchange=0.7, privacy=2.1, server_config=2.1, catalog=1.3, first_token=2.0)

_QUESTION = "say: done"
_FIRST_CALLS = 3
_LATER_CALLS = 20
_BLOCKS = 3
_LATER_CALLS_UNLEASED = 6
_LATER_CALLS_OTHERWISE = 2
# Seconds before each later call, for what the call before has left to do behind its caller's back.
_PAUSE = 0.1
# The bridge tells the cloud of a build within about a second.
_COUNTING = 1.5
_MINUTE = 60.0
# What a first call after a prewarm may cost this machine: 5 % of a later call with full delays.
_PREWARM_SLACK = 0.1


def run() -> list[Ratio]:
    """Measure every scenario, print a table, and compare."""
    scale = float(os.environ.get(SCALE, "1"))
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"{SCALE} must be a number above 0, not {scale!r}")
    delays = Delays(**{name: seconds * scale for name, seconds in vars(FIELD).items()})
    with neutral() as home:
        _warm_up(home)
        measured = _Measured(delays, home, blocks=_BLOCKS if scale >= 1 else 1)
    about = machine()
    print("\n".join(_table(measured, delays, about)), flush=True)
    ratios = list(_ratios(measured, delays, scale))
    if scale == 1:
        _write(measured, delays, about, ratios)
    return ratios


@dataclass
class Scenario:
    """What one way of asking took.

    Args:
        name: What is done.
        bridges: How many bridges were started.
        first: Seconds of each bridge's first call, where that counts.
        later: Seconds of the calls after it.
        executor_builds: As the cloud counted them.
        key_exchanges: As the cloud counted them.
        catalog_fetches: As the cloud counted them.
        minutes: Minutes that its bridges lived, each begun minute counted as one.
    """

    name: str
    bridges: int = 0
    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    executor_builds: int = 0
    key_exchanges: int = 0
    catalog_fetches: int = 0
    minutes: int = 0

    @property
    def calls(self) -> int:
        """How many calls were made, each bridge's first one included."""
        return self.bridges + len(self.later)

    @property
    def spread(self) -> float:
        """Seconds between the fastest and the slowest of twenty later calls: the median of it."""
        starts = range(0, len(self.later), _LATER_CALLS)
        blocks = [self.later[start : start + _LATER_CALLS] for start in starts]
        return median(max(block) - min(block) for block in blocks)

    @contextmanager
    def bridge(self, cloud: Cloud) -> Iterator[None]:
        """Add what the cloud counts while a bridge of this scenario lives."""
        before, started = cloud.counts(), time.monotonic()
        yield
        time.sleep(_COUNTING)
        counts = cloud.counts().since(before)
        self.bridges += 1
        self.executor_builds += counts.executor_builds
        self.key_exchanges += counts.key_exchanges
        self.catalog_fetches += counts.catalog_fetches
        self.minutes += math.ceil((time.monotonic() - started) / _MINUTE)


class _Measured:
    """Every scenario, measured."""

    def __init__(self, delays: Delays, home: Path, blocks: int) -> None:
        self.bare = Scenario("bare SDK, one agent kept open")
        self.unknown = Scenario("ChatCursor, catalog not cached")
        self.leased = Scenario("ChatCursor")
        self.unleased = Scenario("ChatCursor(keep_alive=0)")
        self.prewarmed = Scenario("ChatCursor after prewarm()")
        self.prewarms: list[float] = []
        self.closings: list[float] = []
        self.starts: list[float] = []  # of a bridge alone
        self._home = home
        with ExitStack() as stack:
            # Models with the same cloud and key share a bridge: each scenario has its own cloud.
            self._bare_cloud, self._cloud, self._unleased_cloud, self._prewarmed_cloud = (
                stack.enter_context(serve(delays)) for _ in range(4)
            )
            with chat(self._cloud.url) as llm, self.unknown.bridge(self._cloud):
                self._calls(self.unknown, llm)
            for _ in range(_FIRST_CALLS - 1):
                self._pair(later=0)
            self._pair(later=_LATER_CALLS * blocks)
            for _ in range(_FIRST_CALLS):
                self._prewarm()

    @property
    def scenarios(self) -> list[Scenario]:
        """In the order in which they are shown."""
        return [self.bare, self.unknown, self.leased, self.unleased, self.prewarmed]

    def _pair(self, later: int) -> None:
        """First calls, and then later ones, of the bare SDK and of ChatCursor by turns."""
        with chat(self._unleased_cloud.url, keep_alive=0) as starter:
            self.starts.append(timed(starter.prewarm)())  # without a lease to take, only the bridge
        with ExitStack() as bridges:
            bare: list[Bare] = []

            def first_bare() -> None:
                bare.append(bridges.enter_context(Bare(self._bare_cloud.url, self._home)))
                _check(bare[0].begin(_QUESTION))

            llm = bridges.enter_context(chat(self._cloud.url))
            with self.bare.bridge(self._bare_cloud), self.leased.bridge(self._cloud):
                for mine in (True, False) if len(self.bare.first) % 2 else (False, True):
                    if mine:
                        self.leased.first.append(_seconds_of(llm))
                    else:
                        self.bare.first.append(timed(first_bare)())
                if later:
                    self._later(llm, bare[0], later)

    def _later(self, llm: ChatCursor, bare: Bare, calls: int) -> None:
        cloud = self._unleased_cloud
        with chat(cloud.url, keep_alive=0) as unleased, self.unleased.bridge(cloud):
            unleased.invoke(_QUESTION)  # keep_alive means nothing to a first call
            for call in range(calls):
                for mine in (True, False) if call % 2 else (False, True):
                    time.sleep(_PAUSE)
                    if mine:
                        self.leased.later.append(_seconds_of(llm))
                    else:
                        self._prompt(bare)
                if call < _LATER_CALLS_UNLEASED:
                    time.sleep(_PAUSE)
                    self.unleased.later.append(_seconds_of(unleased))

    def _prompt(self, bare: Bare) -> None:
        started = time.perf_counter()
        with bare.answer(_QUESTION) as text:
            answered = time.perf_counter()
            _check(text)
        returned = time.perf_counter()
        self.bare.later.append(answered - started)
        self.closings.append(returned - answered)

    def _prewarm(self) -> None:
        cloud = self._prewarmed_cloud
        with chat(cloud.url) as llm, self.prewarmed.bridge(cloud):
            self.prewarms.append(timed(llm.prewarm)())
            self._calls(self.prewarmed, llm)

    def _calls(self, scenario: Scenario, llm: ChatCursor) -> None:
        scenario.first.append(_seconds_of(llm))
        for _ in range(_LATER_CALLS_OTHERWISE):
            time.sleep(_PAUSE)
            scenario.later.append(_seconds_of(llm))


def _seconds_of(llm: ChatCursor) -> float:
    return timed(lambda: _check(llm.invoke(_QUESTION).text))()


def _check(text: str) -> None:
    if text != "done":
        raise AssertionError(f"the answer is {text!r}")


def _warm_up(home: Path) -> None:
    """Load every module, and every file of the bridge into the system's cache."""
    with serve() as cloud:
        with chat(cloud.url) as llm:
            _check(llm.invoke(_QUESTION).text)
        with Bare(cloud.url, home) as bare:
            _check(bare.ask(_QUESTION))
    # The first full collection after the imports takes 50 ms, in whichever call it comes.
    gc.collect()


def _ratios(measured: _Measured, delays: Delays, scale: float) -> Iterator[Ratio]:
    full = scale >= 1
    bare, leased, prewarmed = measured.bare, measured.leased, measured.prewarmed
    yield Ratio(
        "first call without the turn, against the bare SDK's",
        median(leased.first) - delays.first_token,
        median(bare.first) - delays.first_token,
        # Both have the bridge's start in them, which does not shrink.
        limit=0.5 if full else 0.75,
    )
    chain = delays.key_exchange + max(delays.privacy, delays.server_config) + delays.first_token
    yield Ratio(
        "first call, against the chain that it waits for",
        median(leased.first),
        median(measured.starts) + chain,
        limit=1.1 if full else 1.35,
    )
    yield Ratio(
        "later call, against the bare SDK's",
        median(leased.later),
        median(bare.later),
        limit=1.0 if full else 1.1,
    )
    yield Ratio(
        f"spread of {_LATER_CALLS} later calls, against the bare SDK's",
        leased.spread,
        bare.spread,
        # What differs from call to call is this machine's own time, and chance.
        limit=1.0 if full else 10.0,
    )
    yield Ratio(
        "first call after prewarm (the slowest), against a later one",
        max(prewarmed.first),
        median(prewarmed.later),
        limit=1 + _PREWARM_SLACK / delays.first_token,
    )
    yield Ratio(
        f"executor builds a bridge: {leased.name}",
        leased.executor_builds,
        leased.bridges,
        limit=1.0,
        unit="",
    )
    for scenario in measured.scenarios:
        if scenario is not bare:
            yield Ratio(
                f"key exchanges a minute: {scenario.name}",
                scenario.key_exchanges,
                scenario.minutes,
                limit=1.0,
                unit="",
            )
            yield Ratio(
                f"catalog fetches a bridge: {scenario.name}",
                scenario.catalog_fetches,
                scenario.bridges,
                limit=1.0,
                unit="",
            )


def _table(measured: _Measured, delays: Delays, about: dict[str, str]) -> Iterator[str]:
    yield ""
    yield "; ".join(f"{name} {value}" for name, value in about.items())
    yield "cloud: " + _charges(delays)
    yield ""
    yield (
        f"{'seconds until the call returns':<42} {'first':>6} {'later min':>10} {'median':>7} "
        f"{'max':>7} {'bridges':>8} {'calls':>6} {'builds':>7} {'key exchanges':>14} "
        f"{'catalogs':>9}"
    )
    for scenario in measured.scenarios:
        later = scenario.later
        first = f"{median(scenario.first):.2f}" if scenario.first else ""
        yield (
            f"{scenario.name:<42} {first:>6} {min(later):10.3f} "
            f"{median(later):7.3f} {max(later):7.3f} {scenario.bridges:8} "
            f"{scenario.calls:6} {scenario.executor_builds:7} "
            f"{scenario.key_exchanges:14} {scenario.catalog_fetches:9}"
        )
    closings = measured.closings
    yield (
        f"(closing the bare SDK's agents took {median(closings) * 1000:.1f} ms each, once "
        f"{max(closings) * 1000:.1f} ms)"
    )
    yield f"(prewarm() itself took {median(measured.prewarms):.2f} s)"
    yield ""


def _charges(delays: Delays) -> str:
    return (
        f"key exchange {delays.key_exchange:.2g} s, privacy mode {delays.privacy:.2g} s beside "
        f"server config {delays.server_config:.2g} s, catalog {delays.catalog:.2g} s, "
        f"first token {delays.first_token:.2g} s"
    )


def _write(measured: _Measured, delays: Delays, about: dict[str, str], ratios: list[Ratio]) -> None:
    results = {
        "about": about,
        "delays_s": asdict(delays),
        "scenarios": [asdict(scenario) for scenario in measured.scenarios],
        "prewarms_s": measured.prewarms,
        "closings_s": measured.closings,
        "ratios": [
            {**asdict(ratio), "value": ratio.value, "holds": ratio.holds} for ratio in ratios
        ],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(_rounded(results), indent=1) + "\n", encoding="utf-8")
    CHART.parent.mkdir(exist_ok=True)
    CHART.write_text(_chart(measured, delays, about), encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def _chart(measured: _Measured, delays: Delays, about: dict[str, str]) -> str:
    bare, leased = measured.bare, measured.leased
    first = [bare, measured.unknown, leased, measured.prewarmed]
    later = [bare, leased, measured.unleased]
    return draw(
        "Seconds until the call returns",
        [
            Group(
                "First call, bridge start included",
                [Bar(one.name, median(one.first), ours=one is not bare) for one in first],
            ),
            Group(
                "Later calls, median",
                [Bar(one.name, median(one.later), ours=one is not bare) for one in later],
            ),
        ],
        model=delays.first_token,
        notes=[
            "On a stand-in for Cursor's cloud: " + _charges(delays) + ".",
            "; ".join(f"{name} {value}" for name, value in about.items()) + ".",
        ],
    )
