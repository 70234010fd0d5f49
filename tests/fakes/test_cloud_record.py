"""The stand-in cloud: what it records, and waiting for it."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from langchain_cursor_fakes import (
    CursorCloud,
    Delays,
    fingerprint,
)
from tests.fakes.wire_client import (
    APPEND,
    RUN,
    WireClient,
    outcomes,
)

END = ("end", {})


@pytest.mark.clause("CLOUD-10")
def test_every_request_is_recorded_with_its_status(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.refuse_all_keys = True
    begin = time.monotonic()
    wire.http.get("/v1/models?q=1", headers={"X-Thing": "Value"})
    wire.run()
    models, append, run = cloud.requests
    assert (models.method, models.path, models.status) == ("GET", "/v1/models", 401)
    assert models.headers["x-thing"] == "Value"
    assert begin < models.at < time.monotonic()
    assert (append.path, append.status) == (APPEND, 200)
    assert (run.path, run.status) == (RUN, 200)


@pytest.mark.clause("CLOUD-10")
def test_a_request_is_recorded_before_it_is_answered(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.delays = Delays(key_exchange=0.1)
    with ThreadPoolExecutor(1) as pool:
        exchange = pool.submit(wire.exchange)
        cloud.wait_for(lambda c: c.key_exchanges == 1)
        assert cloud.requests[0].status is None
        exchange.result()
    assert cloud.requests[0].status == 200


@pytest.mark.clause("CLOUD-10")
def test_calls_of_interest_are_counted(cloud: CursorCloud, wire: WireClient) -> None:
    for _ in range(3):
        wire.exchange()
    wire.http.get("/v1/models")
    for _ in range(2):
        wire.http.post("/aiserver.v1.DashboardService/GetTeamReposOrEmptyIfNotInTeam")
    assert (cloud.key_exchanges, cloud.catalog_fetches, cloud.executor_builds) == (3, 1, 2)


@pytest.mark.clause("CLOUD-10")
def test_clear_forgets_everything_recorded(cloud: CursorCloud, wire: WireClient) -> None:
    cloud.brain = lambda run: 1 / 0
    wire.exchange()
    wire.run()
    cloud.clear()
    assert (cloud.requests, cloud.runs, cloud.brain_errors) == ([], [], [])
    assert cloud.key_exchanges == 0


@pytest.mark.clause("CLOUD-10")
def test_lists_that_were_read_do_not_change_any_more(cloud: CursorCloud, wire: WireClient) -> None:
    wire.exchange()
    before = cloud.requests
    wire.exchange()
    cloud.requests.clear()
    assert (len(before), len(cloud.requests)) == (1, 2)


@pytest.mark.clause("CLOUD-12")
def test_no_secret_is_kept_or_printed(
    cloud: CursorCloud, wire: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    cloud.refused_keys = {"key_refused_secret"}
    token = wire.exchange("key_secret").json()["accessToken"]
    wire.exchange("key_refused_secret")
    wire.http.get("/v1/models", headers={"authorization": "Bearer key_secret"})
    wire.run(
        headers={
            "authorization": f"Bearer {token}",
            "x-blob-encryption-key": "blob_secret",
            "cookie": "cookie_secret",
        }
    )
    secrets = ["key_secret", "key_refused_secret", token, "blob_secret", "cookie_secret"]
    kept = [dict(request.headers) for request in cloud.requests]
    kept += [vars(run.received) for run in cloud.runs]
    text = "\n".join([repr(kept), repr(cloud), repr(cloud.requests), repr(cloud.runs)])
    text += caplog.text
    assert [secret for secret in secrets if secret in text] == []
    assert cloud.requests[0].headers["authorization"] == f"Bearer {fingerprint('key_secret')}"


@pytest.mark.clause("CLOUD-12")
def test_a_fingerprint_is_short_and_tells_keys_apart() -> None:
    assert fingerprint("a") != fingerprint("b")
    assert fingerprint("a") == fingerprint("a")
    assert len(fingerprint("a" * 1000)) == len("sha256:") + 12


@pytest.mark.clause("CLOUD-10")
def test_waiting_ends_as_soon_as_the_predicate_holds(cloud: CursorCloud, wire: WireClient) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cloud.wait_for, lambda c: c.key_exchanges == 2)
        wire.exchange()
        time.sleep(0.05)
        assert not waiting.done()
        wire.exchange()
        waiting.result(1)


@pytest.mark.clause("CLOUD-10")
def test_waiting_in_vain_tells_what_was_recorded(cloud: CursorCloud, wire: WireClient) -> None:
    wire.run(model="composer-9")
    with pytest.raises(TimeoutError) as caught:
        cloud.wait_for(lambda c: len(c.runs) == 2, timeout=0.05)
    message = str(caught.value)
    assert "not so within 0.05 s" in message
    assert "1 runs, 2 requests, 0 brain errors" in message
    assert "('composer-9', 'finished')" in message
    assert f"POST {RUN} 200" in message


@pytest.mark.clause("CLOUD-10")
@pytest.mark.asyncio
async def test_a_coroutine_can_wait_while_its_loop_goes_on(
    cloud: CursorCloud, wire: WireClient
) -> None:
    waiting = asyncio.ensure_future(cloud.await_for(lambda c: c.key_exchanges == 1))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await asyncio.to_thread(wire.exchange)
    await asyncio.wait_for(waiting, 1)
    with pytest.raises(TimeoutError, match=r"not so within 0\.05 s"):
        await cloud.await_for(lambda c: c.key_exchanges == 2, timeout=0.05)
    await cloud.await_for(lambda c: c.key_exchanges == 1, timeout=0)


@pytest.mark.clause("CLOUD-10")
@pytest.mark.asyncio
async def test_a_cancelled_wait_leaves_nothing_behind(cloud: CursorCloud) -> None:
    waiting = asyncio.ensure_future(cloud.await_for(lambda c: c.runs))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cloud._listeners == set()


@pytest.mark.clause("CLOUD-10")
def test_a_wait_whose_event_loop_was_closed_does_not_disturb_the_cloud(
    cloud: CursorCloud, wire: WireClient
) -> None:
    loop = asyncio.new_event_loop()
    wait = cloud.await_for(lambda c: c.runs)
    task = loop.create_task(wait)
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False  # the loop is closed under it, that is the point
    loop.close()
    assert wire.run()[-1] == END
    wait.close()


@pytest.mark.clause("CLOUD-10")
def test_the_record_can_be_read_while_it_grows(cloud: CursorCloud, wire: WireClient) -> None:
    done = threading.Event()

    def read() -> int:
        most = 0
        while not done.is_set():
            most = max(most, len([run.outcome for run in cloud.runs]))
        return most

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        for _ in range(50):
            wire.run()
        done.set()
        assert all(0 < reader.result(5) <= 50 for reader in readers)
    assert outcomes(cloud) == ["finished"] * 50
