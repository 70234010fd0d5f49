"""The executors of a fake bridge: who uses which, and so which exist."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Executors:
    """Counts, for each executor, the agents and leases that hold it.

    >>> executors = Executors()
    >>> executors.hold("a", "agent-1"), executors.hold("a", "agent-2")
    (True, False)
    >>> executors.release("agent-1"); executors.hold("a", "agent-3")
    False
    """

    def __init__(self) -> None:
        self._holders: dict[str, set[str]] = {}

    def hold(self, key: str, agent_id: str) -> bool:
        """Let an agent hold an executor; tell whether it has to be built first."""
        holders = self._holders.setdefault(key, set())
        is_new = not holders
        holders.add(agent_id)
        return is_new

    def release(self, agent_id: str) -> None:
        """Let an agent hold nothing any more; what nobody holds is torn down."""
        for key, holders in list(self._holders.items()):
            holders.discard(agent_id)
            if not holders:
                del self._holders[key]


def executor_key(options: Mapping[str, Any], *, retries: bool) -> str:
    """What decides which executor an agent uses (cursor-sdk 1.1.0): not the model, tools or store.

    Args:
        options: The agent's options in the bridge's JSON, without the extension's entry.
        retries: Whether the SDK tries failing runs again.
    """
    local = options.get("local", {})
    names = ("cwd", "dirs", "settingSources", "sandboxOptions", "autoReview")
    parts = [local.get(name) for name in names]
    parts += [options.get(name) for name in ("apiKey", "mcpServers", "agents")]
    return json.dumps([*parts, retries], sort_keys=True)
