"""Cassettes: their form, what makes them the same each time, and what is not put up with."""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from packaging.version import Version
from vcr.request import Request

from langchain_cursor_fakes import CursorCloud
from tests.behaviour import cassettes
from tests.behaviour.cassettes import (
    CassetteError,
    Exchange,
    Header,
    Serializer,
    dump,
    find_leaks,
    in_order,
    load,
    normal,
)
from tests.behaviour.collected import Collected
from tests.behaviour.isolation import isolate
from tests.behaviour.recording import INSTALLED, cassette_name, is_recording
from tests.conftest import ROOT, plain_environment

CASSETTES = ROOT / "cassettes"
HEADER = Header(INSTALLED, INSTALLED, "stand-in")
SERVICE = "/sdk.v1.SdkAgentService"


def run_suite(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run this suite's cassettes in a process of their own."""
    arguments = ["tests/behaviour", "-m", "cassette", "-p", "no:cacheprovider", *flags]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


# --- Recorded and played --------------------------------------------------------------------------


@pytest.mark.clause("CASSETTE-1")
def test_they_play_without_a_process_and_without_a_socket(cloud: CursorCloud) -> None:
    """They are played under `isolate`, as the fixture `backend` checks: this is what it does."""
    address = urlsplit(cloud.url)
    with socket.socket() as loopback:
        with pytest.MonkeyPatch.context() as patch:
            isolate(patch)
            with pytest.raises(AssertionError, match="a process was started"):
                subprocess.run([sys.executable])
            for connect in (loopback.connect, loopback.connect_ex):
                with pytest.raises(AssertionError, match="a connection was opened"):
                    connect((address.hostname, address.port))
        loopback.connect((address.hostname, address.port))


AGAIN = [
    "calls/what_reaches_cursor_is_a_plain_model",
    "failures/a_refused_system_prompt_is_inlined_from_then_on",
    "streaming/a_re_ask_inside_a_stream_does_not_show",
    "tools/calls_and_their_results_read_consistently",
]


@pytest.mark.bridge
@pytest.mark.clause("CASSETTE-4")
def test_recording_again_gives_the_same_bytes(tmp_path: Path) -> None:
    only = " or ".join(name.partition("/")[2] for name in AGAIN)
    done = run_suite("--record-mode=rewrite", "--cassettes", str(tmp_path), "-k", only)
    assert done.returncode == 0, done.stdout
    for name in AGAIN:
        again, kept = (Path(where, f"{name}.yaml") for where in (tmp_path, CASSETTES))
        assert again.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8")
        assert again.read_bytes() == kept.read_bytes()


@pytest.mark.clause("CASSETTE-9")
def test_they_are_recorded_whole_or_not_at_all() -> None:
    assert [is_recording(mode) for mode in (None, "none", "rewrite")] == [False, False, True]
    for mode in ("once", "new_episodes", "all"):
        with pytest.raises(pytest.UsageError, match=f"record-mode={mode}: .* recorded whole"):
            is_recording(mode)


@pytest.mark.clause("CASSETTE-6")
def test_every_cassette_has_a_test_and_every_test_its_cassette(collected: Collected) -> None:
    named = {f"{cassette_name(one.id)}.yaml" for one in collected if "[cassette" in one.id}
    found = {path.relative_to(CASSETTES).as_posix() for path in CASSETTES.rglob("*.yaml")}
    assert found - named == set(), "no test plays these: delete them"
    assert named - found == set(), "these are missing: make record"


# --- What is not put up with ----------------------------------------------------------------------

Change = Callable[[str], str]


def _without_the_last(text: str) -> str:
    header, exchanges = load(text)
    return dump(header, exchanges[:-1])


def _with_another(text: str) -> str:
    header, exchanges = load(text)
    return dump(header, [*exchanges, exchanges[-1]])


# Each on a cassette of its own, and a part of what the test that plays it says then.
TAMPERED: dict[str, tuple[str, Change | None, str]] = {
    "a changed prompt": (
        "calls/invoke_answers",
        lambda text: text.replace("say: pong", "say: ping"),
        "-    say: ping\n  +    say: pong",
    ),
    "a changed option": (
        "calls/ainvoke_answers",
        lambda text: text.replace("id: composer-2.5", "id: composer-2", 2),
        "-    id: composer-2\n  +    id: composer-2.5",
    ),
    "a changed type": (
        "calls/a_message_says_what_it_cost_and_where_it_came_from",
        lambda text: text.replace("enabled: true", "enabled: 1"),
        "-      enabled: 1\n  +      enabled: true",
    ),
    "a changed lease, which no caller waits for": (
        "calls/a_conversation_goes_on",
        lambda text: text.replace('"prewarm": true', '"prewarm": 1'),
        "-      prompt: '{\"prewarm\": 1}'\n  +      prompt: '{\"prewarm\": true}'",
    ),
    "a request without an answer": (
        "calls/an_image_is_answered",
        _without_the_last,
        f"has no answer for POST {SERVICE}/CloseAgent: no such request is left",
    ),
    "an answer that nobody asks for": (
        "calls/nothing_leaks_from_one_call_to_the_next",
        _with_another,
        f"holds what nobody asks for:\n  {SERVICE}/CloseAgent",
    ),
    "another format": (
        "calls/reasoning_is_a_content_block",
        lambda text: text.replace("format: 1", "format: 0"),
        "The cassette has format 0, not 1",
    ),
    "a newer SDK": (
        "calls/options_can_be_bound_for_a_call",
        lambda text: re.sub("cursor_sdk: .*", "cursor_sdk: 99.0.0", text),
        f"Recorded with cursor-sdk 99.0.0, but {INSTALLED} is installed, which is older",
    ),
    "another header": (
        "calls/models_can_be_listed",
        lambda text: text.replace("  cloud: stand-in\n", ""),
        "This is no cassette, or a broken one",
    ),
    "no header at all": ("calls/stop_cuts_the_answer", lambda text: "", "This is no cassette"),
    "a secret": (
        "calls/a_system_message_is_heeded",
        lambda text: text.replace("apiKey: <key>", "apiKey: crsr_0123456789abcdef"),
        "The cassette holds an API key (line ",
    ),
    "no file": (
        "calls/tokens_of_the_cache_are_a_part_of_the_input",
        None,
        "There is no cassette",
    ),
}


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the tests say of cassettes that were tampered with; by the names of the cassettes."""
    directory = tmp_path_factory.mktemp("tampered")
    shutil.copytree(CASSETTES, directory / "cassettes")
    for name, change, _ in TAMPERED.values():
        path = directory / "cassettes" / f"{name}.yaml"
        if change is None:
            path.unlink()
            continue
        text = path.read_text(encoding="utf-8")
        assert change(text) != text
        path.write_text(change(text), encoding="utf-8")
    report = directory / "report.xml"
    only = " or ".join(name.partition("/")[2] for name, *_ in TAMPERED.values())
    where = ["--cassettes", str(directory / "cassettes"), f"--junitxml={report}"]
    run_suite(*where, "-k", f"test_calls and ({only})")
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        said = [each.text or "" for each in case.iter() if each.tag in ("error", "failure")]
        found[cassette_name(f"test_calls.py::{case.get('name')}")] = "\n".join(said)
    return found


@pytest.mark.clause("CASSETTE-5")
@pytest.mark.clause("CASSETTE-6")
@pytest.mark.clause("CASSETTE-7")
@pytest.mark.parametrize("what", TAMPERED)
def test_a_test_fails_and_says_why(complaints: dict[str, str], what: str) -> None:
    name, _, wanted = TAMPERED[what]
    # pytest begins each line of an exception with an E.
    said = re.sub(r"^E\b", "", complaints[name], flags=re.M)
    assert " ".join(wanted.split()) in " ".join(said.split())


# --- Their form -----------------------------------------------------------------------------------


texts = st.text(max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(texts, some, max_size=3),
    max_leaves=5,
)
messages = st.dictionaries(texts, values, max_size=3)
some_messages = st.lists(messages, max_size=3)
named = st.just(f"POST {SERVICE}/X")
exchanges = st.one_of(
    st.builds(Exchange, named, messages, messages, st.sampled_from([200, 500])),
    st.builds(Exchange, named, messages, some_messages, st.just(200), messages),
)
few = settings(max_examples=50)


@pytest.mark.clause("CASSETTE-3")
@few
@given(st.lists(exchanges, max_size=3))
def test_what_is_written_is_read(written: list[Exchange]) -> None:
    assert load(dump(HEADER, written)) == (HEADER, written)


@pytest.mark.clause("CASSETTE-3")
@few
@given(exchanges)
def test_what_vcrpy_gets_is_what_was_recorded(recorded: Exchange) -> None:
    text = dump(HEADER, [recorded])
    assume(not list(find_leaks(text)))  # what reads like a key or a path is never played
    (interaction,) = Serializer(lambda: HEADER, INSTALLED).deserialize(text)["interactions"]
    request = Request(**interaction["request"])
    assert cassettes.exchange_of(request, interaction["response"]) == recorded


@pytest.mark.clause("CASSETTE-3")
@pytest.mark.parametrize("ending", [b"\x00\x00\x00\x00\x02{}", b"\x03\x00\x00\x00\x02{}"])
def test_a_stream_without_its_end_is_not_recorded(ending: bytes) -> None:
    response = {
        "status": {"code": 200},
        "headers": {"content-type": ["application/connect+json"]},
        "body": {"string": ending},
    }
    with pytest.raises(CassetteError, match="compressed, or was cut off"):
        cassettes.exchange_of(Request("POST", "http://x/a/Send", "{}", {}), response)


# --- What varies ----------------------------------------------------------------------------------


def _uuid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def _created(kind: str, number: int, prompt: str) -> Exchange:
    mark = {"langchain-cursor": {"prompt": prompt}}
    answer = {"agentId": f"{kind}-{_uuid(number)}"}
    return Exchange(f"POST {SERVICE}/CreateAgent", {"options": {"agents": mark}}, answer)


def _closed(kind: str, number: int) -> Exchange:
    return Exchange(f"POST {SERVICE}/CloseAgent", {"agentId": f"{kind}-{_uuid(number)}"}, {})


@pytest.mark.clause("CASSETTE-4")
@few
@given(st.permutations(["lease", "end 7", "end 5", "end 6"]), st.lists(st.integers(0, 6)))
def test_what_runs_beside_a_call_has_no_order(beside: list[str], places: list[int]) -> None:
    exchanges = {
        "lease": _created("lease", 6, '{"prewarm": true}'),
        "end 7": _closed("agent", 7),
        "end 5": _closed("agent", 5),
        "end 6": _closed("lease", 6),
    }
    happened = [_created("agent", number, "{}") for number in (7, 5)]
    for what, place in zip_longest(beside, places[: len(beside)], fillvalue=0):
        happened.insert(place, exchanges[str(what)])
    told = in_order(happened)
    assert [(each.method, each.body.get("agentId") or each.answer["agentId"]) for each in told] == [
        ("CreateAgent", "lease-1"),
        ("CreateAgent", "agent-1"),
        ("CreateAgent", "agent-2"),
        ("CloseAgent", "agent-1"),
        ("CloseAgent", "agent-2"),
        ("CloseAgent", "lease-1"),
    ]


@pytest.mark.clause("CASSETTE-4")
def test_ids_keys_paths_ports_and_times_are_replaced() -> None:
    call, other = "call_" + "0123456789abcdef" * 2, "call_" + "fedcba9876543210" * 2
    message = {
        "apiKey": "crsr_0123456789abcdef",
        "local": {"cwd": ["/tmp/langchain-cursor-abcd1234/workspace"]},
        "text": f"{other} {call} {other} at http://127.0.0.1:4711/x",
        "path": "in /tmp/langchain-cursor-abcd_234/home",
        "durationMs": "17",
        "thinking_duration_ms": 18,
        "createdAt": "2026-01-02T03:04:05.678Z",
    }
    asked = Request("POST", f"http://127.0.0.1:4711{SERVICE}/X", json.dumps(message), {"a": "b"})
    kept = normal(asked)
    assert (kept.method, kept.path, dict(kept.headers)) == ("POST", f"{SERVICE}/X", {})
    assert json.loads(kept.body) == {
        "apiKey": "<key>",
        "local": {"cwd": ["<workspace>"]},
        "text": "call_1 call_2 call_1 at http://127.0.0.1:<port>/x",
        "path": "in <scratch>/home",
        "durationMs": "1",
        "thinking_duration_ms": 1,
        "createdAt": "2000-01-01T00:00:00.000Z",
    }
    assert json.loads(normal(kept).body) == json.loads(kept.body)


# --- Leaks ----------------------------------------------------------------------------------------

LEAKS = {
    "an API key": [
        *("apiKey: crsr_0123456789", "key_abcdefgh", "sk_12345678", "CRSR-0123456789"),
        *("sk-proj-abcdefghijklmnop", "ghp_0123456789abcdef", "AKIA0123456789ABCDEF"),
        *("xoxb-0123456789", "AIza0123456789abcdefghij", "-----BEGIN RSA PRIVATE KEY-----"),
    ],
    "a bearer token": ["authorization: Bearer abc", "Authorization: Basic abc"],
    "a password": ["password: hunter2", "postgres://user:pw@host/db", "'passwd'='x'"],
    "a signed token": ["eyJhbGciOiJub25lIn0.e30.x"],
    "a path of a machine": [
        *("in /home/me", "cwd: /tmp/x/y", "'/Users/me'", "C:\\Users", "HOME=/home/me", "cwd=/tmp"),
        *("file:///x", "~/notes", ">/root", "\\\\server\\share"),
    ],
    "a port": ["http://127.0.0.1:4711/", "localhost:80", "[::1]:4711", "0.0.0.0:80"],
    "an id that was not replaced": [
        *(_uuid(1), f"agent-{_uuid(2)}", "call_" + "0" * 32, _uuid(0xABCDEF).upper(), "ab" * 16),
    ],
    "a time": ["2026-01-02T03:04:05.678Z", "2026-01-02 03:04:05", "at 1767323045678"],
    "an address": ["somebody@example.org"],
}


@pytest.mark.clause("CASSETTE-7")
@pytest.mark.parametrize(("what", "line"), [(what, one) for what in LEAKS for one in LEAKS[what]])
def test_what_belongs_in_no_repository_is_found(what: str, line: str) -> None:
    assert f"{what} (line 2)" in list(find_leaks(f"one\n{line}\nthree"))
    assert line not in str(list(find_leaks(f"one\n{line}")))


@pytest.mark.clause("CASSETTE-7")
def test_it_is_found_in_the_bytes_of_an_error_too() -> None:
    for start in range(3):
        data = base64.urlsafe_b64encode(b"\x1a\xb9\x01"[:start] + b"failed with crsr_0123456789abc")
        assert list(find_leaks(data.decode())) == ["an API key (line 1)"]


@pytest.mark.clause("CASSETTE-7")
@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("see /home/me/notes", "a path of a machine"),
        ("on my-computer.", "something of this machine"),
    ],
)
def test_it_is_not_even_recorded(said: str, what: str) -> None:
    body = json.dumps({"text": said})
    interaction = {
        "request": {"method": "POST", "uri": f"http://x{SERVICE}/B", "body": body, "headers": {}},
        "response": {"status": {"code": 200}, "headers": {}, "body": {"string": b"{}"}},
    }
    serializer = Serializer(lambda: HEADER, INSTALLED, ["my-computer", "me"])
    with pytest.raises(
        CassetteError, match=rf"Not recorded, for it would hold {what} \(line \d+\)$"
    ):
        serializer.serialize({"interactions": [interaction]})


@pytest.mark.clause("CASSETTE-2")
@pytest.mark.clause("CASSETTE-7")
def test_all_of_them_are_clean_and_say_what_they_are() -> None:
    found = sorted(CASSETTES.rglob("*.yaml"))
    assert found
    for path in found:
        text = path.read_text(encoding="utf-8")
        assert list(find_leaks(text)) == [], path
        header, exchanges = load(text)
        old = path.stem.startswith("an_older_sdk")
        assert header.extension == (None if old else header.cursor_sdk)
        assert Version(header.cursor_sdk) <= Version(INSTALLED)
        assert exchanges
