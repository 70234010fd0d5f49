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
        ours: Median of our times, in seconds.
        theirs: Median of the other way's times, in seconds.
        limit: The ratio that must not be passed.
    """

    name: str
    ours: float
    theirs: float
    limit: float

    @property
    def value(self) -> float:
        """Ours divided by theirs."""
        return self.ours / self.theirs

    @property
    def holds(self) -> bool:
        """Whether the limit is kept."""
        return self.value <= self.limit

    def __str__(self) -> str:
        verdict = "ok" if self.holds else "TOO SLOW"
        return (
            f"{self.name:<58} {self.ours * 1000:9.1f} ms {self.theirs * 1000:9.1f} ms "
            f"{self.value:6.2f}  (at most {self.limit:.2f})  {verdict}"
        )


HEADER = f"{'':<58} {'ours':>12} {'other':>12} {'ratio':>6}"


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
    times: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs + 1):
        for mine in (True, False) if pair % 2 else (False, True):
            started = time.perf_counter()
            (ours if mine else theirs)()
            if pair:
                times[mine].append(time.perf_counter() - started)
    return Ratio(name, statistics.median(times[True]), statistics.median(times[False]), limit)
