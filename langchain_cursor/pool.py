"""Several bridges: how many there may be, and which of them takes a call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# A bridge makes some 30 answers of a thousand tokens a second, or 150 of ten. To start another one
# and to build its executor takes a second and more (cursor-sdk 1.1.0, 2 cores).
START = 32
_MOST_AUTOMATIC = 8


@dataclass(frozen=True)
class Member:
    """A bridge as the pool sees it.

    Args:
        running: The calls that it runs now.
        warm: Whether it has an executor, or is building one.
    """

    running: int = 0
    warm: bool = False


def choose(members: Iterable[Member]) -> int:
    """Choose the bridge that takes the next call: the one that has the least to do.

    One that has to start, or whose executor is cold, counts as if it ran `START` calls more: few
    calls stay on one warm bridge, and many spread. Of equals a warm one is taken, and the first.

    Args:
        members: Every bridge that there may be, those that do not run yet included.

    Returns:
        The chosen one's index.

    Example:
        >>> choose([Member(running=3, warm=True), Member()])
        0
        >>> choose([Member(running=40, warm=True), Member()])
        1
        >>> choose([Member(running=40, warm=True), Member(running=7, warm=True)])
        1
    """
    costs = [
        (member.running + (0 if member.warm else START), not member.warm) for member in members
    ]
    return costs.index(min(costs))


def size(bridges: int | Literal["auto"]) -> int:
    """How many bridges there may be: as asked, or one for each processor, eight at most."""
    if bridges != "auto":
        return bridges
    if hasattr(os, "sched_getaffinity"):  # less than all in a container
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    return min(processors, _MOST_AUTOMATIC)
