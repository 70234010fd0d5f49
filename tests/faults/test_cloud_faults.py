"""Faults of Cursor's cloud and of the network to it."""

from __future__ import annotations

from typing import Any

import pytest

from langchain_cursor import ChatCursor
from langchain_cursor_fakes import Drop, Error, Garbage, Hang, Text
from tests.conftest import API_KEY
from tests.faults.conftest import MODES, SYNC_MODES, Fake, Real, ask, check, see

Backend = Real | Fake

CODES = [
    *("canceled", "unknown", "invalid_argument", "deadline_exceeded", "not_found"),
    *("already_exists", "permission_denied", "resource_exhausted", "failed_precondition"),
    *("aborted", "out_of_range", "unimplemented", "internal", "unavailable", "data_loss"),
    "unauthenticated",
]
ECHO = f"no good, key {API_KEY}"  # proxies and servers echo what they refuse


def next_call_works(backend: Backend, model: ChatCursor, mode: str) -> None:
    backend.script([Text("works")])
    assert ask(model, mode, timeout=20.0) == "works"


@pytest.mark.clause("FAULT-1")
@pytest.mark.parametrize("code", CODES)
def test_a_run_that_ends_with_a_code(backend: Backend, code: str) -> None:
    model = backend.model(timeout=5.0)
    for mode, steps in [
        ("invoke", [Error(code, ECHO)]),
        ("stream", [Text("half"), Error(code, ECHO)]),
    ]:
        backend.script(steps)
        seen = see(lambda mode=mode: ask(model, mode))
        check(seen, code, 5.0, [API_KEY, *backend.secrets(model)], column=1)
        assert seen.error.code == code
        assert seen.error.run_id
    next_call_works(backend, model, "invoke")


CUT = b"\x00\x00\x00\x01\x00half"  # a frame of 256 bytes that ends after four
NO_MESSAGE = b"\x00\x00\x00\x00\x04\xff\xff\xff\xff"

BROKEN: dict[str, tuple[str, list[Any]]] = {
    "cut before the first token": ("FAULT-7", [Drop()]),
    "cut in mid-answer": ("FAULT-7", [Text("half"), Drop()]),
    "cut in mid-frame": ("FAULT-7", [Text("half"), Garbage(CUT), Drop()]),
    "a frame that is no message": ("FAULT-8", [Text("half"), Garbage(NO_MESSAGE)]),
    "bytes that are no frame": ("FAULT-8", [Garbage(b"<html>")]),
}


@pytest.mark.clause("SECURITY-17")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("clause", "steps"),
    [
        pytest.param(clause, steps, marks=pytest.mark.clause(clause), id=name)
        for name, (clause, steps) in BROKEN.items()
    ],
)
def test_a_stream_that_breaks(backend: Backend, clause: str, steps: list[Any], mode: str) -> None:
    backend.script(steps)
    model = backend.model(timeout=5.0)
    check(see(lambda: ask(model, mode)), clause, 5.0, backend.secrets(model))
    next_call_works(backend, model, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("clause", "steps"),
    [
        pytest.param("FAULT-4", [Hang()], marks=pytest.mark.clause("FAULT-4"), id="first token"),
        pytest.param(
            "FAULT-5", [Text("a"), Hang()], marks=pytest.mark.clause("FAULT-5"), id="mid-answer"
        ),
    ],
)
def test_a_stall(backend: Backend, clause: str, steps: list[Any], mode: str) -> None:
    backend.script(steps)
    limit = 0.1 if backend.name == "fake" else 0.3
    model = backend.model(timeout=limit)
    seen = see(lambda: ask(model, mode))
    check(seen, clause, limit, backend.secrets(model))
    assert seen.seconds > limit * 0.8
    next_call_works(backend, model, mode)


@pytest.mark.clause("FAULT-6")
@pytest.mark.parametrize("mode", SYNC_MODES)
def test_a_stall_without_a_time_limit(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    # The real bridge gives a silent cloud up after 30 s; `test_sdk_fidelity` has the two agree.
    monkeypatch.setattr("langchain_cursor_fakes._sdk_run._KEEPALIVE", 0.05)
    monkeypatch.setattr("langchain_cursor_fakes._sdk_run._STALL", 0.1)
    backend = Fake()
    backend.script([Text("a"), Hang()])
    model = backend.model(timeout=None)
    check(see(lambda: ask(model, mode)), "FAULT-6", 0.1, backend.secrets(model))
    next_call_works(backend, model, mode)
    backend.close()


@pytest.mark.clause("FAULT-2")
def test_a_refused_key(backend: Backend) -> None:
    backend.refuse_keys(True)
    model = backend.own(timeout=5.0)
    for mode in MODES:
        check(see(lambda mode=mode: ask(model, mode)), "FAULT-2", 5.0, backend.secrets(model))
    backend.refuse_keys(False)
    next_call_works(backend, model, "invoke")


@pytest.mark.bridge
@pytest.mark.clause("FAULT-2")
def test_an_executor_that_was_built_with_a_refused_key_is_not_kept(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a catalog at hand it is not the agent that fails, but its run.
    catalog = '[{"id": "composer-2.5", "displayName": "Composer"}]'
    monkeypatch.setenv("CURSOR_SDK_LOCAL_MODEL_CATALOG_JSON", catalog)
    real.refuse_keys(True)
    model = real.own(timeout=5.0)
    for mode in MODES:
        check(see(lambda mode=mode: ask(model, mode)), "FAULT-2", 5.0, real.secrets(model))
    real.refuse_keys(False)
    next_call_works(real, model, "invoke")


@pytest.mark.bridge
@pytest.mark.clause("FAULT-3")
def test_a_cloud_that_cannot_be_reached(real: Real) -> None:
    model = real.own(timeout=5.0, cache_model_catalog=False)
    real.cloud.close()
    try:
        for mode in SYNC_MODES:  # the agent is not made
            seen = see(lambda mode=mode: ask(model, mode))
            check(seen, "FAULT-3", 5.0, real.secrets(model))
            assert "Network request failed" in str(seen.error)
    finally:
        real.cloud.start()
    next_call_works(real, model, "invoke")
    real.cloud.close()
    try:
        for mode in SYNC_MODES:  # the run does not begin
            seen = see(lambda mode=mode: ask(model, mode))
            check(seen, "FAULT-3", 5.0, real.secrets(model))
            assert "ECONNREFUSED" in str(seen.error)
    finally:
        real.cloud.start()
    next_call_works(real, model, "stream")


@pytest.mark.bridge
@pytest.mark.clause("FAULT-9")
@pytest.mark.parametrize(
    ("status", "first", "later"),
    [
        (429, "CursorRateLimitError", "CursorRateLimitError"),
        (500, "CursorAPIError", "CursorAPIError"),
        (502, "CursorAPIError", "CursorConnectionError"),
    ],
)
def test_a_cloud_that_answers_with_an_http_error(
    real: Real, status: int, first: str, later: str
) -> None:
    model = real.own(timeout=5.0, cache_model_catalog=False)
    for error in (first, later):  # when the agent is made, and when the run begins
        real.cloud.http_error = status
        for mode in SYNC_MODES:
            seen = see(lambda mode=mode: ask(model, mode))
            check(seen, "FAULT-9", 5.0, real.secrets(model), error=error)
        real.cloud.http_error = None
        next_call_works(real, model, "invoke")
