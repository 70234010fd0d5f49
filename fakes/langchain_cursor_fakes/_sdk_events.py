"""The messages of a run's stream, and of its result, in the JSON of cursor-sdk's bridge.

Taken down from the bridge of cursor-sdk 1.1.0: message payloads are written in snake case with
every count in them, results in camel case with numbers of 64 bits as text and zeros left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from .runs import Usage

Json = dict[str, Any]


class RunEvents:
    """Makes the messages of one run's stream, numbered from 1.

    >>> events = RunEvents("agent-1", "run-1")
    >>> events.done()
    {'done': {'agentId': 'agent-1', 'runId': 'run-1'}, 'offset': '1'}
    """

    def __init__(self, agent_id: str, run_id: str) -> None:
        self._ids = {"agent_id": agent_id, "run_id": run_id}
        self._camel = {"agentId": agent_id, "runId": run_id}
        self._offset = 0

    def status(self, status: str, message: str | None = None) -> Json:
        """The run's status has changed."""
        told = {} if message is None else {"message": message}
        return self._message("status", {"status": status, **told})

    def text(self, delta: str) -> Json:
        """A piece of the answer."""
        content = [{"type": "text", "text": delta}]
        return self._message("assistant", {"message": {"role": "assistant", "content": content}})

    def thinking(self, delta: str) -> Json:
        """A piece of the model's thinking."""
        return self._message("thinking", {"text": delta})

    def thinking_done(self, duration_ms: int) -> Json:
        """The end of the thinking."""
        return self._message("thinking", {"text": "", "thinking_duration_ms": duration_ms})

    def usage(self, usage: Usage) -> Json:
        """Tokens of a turn."""
        return self._message("usage", {"usage": _counts(usage)})

    def result(self, result: Json) -> Json:
        """The run's result, as made by `run_result`."""
        code = {"errorCode": result["errorCode"]} if "errorCode" in result else {}
        body = {**self._camel, "status": result["status"], **code, "result": result}
        return {"result": body, "offset": self._next()}

    def done(self) -> Json:
        """The stream's last message."""
        return {"done": dict(self._camel), "offset": self._next()}

    def _message(self, kind: str, payload: Json) -> Json:
        message = {"type": kind, **self._ids, **payload}
        return {"sdkMessage": {"type": kind, "message": message}, "offset": self._next()}

    def _next(self) -> str:
        self._offset += 1
        return str(self._offset)


def run_result(
    ids: tuple[str, str],
    status: str,
    *,
    text: str = "",
    model: Mapping[str, Any] | None = None,
    duration_ms: int = 0,
    created_at: float,
    usages: Iterable[Usage] = (),
    error: tuple[str | None, str] | None = None,
) -> Json:
    """Make the result of a run.

    Args:
        ids: Of the agent and of the run.
        status: `FINISHED`, `ERROR` or `CANCELLED`.
        text: The answer.
        model: The model as it was selected.
        duration_ms: Milliseconds that the run took.
        created_at: When it began, in seconds since the epoch.
        usages: The tokens of its turns.
        error: Code and message of a failure.
    """
    agent_id, run_id = ids
    created = datetime.fromtimestamp(created_at, timezone.utc).isoformat(timespec="milliseconds")
    result: Json = {
        "runId": run_id,
        "agentId": agent_id,
        "status": f"RUN_LIFECYCLE_STATUS_{status}",
    }
    if text:
        result["result"] = text
    if model is not None:
        result["model"] = model
    if duration_ms:
        result["durationMs"] = str(duration_ms)
    result["createdAt"] = created.replace("+00:00", "Z")
    turns = [_counts(usage) for usage in usages]
    if turns:
        sums = {name: sum(turn.get(name, 0) for turn in turns) for turn in turns for name in turn}
        result["usage"] = {name: str(count) for name, count in sums.items() if count}
    if error is not None:
        code, message = error
        if code is not None:
            result["errorCode"] = code
        result["errorMessage"] = message
    return result


def _counts(usage: Usage) -> Json:
    counts = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cacheReadTokens": usage.cache_read_tokens,
        "cacheWriteTokens": usage.cache_write_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
    }
    if usage.reasoning_tokens:  # 0 does not reach the bridge
        counts["reasoningTokens"] = usage.reasoning_tokens
    return counts
