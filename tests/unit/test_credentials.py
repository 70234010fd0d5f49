"""The API key comes from the first of three places that has one, and no error ever shows it."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langchain_cursor.credentials import DEFAULT_BACKEND, login_file, resolve_api_key
from langchain_cursor.errors import CursorAuthenticationError

clause = pytest.mark.clause

KEY = "crsr_stored_0123456789"
HOUR_MS = 3_600_000

Store = Callable[..., Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of the test's own, and no variable of Cursor's."""
    for name in list(os.environ):
        if name.startswith("CURSOR_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def login(**changes: Any) -> dict[str, Any]:
    """A login as cursor-sdk 1.1.0 stores it."""
    now = int(time.time() * 1000)
    fields = {
        "version": 1,
        "backendUrl": DEFAULT_BACKEND,
        "apiKey": KEY,
        "createdAtMs": now - HOUR_MS,
        "apiKeyExpiresAtMs": now + HOUR_MS,
        "email": "me@example.com",
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not ...}


@pytest.fixture
def store(home: Path) -> Store:
    """Writes the login file: fields to change (`...` leaves one out), or the text itself."""

    def write(text: str | bytes | None = None, **changes: Any) -> Path:
        path = home / ".cursor" / "sdk" / "auth.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps(login(**changes)) if text is None else text
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(given: str | None = None, base_url: str | None = None) -> str:
    """The message of the error, which names all three ways and shows no key."""
    with pytest.raises(CursorAuthenticationError) as caught:
        resolve_api_key(given, base_url)
    error = caught.value
    assert error.code == "missing_api_key"
    assert not error.is_retryable
    message = str(error)
    for way in ("api_key=", "CURSOR_API_KEY", "log in with the Cursor SDK"):
        assert way in message
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert KEY not in shown
    assert error.__context__ is None  # a JSON error holds the whole file
    return message


# --- the order ---


@clause("CREDENTIALS-1")
def test_the_argument_comes_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURSOR_API_KEY", "crsr_from_environment")
    store()
    assert resolve_api_key("crsr_given") == "crsr_given"


@clause("CREDENTIALS-1")
def test_the_environment_comes_second(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURSOR_API_KEY", "crsr_from_environment")
    store()
    assert resolve_api_key(None) == "crsr_from_environment"


@clause("CREDENTIALS-1")
def test_the_stored_login_comes_last(store: Store) -> None:
    store()
    assert resolve_api_key(None) == KEY


@clause("CREDENTIALS-1")
def test_a_stored_login_that_does_not_serve_is_not_looked_at_when_there_is_a_key(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store("{")
    monkeypatch.setattr(Path, "home", lambda: pytest.fail("looked for a login"))
    assert resolve_api_key("crsr_given") == "crsr_given"


@clause("CREDENTIALS-2")
@pytest.mark.parametrize("blank", ["", " ", "\n", "\t \n"])
def test_a_blank_value_counts_as_none(
    blank: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()
    monkeypatch.setenv("CURSOR_API_KEY", blank)
    assert resolve_api_key(blank) == KEY
    monkeypatch.setenv("CURSOR_API_KEY", "crsr_from_environment")
    assert resolve_api_key(blank) == "crsr_from_environment"
    monkeypatch.delenv("CURSOR_API_KEY")
    store(apiKey=blank)
    assert "holds no key" in refusal(blank)


@clause("CREDENTIALS-2")
def test_blanks_around_a_key_are_taken_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_api_key(" crsr_given\n") == "crsr_given"
    monkeypatch.setenv("CURSOR_API_KEY", "\tcrsr_from_environment\r\n")
    assert resolve_api_key(None) == "crsr_from_environment"
    monkeypatch.delenv("CURSOR_API_KEY")
    store(apiKey=f" {KEY} ")
    assert resolve_api_key(None) == KEY


@clause("CREDENTIALS-2")
@pytest.mark.parametrize("inner", ["\n", " ", "\x00", "\x7f", "é", "\u200b", "\u2026"])
@pytest.mark.parametrize("source", ["argument", "environment", "login"])
def test_a_key_that_cannot_be_sent_is_refused_and_its_place_named(
    inner: str, source: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"crsr_0123{inner}456789"
    if source == "login":
        store(apiKey=key)
    elif source == "environment":
        # An environment cannot hold every character: hand it over as Python would.
        monkeypatch.setattr(os, "environ", {**os.environ, "CURSOR_API_KEY": key})
    with pytest.raises(CursorAuthenticationError) as caught:
        resolve_api_key(key if source == "argument" else None)
    message = str(caught.value)
    place = {"argument": "`api_key`", "environment": "CURSOR_API_KEY", "login": "auth.json"}
    assert f"{place[source]} holds a blank" in message
    assert caught.value.code == "invalid_api_key"
    assert "456789" not in message
    assert "0123" not in message


# --- the stored login ---


@clause("CREDENTIALS-3")
def test_the_login_file_is_the_sdks(home: Path) -> None:
    assert login_file() == home / ".cursor" / "sdk" / "auth.json"


@clause("CREDENTIALS-3")
def test_a_login_without_expiry_and_email_serves(store: Store) -> None:
    store(apiKeyExpiresAtMs=..., email=...)
    assert resolve_api_key(None) == KEY


@clause("CREDENTIALS-3")
def test_fields_that_are_not_known_do_no_harm(store: Store) -> None:
    store(team="x", scopes=[1, 2])
    assert resolve_api_key(None) == KEY


@clause("CREDENTIALS-4")
def test_without_a_login_the_message_says_so(home: Path) -> None:
    assert "there is no stored login in ~/.cursor/sdk/auth.json" in refusal()


@clause("CREDENTIALS-4")
@pytest.mark.parametrize("version", [0, 2, 1.5, -1])
def test_a_login_of_another_version_is_not_used(version: float, store: Store) -> None:
    store(version=version)
    assert f"has version {version}, not 1" in refusal()


@clause("CREDENTIALS-4")
@pytest.mark.parametrize(
    ("ago_ms", "served"), [(-HOUR_MS, True), (0, False), (1, False), (HOUR_MS, False)]
)
def test_a_login_serves_until_it_expires(ago_ms: int, served: bool, store: Store) -> None:
    store(apiKeyExpiresAtMs=int(time.time() * 1000) - ago_ms)
    if served:
        assert resolve_api_key(None) == KEY
    else:
        today = time.strftime("%Y-%m-", time.gmtime(time.time() - ago_ms / 1000))
        assert f"expired on {today}" in refusal()


@clause("CREDENTIALS-4")
def test_the_day_of_expiry_is_told_in_utc(store: Store) -> None:
    store(apiKeyExpiresAtMs=1_700_000_000_000)
    assert "expired on 2023-11-14: log in again" in refusal()


@clause("CREDENTIALS-4")
@pytest.mark.parametrize("expires", ["-Infinity", "-1e300", "NaN", "-" + "9" * 400])
def test_an_expiry_that_is_no_date_has_passed_without_one(expires: str, store: Store) -> None:
    text = json.dumps(login(apiKeyExpiresAtMs="?")).replace('"?"', expires)
    store(text)
    assert "expired: log in again" in refusal()


@clause("CREDENTIALS-5")
def test_a_login_belongs_to_one_backend(store: Store) -> None:
    store(backendUrl="https://other.example")
    message = refusal()
    assert "is for 'https://other.example', not for 'https://api2.cursor.sh'" in message
    assert resolve_api_key(None, "https://other.example") == KEY


@clause("CREDENTIALS-5")
def test_the_backend_is_the_argument_then_the_environment_then_cursors(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(backendUrl="https://other.example")
    monkeypatch.setenv("CURSOR_BACKEND_URL", "https://other.example")
    assert resolve_api_key(None) == KEY
    assert resolve_api_key(None, "") == KEY
    assert "not for 'https://third.example'" in refusal(base_url="https://third.example")
    monkeypatch.setenv("CURSOR_BACKEND_URL", "")
    assert f"not for '{DEFAULT_BACKEND}'" in refusal()


@clause("CREDENTIALS-5")
def test_slashes_at_the_end_of_a_backend_make_no_difference(store: Store) -> None:
    store(backendUrl="https://other.example/")
    assert resolve_api_key(None, "https://other.example//") == KEY
    assert resolve_api_key(None, "https://other.example") == KEY


@clause("CREDENTIALS-6")
@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"apiKey": ...}, "`apiKey` is missing"),
        ({"apiKey": None}, "`apiKey` is of another type"),
        ({"apiKey": 5}, "`apiKey` is of another type"),
        ({"apiKey": [KEY]}, "`apiKey` is of another type"),
        ({"apiKey": {"value": KEY}}, "`apiKey` is of another type"),
        ({"version": ...}, "`version` is missing"),
        ({"version": "1"}, "`version` is of another type"),
        ({"version": True}, "`version` is of another type"),
        ({"version": KEY}, "`version` is of another type"),
        ({"backendUrl": ...}, "`backendUrl` is missing"),
        ({"backendUrl": None}, "`backendUrl` is of another type"),
        ({"backendUrl": [KEY]}, "`backendUrl` is of another type"),
        ({"createdAtMs": ...}, "`createdAtMs` is missing"),
        ({"createdAtMs": "today"}, "`createdAtMs` is of another type"),
        ({"apiKeyExpiresAtMs": "2020-01-01"}, "`apiKeyExpiresAtMs` is of another type"),
        ({"apiKeyExpiresAtMs": None}, "`apiKeyExpiresAtMs` is of another type"),
        ({"apiKeyExpiresAtMs": True}, "`apiKeyExpiresAtMs` is of another type"),
        ({"email": 5}, "`email` is of another type"),
    ],
)
def test_a_login_of_a_foreign_form_is_not_used(
    changes: dict[str, Any], fault: str, store: Store
) -> None:
    store(**changes)
    assert f"is not in the SDK's form: {fault})" in refusal()


@clause("CREDENTIALS-6")
@pytest.mark.parametrize("text", ["[]", "null", "1", f'"{KEY}"', f'["{KEY}"]', "true"])
def test_a_login_that_is_no_object_is_not_used(text: str, store: Store) -> None:
    store(text)
    assert "is not in the SDK's form: it is no object" in refusal()


@clause("CREDENTIALS-6")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        f'{{"apiKey": "{KEY}"',
        f"apiKey = {KEY}",
        b"\xff\xfe\x00",
        b"\xef\xbb\xbf{}",
        "[" * 100_000,
        '{"version": ' + "1" * 5000,
    ],
    ids=["empty", "cut", "cut late", "not json", "utf-16", "mark", "deep", "long number"],
)
def test_a_corrupt_login_is_not_used(text: str | bytes, store: Store) -> None:
    store(text)
    assert "is not JSON" in refusal()


