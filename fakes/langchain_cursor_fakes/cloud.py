"""A loopback stand-in for Cursor's cloud, under which the real bridge finishes local runs.

The bridge finds it by the environment variable `CURSOR_BACKEND_URL`:

    >>> with CursorCloud(brain=lambda run: f"You said: {run.text}") as cloud:
    ...     environment = {"CURSOR_BACKEND_URL": cloud.url}  # for the bridge process
    ...     cloud.runs
    []

`python -m langchain_cursor_fakes.cloud` serves one until it is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import signal
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType

from ._account import DEFAULT_MODELS, SYSTEM_PROMPT_REFUSAL
from ._agent_protocol import RunRequest, encode_end, read_append, read_stream_request
from ._http import HttpConnection, HttpRequest
from ._record import Outcome, Record, Request, RunRecord, fingerprint, redact
from ._script import Played, play
from ._server import ServerThread
from .brain import answer
from .runs import Brain, ReceivedRun

__all__ = [
    "DEFAULT_MODELS",
    "SYSTEM_PROMPT_REFUSAL",
    "CursorCloud",
    "Delays",
    "Request",
    "RunRecord",
    "fingerprint",
]

_KEY_EXCHANGE = "/auth/exchange_user_api_key"
_CATALOG = "/v1/models"
_PRIVACY = "/aiserver.v1.DashboardService/GetUserPrivacyMode"
_SERVER_CONFIG = "/aiserver.v1.ServerConfigService/GetServerConfig"
_TEAM_REPOS = "/aiserver.v1.DashboardService/GetTeamReposOrEmptyIfNotInTeam"
_APPEND = "/aiserver.v1.BidiService/BidiAppend"
_RUN = "/agent.v1.AgentService/RunSSE"

_JSON = "application/json"
_TOKEN_SECONDS = 3600
_PAIRING_SECONDS = 30.0  # a RunSSE whose BidiAppend does not come
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class Delays:
    """How long the cloud takes to answer, in seconds.

    Attributes:
        key_exchange: API key for access token.
        privacy: `GetUserPrivacyMode`.
        server_config: `GetServerConfig`.
        catalog: The model catalog.
        first_token: From a run's begin to its first text or thinking.
        per_token: Before each further one.
        telemetry: Every other call, such as `TrackEvents`, which the SDK makes in the background.
    """

    key_exchange: float = 0.0
    privacy: float = 0.0
    server_config: float = 0.0
    catalog: float = 0.0
    first_token: float = 0.0
    per_token: float = 0.0
    telemetry: float = 0.0

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if seconds < 0:
                raise ValueError(f"Delays.{name} must be 0 or more seconds, not {seconds!r}")


_NO_DELAYS = Delays()


class CursorCloud(Record):
    """A loopback HTTP server that answers the real bridge as Cursor's cloud does.

    A context manager, sync and async. It serves from an event loop in a thread of its own, so it
    goes on while the caller blocks. All arguments but `port` are attributes that may be changed
    while it serves. Brains are called on its event loop, one at a time: a brain must not block;
    to wait, it yields `Delay` steps.

    Recorded API keys and tokens are fingerprints. The record grows until `clear()`.

    Args:
        brain: Answers the runs.
        delays: How long answers take.
        refused_keys: API keys that are answered with 401.
        refuse_all_keys: Answers every API key with 401.
        system_prompt_allowed: False refuses runs with a system prompt as Cursor does.
        http_error: The HTTP status with which everything is answered, and a page of HTML, as a
            proxy in front of the cloud gives them; None for none.
        models: Ids of the models in the catalog.
        port: TCP port on 127.0.0.1; 0 takes a free one.

    Example:
        >>> with CursorCloud(delays=Delays(key_exchange=0.1)) as cloud:
        ...     cloud.url.startswith("http://127.0.0.1:")
        True
        >>> cloud.key_exchanges
        0
    """

    def __init__(
        self,
        brain: Brain = answer,
        *,
        delays: Delays = _NO_DELAYS,
        refused_keys: Collection[str] = frozenset(),
        refuse_all_keys: bool = False,
        system_prompt_allowed: bool = True,
        http_error: int | None = None,
        models: Sequence[str] = DEFAULT_MODELS,
        port: int = 0,
    ) -> None:
        super().__init__()
        self.brain = brain
        self.delays = delays
        self.refused_keys = refused_keys
        self.refuse_all_keys = refuse_all_keys
        self.system_prompt_allowed = system_prompt_allowed
        self.http_error = http_error
        self.models = models
        self._port = port
        self._server = ServerThread(self._answer, name="CursorCloud")
        # What follows belongs to the server's thread.
        self._run_requests: dict[str, asyncio.Future[RunRequest]] = {}
        self._turns: dict[str, dict[str, int]] = {}

    def __repr__(self) -> str:
        """Names the state, never the refused keys."""
        state = "serving" if self._server.serving else "not serving"
        return f"<CursorCloud {state} port={self._port} runs={len(self.runs)}>"

    @property
    def url(self) -> str:
        """Where it serves; after `close()`, where it served.

        Raises:
            RuntimeError: It was never started and has no port yet.
        """
        if not self._port:
            raise RuntimeError("CursorCloud has no URL before start(); use it in a `with` block")
        return f"http://127.0.0.1:{self._port}"

    @property
    def executor_builds(self) -> int:
        """How many executors the bridge has built; each is known a little after it is built."""
        return self.count_requests(_TEAM_REPOS)

    @property
    def key_exchanges(self) -> int:
        """How often an API key was presented for a token, refused ones included."""
        return self.count_requests(_KEY_EXCHANGE)

    @property
    def catalog_fetches(self) -> int:
        """How often the model catalog was asked for."""
        return self.count_requests(_CATALOG)

    def start(self) -> None:
        """Starts serving. No effect while it serves; after `close()`, on the same port again.

        Raises:
            OSError: The port is taken.
        """
        self._port = self._server.start(self._port)

    def close(self) -> None:
        """Cuts every connection and stops serving; no effect when it does not serve.

        Takes milliseconds, however many runs hang. The record stays.

        Raises:
            RuntimeError: A brain blocks and does not return, or a brain called `close`.
        """
        try:
            self._server.close(_CLOSE_SECONDS)
        except TimeoutError as error:
            raise RuntimeError(
                f"CursorCloud cannot stop: its brain {self.brain!r} blocks since more than "
                f"{_CLOSE_SECONDS} s; a brain must not block, it yields Delay steps to wait"
            ) from error
        self._run_requests.clear()  # they belong to the event loop that has ended

    def __enter__(self) -> CursorCloud:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> CursorCloud:
        self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _answer(self, request: HttpRequest, connection: HttpConnection) -> None:
        record = Request(request.method, request.path, redact(request.headers), time.monotonic())
        with self._changing():
            self._requests.append(record)
        content_type = request.headers.get("content-type", _JSON)
        status, body = 200, b"{}" if content_type.startswith(_JSON) else b""
        try:
            if self.http_error is not None:
                content_type, status = "text/html", self.http_error
                body = f"<html><body><h1>{status}</h1></body></html>".encode()
            elif request.path == _RUN:
                await self._answer_run(request, record, connection)
                return
            elif request.path == _APPEND:
                self._take_append(request.body)
            elif request.path == _KEY_EXCHANGE:
                status, body = await self._exchange_key(request)
            elif request.path == _CATALOG:
                status, body = await self._list_models(request)
            else:
                await asyncio.sleep(self._delay_of(request.path))
        except ValueError as error:
            content_type, status = _JSON, 400
            body = json.dumps({"code": "invalid_argument", "message": str(error)}).encode()
        self._set_status(record, status)
        connection.respond(status, content_type, body)

    def _delay_of(self, path: str) -> float:
        if path == _PRIVACY:
            return self.delays.privacy
        if path == _SERVER_CONFIG:
            return self.delays.server_config
        return self.delays.telemetry

    def _set_status(self, record: Request, status: int) -> None:
        with self._changing():
            record.status = status

    async def _exchange_key(self, request: HttpRequest) -> tuple[int, bytes]:
        await asyncio.sleep(self.delays.key_exchange)
        key = _get_bearer(request)
        if self._refuses(key):
            return 401, _INVALID_KEY
        user = f"user-{fingerprint(key)}"
        token = _encode_token({"sub": user, "exp": int(time.time()) + _TOKEN_SECONDS})
        tokens = {"accessToken": token, "refreshToken": token, "authId": user}
        return 200, json.dumps(tokens).encode()

    async def _list_models(self, request: HttpRequest) -> tuple[int, bytes]:
        await asyncio.sleep(self.delays.catalog)
        if self._refuses(_get_bearer(request)):
            return 401, _INVALID_KEY
        items = [{"id": model, "displayName": model} for model in self.models]
        return 200, json.dumps({"items": items}).encode()

    def _refuses(self, key: str) -> bool:
        return self.refuse_all_keys or not key or key in self.refused_keys

    def _take_append(self, body: bytearray) -> None:
        request_id, run_request = read_append(body)
        if run_request is not None:
            future = self._run_request(request_id)
            if not future.done():
                future.set_result(run_request)

    def _run_request(self, request_id: str) -> asyncio.Future[RunRequest]:
        """What BidiAppend and RunSSE of one run meet at, whichever comes first."""
        if request_id not in self._run_requests:
            self._run_requests[request_id] = asyncio.get_running_loop().create_future()
        return self._run_requests[request_id]

    async def _answer_run(
        self, request: HttpRequest, record: Request, connection: HttpConnection
    ) -> None:
        request_id = read_stream_request(request.body)
        try:
            run_request = await asyncio.wait_for(
                self._run_request(request_id), timeout=_PAIRING_SECONDS
            )
        except asyncio.TimeoutError:
            raise ValueError(
                f"no run request came by BidiAppend within {_PAIRING_SECONDS} s"
            ) from None
        finally:
            self._run_requests.pop(request_id, None)
        received = self._receive(run_request, request_id, record)
        run = RunRecord(received, started_at=received.received_at)
        with self._changing():
            self._runs.append(run)
            record.status = 200
        connection.start(200, request.headers.get("content-type", "application/connect+proto"))
        try:
            played = await self._play(received, connection)
        except asyncio.CancelledError:
            cancelled_at = connection.hung_up_at
            self._end(run, "dropped" if cancelled_at is None else "cancelled", cancelled_at)
            raise
        # The record comes first: who has seen the end of a run finds it there.
        self._end(run, played.outcome, brain_error=played.brain_error)
        if played.outcome == "dropped":
            connection.cut()
        else:
            connection.finish(played.last)

    async def _play(self, received: ReceivedRun, connection: HttpConnection) -> Played:
        if received.system_prompt is not None and not self.system_prompt_allowed:
            return Played("error", encode_end("invalid_argument", SYSTEM_PROMPT_REFUSAL))
        delays = self.delays
        return await play(
            self.brain,
            received,
            connection,
            first_token=delays.first_token,
            per_token=delays.per_token,
        )

    def _end(
        self,
        run: RunRecord,
        outcome: Outcome,
        cancelled_at: float | None = None,
        brain_error: BaseException | None = None,
    ) -> None:
        with self._changing():
            run.cancelled_at = cancelled_at
            run.ended_at = time.monotonic()
            run.outcome = outcome
            if brain_error is not None:
                self._brain_errors.append(brain_error)

    def _receive(self, run_request: RunRequest, request_id: str, request: Request) -> ReceivedRun:
        turns = self._turns.setdefault(run_request.agent_id, {})
        original_id = request.headers.get("x-original-request-id", request_id)
        return ReceivedRun(
            text=run_request.text,
            system_prompt=run_request.system_prompt,
            images=run_request.images,
            model=run_request.model,
            allowed_tools=request.headers.get("x-cursor-agent-allowed-tools"),
            request_id=request_id,
            agent_id=run_request.agent_id,
            turn=turns.setdefault(original_id, len(turns) + 1),
            headers=request.headers,
            received_at=time.monotonic(),
        )


_INVALID_KEY = json.dumps({"error": {"message": "Invalid API key"}}).encode()


def _get_bearer(request: HttpRequest) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _encode_token(claims: dict[str, object]) -> str:
    """A session token as the SDK reads it; it does not check the signature."""
    parts = ({"alg": "none", "typ": "JWT"}, {**claims, "type": "session"})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b"unsigned"]).decode()


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the URL of a cloud and serves until SIGINT or SIGTERM.

    Args:
        argv: Command line arguments; those of the process by default.
    """
    parser = argparse.ArgumentParser(
        prog="python -m langchain_cursor_fakes.cloud",
        description="A loopback stand-in for Cursor's cloud; set CURSOR_BACKEND_URL to its URL.",
    )
    parser.add_argument("--port", type=int, default=0, help="TCP port (default: a free one)")
    options = parser.parse_args(argv)
    interrupted = threading.Event()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        interrupted.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    with CursorCloud(port=options.port) as cloud:
        print(cloud.url, flush=True)
        while not interrupted.wait(0.2):  # Windows cannot interrupt a wait without a timeout
            pass


if __name__ == "__main__":
    main()
