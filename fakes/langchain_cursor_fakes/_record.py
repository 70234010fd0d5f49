"""What a cloud has seen, for assertions: readable from any thread, and it can be waited for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ._watch import Watched
from .runs import ReceivedRun

Outcome = Literal["running", "finished", "error", "dropped", "cancelled"]

_SECRET_HEADERS = frozenset({"authorization", "cookie", "x-blob-encryption-key"})


@dataclass
class Request:
    """One HTTP request.

    Attributes:
        method: HTTP method.
        path: Path without the query.
        headers: Names in lower case; the values of secret ones are fingerprints.
        at: `time.monotonic()` when the request was complete, in seconds.
        status: Status of the response; None as long as there is none.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    at: float
    status: int | None = None


@dataclass
class RunRecord:
    """One run, kept up to date while it lasts.

    Attributes:
        received: What was asked.
        started_at: `time.monotonic()` when the run began, in seconds.
        ended_at: When it ended, however it did; None while it runs.
        outcome: `running`; `finished`; `error` (ended with an error frame); `dropped` (the cloud
            cut the connection, by a `Drop` step or because it was closed); `cancelled` (the other
            side hung up before the end).
        cancelled_at: When the other side hung up; None if it did not.
    """

    received: ReceivedRun
    started_at: float
    ended_at: float | None = None
    outcome: Outcome = "running"
    cancelled_at: float | None = None


def fingerprint(secret: str) -> str:
    """A short fingerprint that tells secrets apart and does not give them away.

    >>> fingerprint("key_123")
    'sha256:5feb89c42cd7'
    """
    return f"sha256:{hashlib.sha256(secret.encode()).hexdigest()[:12]}"


def redact(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with fingerprints in the place of secrets; a `Bearer` scheme stays readable.

    >>> redact({"authorization": "Bearer key_123"})
    {'authorization': 'Bearer sha256:5feb89c42cd7'}
    """
    return {
        name: _redact_value(value) if name in _SECRET_HEADERS else value
        for name, value in headers.items()
    }


def _redact_value(value: str) -> str:
    scheme, space, secret = value.partition(" ")
    return f"{scheme} {fingerprint(secret)}" if space else fingerprint(value)


class Record(Watched):
    """Requests, runs and errors in the order in which they came.

    It grows with every request: `clear()` empties it. Reading gives copies of the lists, so a
    list does not change under the reader's hands; a `RunRecord` in it does, until its run ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requests: list[Request] = []
        self._runs: list[RunRecord] = []
        self._brain_errors: list[BaseException] = []

    @property
    def requests(self) -> list[Request]:
        """All requests so far."""
        with self._changed:
            return list(self._requests)

    @property
    def runs(self) -> list[RunRecord]:
        """All runs so far."""
        with self._changed:
            return list(self._runs)

    @property
    def brain_errors(self) -> list[BaseException]:
        """What brains have raised so far."""
        with self._changed:
            return list(self._brain_errors)

    def count_requests(self, path: str) -> int:
        """How many requests for a path there were, answered or not."""
        with self._changed:
            return sum(request.path == path for request in self._requests)

    def clear(self) -> None:
        """Forgets everything recorded; runs that still go on are forgotten too."""
        with self._changing():
            self._requests.clear()
            self._runs.clear()
            self._brain_errors.clear()

    def _describe(self, timeout: float) -> str:
        with self._changed:
            runs = [(run.received.model, run.outcome) for run in self._runs[-10:]]
            paths = [f"{r.method} {r.path} {r.status or 'open'}" for r in self._requests[-10:]]
            return "\n  ".join(
                [
                    f"not so within {timeout} s. Recorded: {len(self._runs)} runs, "
                    f"{len(self._requests)} requests, {len(self._brain_errors)} brain errors",
                    f"last runs (model, outcome): {runs}",
                    "last requests:",
                    *paths,
                ]
            )
