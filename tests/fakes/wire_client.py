"""A client that speaks to the stand-in cloud as the bridge does, over plain HTTP."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from langchain_cursor_fakes import CursorCloud
from langchain_cursor_fakes._wire import (
    decode_fields,
    decode_frames,
    encode_field,
    encode_frame,
    get_message,
    get_text,
)

RUN = "/agent.v1.AgentService/RunSSE"
APPEND = "/aiserver.v1.BidiService/BidiAppend"
EXCHANGE = "/auth/exchange_user_api_key"


def run_message(
    text: str = "hi",
    *,
    system: str | None = None,
    images: tuple[bytes, ...] = (),
    model: str = "composer-2.5",
    agent: str = "agent-1",
) -> bytes:
    """A client message with a run request; each image is an encoded image message."""
    context = b"".join(encode_field(1, image) for image in images)
    user_message = encode_field(1, text) + (encode_field(3, context) if context else b"")
    action = encode_field(1, encode_field(1, user_message))
    run = encode_field(1, b"") + encode_field(2, action) + encode_field(5, agent)
    if system is not None:
        run += encode_field(8, system)
    return encode_field(1, run + encode_field(9, encode_field(1, model)))


def append_body(request_id: str, message: bytes) -> bytes:
    return encode_field(1, message.hex()) + encode_field(2, encode_field(1, request_id))


def run_body(request_id: str) -> bytes:
    return encode_frame(encode_field(1, request_id))


def read_events(body: bytes) -> list[tuple[object, ...]]:
    """The frames of a run's stream in words."""
    events: list[tuple[object, ...]] = []
    for flags, payload in decode_frames(body):
        if flags == 2:
            events.append(("end", json.loads(payload)))
            continue
        update = get_message(decode_fields(payload), 1)
        ((number, _),) = update.items()
        fields = get_message(update, number)
        if number in (1, 4):
            events.append(({1: "text", 4: "thinking"}[number], get_text(fields, 1)))
        elif number == 5:
            events.append(("thinking done", fields[1][-1]))
        else:
            assert number == 14
            events.append(("usage", {key: values[-1] for key, values in fields.items()}))
    return events


class WireClient:
    """Talks to a cloud over plain HTTP, as the bridge does."""

    def __init__(self, cloud: CursorCloud) -> None:
        # Plain HTTP needs no certificates, and reading them takes 20 ms.
        self.http = httpx.Client(base_url=cloud.url, timeout=10, trust_env=False, verify=False)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.http.close()

    def exchange(self, key: str = "key_1") -> httpx.Response:
        return self.http.post(EXCHANGE, json={}, headers={"authorization": f"Bearer {key}"})

    def append(self, request_id: str, message: bytes) -> httpx.Response:
        return self.http.post(
            APPEND,
            content=append_body(request_id, message),
            headers={"content-type": "application/proto"},
        )

    @contextmanager
    def running(
        self,
        text: str = "hi",
        *,
        headers: dict[str, str] | None = None,
        request_id: str | None = None,
        **message: object,
    ) -> Iterator[httpx.Response]:
        """A run whose answer is read by the caller; leaving the block hangs up."""
        request_id = request_id or str(uuid.uuid4())
        self.append(request_id, run_message(text, **message)).raise_for_status()
        with self.http.stream(
            "POST",
            RUN,
            content=run_body(request_id),
            headers={"content-type": "application/connect+proto", **(headers or {})},
        ) as response:
            yield response

    def run(self, text: str = "hi", **options: object) -> list[tuple[object, ...]]:
        """The events of a whole run."""
        with self.running(text, **options) as response:
            return read_events(response.read())

    def connect(self) -> socket.socket:
        """A plain connection."""
        return socket.create_connection((self.http.base_url.host, self.http.base_url.port), 5)

    def send_run(self, text: str = "hi") -> socket.socket:
        """A run on a plain connection, from which nothing has been read."""
        request_id = str(uuid.uuid4())
        self.append(request_id, run_message(text)).raise_for_status()
        body = run_body(request_id)
        head = f"POST {RUN} HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+proto\r\n"
        connection = self.connect()
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return connection


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def outcomes(cloud: CursorCloud) -> list[str]:
    return [run.outcome for run in cloud.runs]
