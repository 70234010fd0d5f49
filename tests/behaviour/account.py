"""The account of `pytest --live`, what the tests cost it, and what has held on it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

NO_KEY = "a live test needs a Cursor account: set CURSOR_API_KEY to its key"


@dataclass(frozen=True)
class Account:
    """The account of whoever runs the tests.

    Args:
        key: Its API key.
        url: Another backend than Cursor's own.
        proxies: The environment's proxies, through which the bridge may have to go.
    """

    key: str = field(repr=False)
    url: str | None = None
    proxies: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_environment(cls) -> Account | None:
        """Read it from the environment, before tests are run in a cleared one."""
        key = os.environ.get("CURSOR_API_KEY")
        if not key:
            return None
        proxies = [(n, v) for n, v in os.environ.items() if n.lower().endswith("_proxy")]
        return cls(key, os.environ.get("CURSOR_BACKEND_URL") or None, tuple(proxies))

    def set_up(self, patch: pytest.MonkeyPatch) -> None:
        """Let a test's bridge out by the proxies that the tests otherwise do not see."""
        for name, value in self.proxies:
            patch.setenv(name, value)


def most_runs(item: pytest.Item) -> int:
    """How many runs a test may take."""
    told = item.get_closest_marker("runs")
    return int(told.args[0]) if told else 1


def announcement(items: Sequence[pytest.Item]) -> str:
    """What tests will cost the account."""
    cost = sum(map(most_runs, items))
    many = f"live: {len(items)} tests will make up to {cost} runs, retries apart,"
    return f"{many} on the account of CURSOR_API_KEY"


def summary(stats: Mapping[str, Sequence[pytest.TestReport]], sent: Sequence[str]) -> list[str]:
    """Which behaviours have held on the account, and what they have cost; empty if none ran.

    Args:
        stats: The reports of all tests, by how they ended.
        sent: For each run that was made, the test that made it.
    """
    ended = {
        report.nodeid: word
        for outcome, word in (("passed", "held"), ("error", "FAILED"), ("failed", "FAILED"))
        for report in stats.get(outcome, ())
        if report.nodeid in sent or "live" in report.keywords
    }
    if not ended:
        return []
    lines = [f"{word:6} {sent.count(test):2} runs  {test}" for test, word in ended.items()]
    held = sum(word == "held" for word in ended.values())
    return [*lines, f"{held} of {len(ended)} held, in {len(sent)} runs"]