@clause("CREDENTIALS-6")
def test_a_login_that_cannot_be_read_is_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()

    def refuse(self: Path, *args: Any, **kwargs: Any) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    assert "cannot be read: Permission denied" in refusal()


@clause("CREDENTIALS-6")
def test_something_else_in_the_place_of_the_file_is_not_used(home: Path) -> None:
    (home / ".cursor" / "sdk" / "auth.json").mkdir(parents=True)
    assert "cannot be read: Is a directory" in refusal()


@clause("CREDENTIALS-6")
def test_something_else_in_the_place_of_the_directory_is_not_used(home: Path) -> None:
    (home / ".cursor").write_text("")
    assert "cannot be read: Not a directory" in refusal()


@clause("CREDENTIALS-6")
def test_a_link_that_leads_round_is_not_used(home: Path) -> None:
    (home / ".cursor").symlink_to(home / ".cursor")
    assert "cannot be read: " in refusal()


@clause("CREDENTIALS-6")
def test_a_user_without_a_home_gets_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(RuntimeError):
        login_file()
    assert "this user has no home directory" in refusal()
    assert resolve_api_key("crsr_given") == "crsr_given"


# --- no key in any error ---


@clause("CREDENTIALS-7")
@pytest.mark.parametrize(
    "changes",
    [
        {"backendUrl": f"https://{KEY}@other.example"},
        {"backendUrl": f"https://other.example/?key={KEY}"},
        {"apiKey": "plain-key-98765", "backendUrl": "https://other.example/plain-key-98765"},
        {"apiKey": "12345678", "version": 12345678},
        {"email": KEY, "version": 2},
    ],
)
def test_a_key_in_another_field_is_not_shown_either(changes: dict[str, Any], store: Store) -> None:
    store(**changes)
    message = refusal()
    for key in (KEY, "plain-key-98765", "12345678"):
        assert key not in message


