"""The stand-in cloud: what it answers."""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from langchain_cursor_fakes import (
    CursorCloud,
    Delay,
    Delays,
    Drop,
    Error,
    Garbage,
    Hang,
    ReceivedRun,
    Step,
    Text,
    Thinking,
    ThinkingDone,
    Usage,
    fingerprint,
)
from langchain_cursor_fakes import cloud as cloud_module
from langchain_cursor_fakes._wire import encode_field
from tests.fakes.wire_client import (
    APPEND,
    RUN,
    WireClient,
    outcomes,
    read_all,
    read_events,
    run_body,
    run_message,
)

END = ("end", {})


# --- What the bridge asks before a run ------------------------------------------------------------


@pytest.mark.clause("CLOUD-2")
def test_an_api_key_is_exchanged_for_a_session_token_that_has_not_expired(wire: WireClient) -> None:
    tokens = wire.exchange("key_1").json()
    payload = tokens["accessToken"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert set(tokens) == {"accessToken", "refreshToken", "authId"}
    assert claims["type"] == "session"
    assert claims["exp"] > time.time() + 600
    assert claims["sub"] == f"user-{fingerprint('key_1')}"


@pytest.mark.clause("CLOUD-2")
def test_a_refused_key_gets_401_from_the_exchange_and_the_catalog(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.refused_keys = {"bad"}
    refusals = [
        wire.exchange("bad"),
        wire.http.get("/v1/models", headers={"authorization": "Bearer bad"}),
    ]
    for response in refusals:
        assert response.status_code == 401
        assert response.json() == {"error": {"message": "Invalid API key"}}
    assert wire.exchange("good").status_code == 200


@pytest.mark.clause("CLOUD-2")
def test_all_keys_can_be_refused(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.refuse_all_keys = True
    assert wire.exchange("good").status_code == 401
    cloud.refuse_all_keys = False
    assert wire.exchange("good").status_code == 200


@pytest.mark.clause("CLOUD-2")
def test_a_request_without_a_key_is_refused(wire: WireClient) -> None:
    assert wire.http.post("/auth/exchange_user_api_key", json={}).status_code == 401


@pytest.mark.clause("CLOUD-2")
def test_the_catalog_lists_the_models_given() -> None:
    with CursorCloud(models=["one", "two"]) as cloud, WireClient(cloud).http as http:
        catalog = http.get("/v1/models", headers={"authorization": "Bearer key"}).json()
    assert catalog == {
        "items": [{"id": "one", "displayName": "one"}, {"id": "two", "displayName": "two"}]
    }


@pytest.mark.clause("CLOUD-2")
@pytest.mark.parametrize(
    ("content_type", "body"), [("application/json", b"{}"), ("application/proto", b"")]
)
def test_any_other_call_gets_an_empty_answer_in_its_content_type(
    wire: WireClient, content_type: str, body: bytes
) -> None:
    response = wire.http.post("/some.Service/Call", headers={"content-type": content_type})
    assert (response.status_code, response.content) == (200, body)
    assert response.headers["content-type"] == content_type


# --- Runs -----------------------------------------------------------------------------------------


@pytest.mark.clause("CLOUD-1")
def test_a_text_is_answered_by_a_text_the_usage_and_the_end(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.brain = lambda run: f"You said {run.text}"
    assert wire.run("hi") == [
        ("text", "You said hi"),
        ("usage", {1: 1, 2: 3, 3: 0, 4: 0}),
        END,
    ]
    assert outcomes(cloud) == ["finished"]


@pytest.mark.clause("CLOUD-4")
def test_each_step_is_a_frame_of_its_own_in_order(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.brain = lambda run: [
        Thinking("h"),
        Thinking("m"),
        ThinkingDone(70),
        Text("a"),
        Text(""),
        Text("b"),
        Usage(1, 2, 3, 4, 5),
    ]
    assert wire.run() == [
        ("thinking", "h"),
        ("thinking", "m"),
        ("thinking done", 70),
        ("text", "a"),
        ("text", ""),
        ("text", "b"),
        ("usage", {1: 1, 2: 2, 3: 3, 4: 4, 5: 5}),
        END,
    ]


@pytest.mark.clause("CLOUD-4")
def test_a_reply_may_be_one_step_or_a_generator(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.brain = lambda run: Text("one")
    assert wire.run()[0] == ("text", "one")
    cloud.brain = lambda run: (Text(word) for word in ("two", "three"))
    assert wire.run()[:2] == [("text", "two"), ("text", "three")]


@pytest.mark.clause("CLOUD-5")
def test_without_a_usage_step_the_words_of_prompt_and_answer_are_counted(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.brain = lambda run: [Thinking("not counted"), Text("two wo"), Text("rds")]
    assert wire.run("a prompt of\nfive words")[-2] == ("usage", {1: 5, 2: 2, 3: 0, 4: 0})


@pytest.mark.clause("CLOUD-4")
def test_an_error_step_ends_the_run_with_its_code_and_nothing_after_it(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.brain = lambda run: [Error("resource_exhausted", "slow down"), Text("never")]
    assert wire.run() == [
        ("end", {"error": {"code": "resource_exhausted", "message": "slow down"}})
    ]
    assert outcomes(cloud) == ["error"]


@pytest.mark.clause("CLOUD-4")
def test_a_delay_holds_back_what_follows_but_not_what_came_before(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.brain = lambda run: [Text("early"), Delay(0.3), Text("late")]
    arrivals = []
    with wire.running() as response:
        begin = time.monotonic()
        for chunk in response.iter_raw():
            arrivals.append((time.monotonic() - begin, read_events(chunk)[0]))
    assert [event for _, event in arrivals] == [("text", "early"), ("text", "late")]
    assert arrivals[0][0] < 0.25
    assert arrivals[1][0] > 0.29


@pytest.mark.clause("CLOUD-4")
def test_a_drop_cuts_the_connection_after_what_came_before(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.brain = lambda run: [Text("half"), Drop(), Text("never")]
    received = []
    with wire.running() as response, pytest.raises(httpx.RemoteProtocolError):
        received.extend(response.iter_raw())
    assert not received or read_events(b"".join(received)) == [("text", "half")]
    assert outcomes(cloud) == ["dropped"]


@pytest.mark.clause("CLOUD-4")
def test_what_was_written_before_a_drop_reaches_the_other_side(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.brain = lambda run: [Text("half"), Drop()]
    with wire.send_run() as connection:
        received = read_all(connection)
    assert received.endswith(b"half\r\n")


@pytest.mark.clause("CLOUD-4")
def test_garbage_goes_into_the_stream_as_it_is(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.brain = lambda run: [Garbage(b"\xff\xfejunk"), Text("x")]
    with wire.running() as response:
        assert response.read().startswith(b"\xff\xfejunk\x00")


@pytest.mark.clause("CLOUD-6")
def test_a_brain_that_raises_fails_the_run_and_is_recorded(
    cloud: CursorCloud, wire: WireClient
) -> None:
    def brain(run: ReceivedRun) -> str:
        raise KeyError("lost")

    cloud.brain = brain
    assert wire.run() == [
        ("end", {"error": {"code": "internal", "message": "the brain failed: KeyError('lost')"}})
    ]
    (error,) = cloud.brain_errors
    assert isinstance(error, KeyError)
    assert outcomes(cloud) == ["error"]


@pytest.mark.clause("CLOUD-6")
def test_a_generator_brain_that_raises_fails_the_run_after_what_it_said(
    cloud: CursorCloud, wire: WireClient
) -> None:
    def brain(run: ReceivedRun) -> Iterator[Step]:
        yield Text("so far")
        pytest.fail("and no further")

    cloud.brain = brain
    text, end = wire.run()
    assert text == ("text", "so far")
    assert end[1]["error"]["code"] == "internal"
    assert isinstance(cloud.brain_errors[0], pytest.fail.Exception)


@pytest.mark.clause("CLOUD-6")
@pytest.mark.parametrize("reply", [None, 5, [Text("a"), "b"], [None], b"bytes"])
def test_a_reply_of_the_wrong_type_fails_the_run(
    cloud: CursorCloud, wire: WireClient, reply: object
) -> None:
    cloud.brain = lambda run: reply
    assert wire.run()[-1][1]["error"]["code"] == "internal"
    assert isinstance(cloud.brain_errors[0], TypeError)


@pytest.mark.clause("CLOUD-6")
def test_the_cloud_goes_on_after_a_failed_brain(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.brain = lambda run: 1 / 0
    wire.run()
    cloud.brain = lambda run: "fine"
    assert wire.run()[0] == ("text", "fine")


@pytest.mark.clause("CLOUD-17")
def test_everything_is_answered_with_an_http_error(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.http_error = 429
    exchanged = wire.exchange()
    assert exchanged.status_code == 429
    assert exchanged.headers["content-type"] == "text/html"
    appended = wire.append("id", b"anything")
    assert (appended.status_code, "<h1>429</h1>" in appended.text) == (429, True)
    assert [request.status for request in cloud.requests] == [429, 429]
    cloud.http_error = None
    assert wire.exchange().status_code == 200


@pytest.mark.clause("CLOUD-7")
def test_a_system_prompt_is_refused_as_cursor_refuses_it(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.system_prompt_allowed = False
    assert wire.run(system="Be brief.") == [
        (
            "end",
            {
                "error": {
                    "code": "invalid_argument",
                    "message": "Custom system prompt is not enabled for this account. "
                    "Contact Cursor support to request access.",
                }
            },
        )
    ]
    assert outcomes(cloud) == ["error"]
    assert wire.run()[-1] == END


@pytest.mark.clause("CLOUD-3")
def test_a_brain_is_given_everything_that_came_with_the_run(
    cloud: CursorCloud, wire: WireClient
) -> None:
    begin = time.monotonic()
    inline = encode_field(2, "uuid") + encode_field(7, "image/png") + encode_field(8, b"\x00\xff")
    blob = encode_field(9, encode_field(1, b"blob id") + encode_field(2, b"\x01\xfe"))
    wire.run(
        "look",
        system="Be brief.",
        images=(inline, blob),
        model="composer-2",
        agent="agent-7",
        request_id="request-7",
        headers={"x-cursor-agent-allowed-tools": "", "X-Other": "1"},
    )
    received = cloud.runs[0].received
    assert (received.text, received.system_prompt) == ("look", "Be brief.")
    assert [image.data for image in received.images] == [b"\x00\xff", b"\x01\xfe"]
    assert [image.mime_type for image in received.images] == ["image/png", ""]
    assert (received.model, received.agent_id) == ("composer-2", "agent-7")
    assert received.request_id == "request-7"
    assert received.allowed_tools == ""
    assert received.headers["x-other"] == "1"
    assert begin < received.received_at < time.monotonic()


@pytest.mark.clause("CLOUD-3")
def test_a_system_prompt_or_tools_header_that_is_not_there_is_none(
    cloud: CursorCloud, wire: WireClient
) -> None:
    wire.run()
    assert cloud.runs[0].received.system_prompt is None
    assert cloud.runs[0].received.allowed_tools is None
    wire.run(system="")
    assert cloud.runs[1].received.system_prompt == ""


@pytest.mark.clause("CLOUD-3")
def test_turns_count_the_messages_to_an_agent_but_not_their_retries(
    cloud: CursorCloud, wire: WireClient
) -> None:
    first = str(uuid.uuid4())
    wire.run(agent="a", request_id=first, headers={"x-original-request-id": first})
    wire.run(agent="a", headers={"x-original-request-id": first})
    wire.run(agent="a", headers={"x-original-request-id": "another"})
    wire.run(agent="b")
    assert [run.received.turn for run in cloud.runs] == [1, 1, 2, 1]


@pytest.mark.clause("CLOUD-1")
def test_the_stream_may_be_asked_for_before_the_message_arrives(
    cloud: CursorCloud, wire: WireClient
) -> None:
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(wire.http.post, RUN, content=run_body("early"))
        cloud.wait_for(lambda c: c.count_requests(RUN) == 1)
        assert cloud.runs == []
        wire.append("early", run_message("hi"))
        assert read_events(stream.result(5).content)[-1] == END


@pytest.mark.clause("CLOUD-1")
def test_a_stream_without_a_message_is_refused_after_a_while(
    cloud: CursorCloud, wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_module, "_PAIRING_SECONDS", 0.05)
    response = wire.http.post(RUN, content=run_body("nobody"))
    assert response.status_code == 400
    assert "no run request came by BidiAppend within 0.05 s" in response.json()["message"]


@pytest.mark.clause("CLOUD-1")
def test_other_client_messages_are_taken_and_ignored(cloud: CursorCloud, wire: WireClient) -> None:
    heartbeat = encode_field(7, b"")
    assert wire.append("some-id", heartbeat).status_code == 200
    assert cloud.runs == []


@pytest.mark.clause("CLOUD-1")
def test_a_message_in_bytes_is_read_like_one_in_hex(cloud: CursorCloud, wire: WireClient) -> None:
    body = encode_field(4, run_message("in bytes")) + encode_field(2, encode_field(1, "id-1"))
    wire.http.post(APPEND, content=body)
    wire.http.post(RUN, content=run_body("id-1"))
    assert cloud.runs[0].received.text == "in bytes"


@pytest.mark.clause("CLOUD-1")
@pytest.mark.parametrize("path", [APPEND, RUN])
@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff", b"\x00\x00\x00\x00\x01"])
def test_a_body_that_is_no_such_message_gets_400(wire: WireClient, path: str, body: bytes) -> None:
    response = wire.http.post(path, content=body)
    if path == APPEND and not body:
        assert response.status_code == 200  # an empty message is a message
    else:
        assert response.status_code == 400
        assert response.json()["code"] == "invalid_argument"


# --- Cancelling -----------------------------------------------------------------------------------


@pytest.mark.clause("CLOUD-8")
@pytest.mark.parametrize(
    "steps",
    [[Hang()], [Text("begun"), Hang()], [Text("begun"), Delay(60)]],
    ids=["before the first token", "hanging", "in a delay"],
)
def test_a_run_whose_reader_hangs_up_is_cancelled_at_once(
    cloud: CursorCloud, wire: WireClient, steps: list[Step]
) -> None:
    cloud.brain = lambda run: steps
    seconds = []
    for count in range(1, 4):
        connection = wire.send_run()
        cloud.wait_for(lambda c: outcomes(c)[-1:] == ["running"])
        connection.recv(65536)
        hung_up_at = time.monotonic()
        connection.close()
        cloud.wait_for(lambda c, count=count: outcomes(c) == ["cancelled"] * count)
        run = cloud.runs[-1]
        assert hung_up_at < run.cancelled_at <= run.ended_at
        seconds.append(run.ended_at - hung_up_at)
    assert min(seconds) < 0.1  # the quickest of three, for the sake of busy machines


@pytest.mark.clause("CLOUD-8")
def test_a_reader_that_waits_for_the_first_token_can_hang_up_too(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.delays = Delays(first_token=60)
    with wire.send_run():
        cloud.wait_for(lambda c: outcomes(c) == ["running"])
    cloud.wait_for(lambda c: outcomes(c) == ["cancelled"], timeout=1)


@pytest.mark.clause("CLOUD-8")
def test_a_generator_brain_is_closed_when_its_run_is_cancelled(
    cloud: CursorCloud, wire: WireClient
) -> None:
    closed = threading.Event()

    def brain(run: ReceivedRun) -> Iterator[Step]:
        try:
            yield Hang()
        finally:
            closed.set()

    cloud.brain = brain
    with wire.send_run():
        cloud.wait_for(lambda c: outcomes(c) == ["running"])
    assert closed.wait(1)


@pytest.mark.clause("CLOUD-8")
def test_a_run_that_was_answered_stays_finished_when_its_reader_hangs_up(
    cloud: CursorCloud, wire: WireClient
) -> None:
    with wire.send_run() as connection:
        while not connection.recv(65536).endswith(b"0\r\n\r\n"):
            pass
    wire.exchange()
    assert outcomes(cloud) == ["finished"]
    assert cloud.runs[0].cancelled_at is None


# --- Delays ---------------------------------------------------------------------------------------


@pytest.mark.clause("CLOUD-9")
@pytest.mark.parametrize(
    ("name", "method", "path"),
    [
        ("key_exchange", "POST", "/auth/exchange_user_api_key"),
        ("privacy", "POST", "/aiserver.v1.DashboardService/GetUserPrivacyMode"),
        ("server_config", "POST", "/aiserver.v1.ServerConfigService/GetServerConfig"),
        ("catalog", "GET", "/v1/models"),
        ("telemetry", "POST", "/aiserver.v1.AnalyticsService/TrackEvents"),
        ("telemetry", "POST", "/aiserver.v1.AnalyticsService/BootstrapStatsig"),
        ("telemetry", "POST", "/aiserver.v1.DashboardService/GetTeamReposOrEmptyIfNotInTeam"),
    ],
)
def test_each_delay_slows_its_own_calls_only(
    cloud: CursorCloud, wire: WireClient, name: str, method: str, path: str
) -> None:
    def seconds() -> float:
        begin = time.monotonic()
        wire.http.request(method, path)
        return time.monotonic() - begin

    cloud.delays = Delays(**{name: 0.05})
    assert seconds() > 0.04
    others = set(vars(Delays())) - {name}
    cloud.delays = Delays(**dict.fromkeys(others, 5.0))
    assert seconds() < 3


@pytest.mark.clause("CLOUD-9")
def test_token_delays_come_before_the_first_and_between_the_others(
    cloud: CursorCloud, wire: WireClient
) -> None:
    cloud.brain = lambda run: [Thinking("a"), ThinkingDone(1), Text("b"), Text("c")]
    cloud.delays = Delays(first_token=0.4, per_token=0.2)
    begin = time.monotonic()
    wire.run()
    assert 0.79 < time.monotonic() - begin < 0.98


@pytest.mark.clause("CLOUD-9")
def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Delays\.catalog must be 0 or more seconds, not -1"):
        Delays(catalog=-1)
