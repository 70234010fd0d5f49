"""Interleaved pairs: two ways of doing the same, by turns, so that noise meets both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How one way compares with another.

    Args:
        name: What was measured.
        ours: Median of our times, in seconds, or another quantity, see `unit`.
        theirs: The other way's.
        limit: The ratio that must not be passed.
        unit: Seconds are shown as ``"ms"``; any other quantity is shown as it is.
    """

    name: str
    ours: float
    theirs: float
    limit: float
    unit: str = "ms"

    @property
    def value(self) -> float:
        """Ours divided by theirs."""
        return self.ours / self.theirs

    @property
    def holds(self) -> bool:
        """Whether the limit is kept."""
        return self.value <= self.limit

    def __str__(self) -> str:
        verdict = "ok" if self.holds else "TOO SLOW" if self.unit == "ms" else "TOO MANY"
        factor = 1000 if self.unit == "ms" else 1
        return (
            f"{self.name:<58} {self.ours * factor:9.1f} {self.unit:2} "
            f"{self.theirs * factor:9.1f} {self.unit:2} "
            f"{self.value:6.2f}  (at most {self.limit:.2f})  {verdict}"
        )


HEADER = f"{'':<58} {'ours':>12} {'other':>12} {'ratio':>6}"


def timed(function: Callable[[], object]) -> Callable[[], float]:
    """Make a function that returns how many seconds another one takes."""

    def seconds() -> float:
        started = time.perf_counter()
        function()
        return time.perf_counter() - started

    return seconds


def compare(
    name: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    limit: float,
    pairs: int,
) -> Ratio:
    """Time both by turns, swapping who is first, and compare the medians.

    Args:
        name: What is measured.
        ours: Our way.
        theirs: The other way.
        limit: The ratio that must not be passed.
        pairs: How many pairs are timed, after one that is not.
    """
    return compare_seconds(name, timed(ours), timed(theirs), limit=limit, pairs=pairs)


def compare_seconds(
    name: str,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    *,
    limit: float,
    pairs: int,
    pause: float = 0.0,
) -> Ratio:
    """`compare`, for ways that time themselves because only a part of them counts.

    Args:
        name: What is measured.
        ours: Our way; returns seconds.
        theirs: The other way; returns seconds.
        limit: The ratio that must not be passed.
        pairs: How many pairs count, after one that does not.
        pause: Seconds to wait before each, so that what the one leaves to be done behind its
            caller's back does not take time from the other.
    """
    times: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs + 1):
        for mine in (True, False) if pair % 2 else (False, True):
            time.sleep(pause)
            seconds = (ours if mine else theirs)()
            if pair:
                times[mine].append(seconds)
    return Ratio(name, statistics.median(times[True]), statistics.median(times[False]), limit)