@clause("CREDENTIALS-7")
def test_the_password_of_a_backend_is_not_shown(store: Store) -> None:
    store()
    assert "passw0rd" not in refusal(base_url="https://user:passw0rd@other.example")


KEYS = st.text(alphabet="0123456789abcdefghijklmnopqrstuvwxyz_-", min_size=12, max_size=24)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("KEY"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
FIELDS = st.sampled_from(list(login()))


@clause("CREDENTIALS-7")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(key=KEYS, changes=st.dictionaries(FIELDS, VALUES, max_size=4), drop=st.sets(FIELDS))
def test_whatever_stands_in_the_file_is_a_key_or_an_error_without_one(
    key: str, changes: dict[str, Any], drop: set[str], store: Store
) -> None:
    fields = {name: value for name, value in login(apiKey="KEY").items() if name not in drop}
    store(json.dumps({**fields, **changes}).replace("KEY", key))
    try:
        found = resolve_api_key(None)
    except CursorAuthenticationError as error:
        problem: CursorAuthenticationError | None = error
        found = None
    else:
        problem = None
    if problem is None:
        assert found
    else:
        assert key not in str(problem)
        assert problem.__context__ is None


@pytest.mark.clause("PACKAGE-3")
def test_the_module_imports_neither_the_sdk_nor_an_http_client() -> None:
    code = (
        "import langchain_cursor.credentials, sys; print({'cursor_sdk', 'httpx'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
