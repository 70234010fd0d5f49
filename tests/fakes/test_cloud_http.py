"""The stand-in cloud as an HTTP server, also under load."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from langchain_cursor_fakes import CursorCloud, Delays, Hang, ReceivedRun, Step, Text
from langchain_cursor_fakes._wire import encode_field
from tests.fakes.wire_client import WireClient, append_body, outcomes, read_all, run_message


@pytest.mark.clause("CLOUD-15")
def test_a_connection_serves_many_requests(wire: WireClient) -> None:
    with wire.connect() as connection:
        for _ in range(3):
            connection.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(65536).endswith(b"\r\n\r\n{}")


@pytest.mark.clause("CLOUD-15")
def test_requests_sent_in_one_go_are_answered_in_order(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.delays = Delays(telemetry=0.05)
    head = b"Host: x\r\nAuthorization: Bearer k\r\n"
    with wire.connect() as connection:
        connection.sendall(
            b"GET /slow HTTP/1.1\r\n" + head + b"\r\n"
            b"GET /v1/models HTTP/1.1\r\n" + head + b"Connection: close\r\n\r\n"
        )
        received = read_all(connection)
    assert received.index(b"\r\n\r\n{}") < received.index(b'{"items"')


@pytest.mark.clause("CLOUD-15")
def test_a_head_request_gets_no_body(wire: WireClient) -> None:
    response = wire.http.head("/ping")
    assert (response.status_code, response.content) == (200, b"")
    assert wire.http.get("/ping").content == b"{}"


@pytest.mark.clause("CLOUD-15")
def test_a_client_that_waits_for_permission_to_send_gets_it(wire: WireClient) -> None:
    with wire.connect() as connection:
        connection.sendall(
            b"POST /ping HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"{}")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.clause("CLOUD-15")
def test_what_is_not_http_gets_400_and_the_connection_is_closed(
    cloud: CursorCloud, wire: WireClient
) -> None:
    with wire.connect() as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert cloud.requests == []


@pytest.mark.clause("CLOUD-11")
def test_256_runs_go_on_at_once(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.brain = lambda run: [Text("begun"), Hang()]
    connections = [wire.send_run() for _ in range(256)]
    try:
        cloud.wait_for(lambda c: outcomes(c) == ["running"] * 256)
        for connection in connections:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        cloud.brain = lambda run: "still here"
        assert wire.run()[0] == ("text", "still here")
    finally:
        for connection in connections:
            connection.close()
    cloud.wait_for(lambda c: outcomes(c) == ["cancelled"] * 256 + ["finished"])


@pytest.mark.clause("CLOUD-11")
def test_a_reader_that_does_not_keep_up_holds_back_only_its_own_run(
    cloud: CursorCloud, wire: WireClient
) -> None:
    produced = 0

    def endless(run: ReceivedRun) -> Iterator[Step]:
        nonlocal produced
        while True:
            produced += 1
            yield Text("x" * 1000)

    cloud.brain = endless
    with wire.send_run():
        before = -1
        while produced > before:
            before = produced
            time.sleep(0.2)
        assert produced < 20_000  # 20 MB; the buffers of a loopback connection hold less
        cloud.brain = lambda run: "quick"
        assert wire.run()[0] == ("text", "quick")
    cloud.wait_for(lambda c: outcomes(c) == ["cancelled", "finished"])


@pytest.mark.clause("CLOUD-11")
def test_an_endless_answer_to_a_quick_reader_leaves_room_for_others(
    cloud: CursorCloud, wire: WireClient
) -> None:
    def endless(run: ReceivedRun) -> Iterator[Step]:
        while True:
            yield Text("x")

    cloud.brain = endless
    hung_up = threading.Event()
    with wire.send_run() as connection, ThreadPoolExecutor(1) as pool:

        def read() -> None:
            buffer = bytearray(1 << 20)
            while not hung_up.is_set():
                connection.recv_into(buffer)

        reading = pool.submit(read)
        try:
            assert wire.exchange().status_code == 200  # without room it would time out
        finally:
            hung_up.set()
        reading.result(5)
    cloud.wait_for(lambda c: outcomes(c) == ["cancelled"])


@pytest.mark.clause("CLOUD-15")
def test_a_message_of_40_megabytes_arrives_whole(cloud: CursorCloud, wire: WireClient) -> None:
    image = bytes(range(256)) * (80 * 1024)
    wire.run("big", images=(encode_field(8, image),))
    assert cloud.runs[0].received.images[0].data == image
    assert len(append_body("", run_message(images=(encode_field(8, image),)))) > 40_000_000
