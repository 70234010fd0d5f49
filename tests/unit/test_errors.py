"""Every failure becomes an exception whose class says what it is and whether to try again."""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys
import time
import traceback
from types import ModuleType
from typing import Any

import cursor_sdk
import langchain_core.exceptions as langchain
import pytest
from cursor_sdk import errors as sdk
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from langchain_cursor import errors
from langchain_cursor.errors import (
    CursorAPIError,
    CursorAuthenticationError,
    CursorBridgeError,
    CursorCancelledError,
    CursorClosedError,
    CursorConnectionError,
    CursorContractError,
    CursorError,
    CursorInvalidRequestError,
    CursorModelNotFoundError,
    CursorPermissionDeniedError,
    CursorRateLimitError,
    CursorStartupError,
    CursorTimeoutError,
    redact,
    run_error,
    sdk_error,
    with_sdk_class,
)

clause = pytest.mark.clause

# Our class: is a retry worth it, is it a builtin TimeoutError, LangChain's class.
TREE: dict[type[CursorError], tuple[bool, bool, type[Exception]]] = {
    CursorError: (False, False, langchain.ModelError),
    CursorAuthenticationError: (False, False, langchain.ModelAuthenticationError),
    CursorPermissionDeniedError: (False, False, langchain.ModelPermissionDeniedError),
    CursorInvalidRequestError: (False, False, langchain.ModelInvalidRequestError),
    CursorModelNotFoundError: (False, False, langchain.ModelNotFoundError),
    CursorRateLimitError: (True, False, langchain.ModelRateLimitError),
    CursorTimeoutError: (True, True, langchain.ModelTimeoutError),
    CursorConnectionError: (True, True, langchain.ModelConnectionError),
    CursorBridgeError: (True, True, langchain.ModelConnectionError),
    CursorAPIError: (True, True, langchain.ModelAPIError),
    CursorContractError: (False, False, langchain.ModelError),
    CursorCancelledError: (False, False, langchain.ModelError),
    CursorStartupError: (False, False, langchain.ModelError),
    CursorClosedError: (False, False, langchain.ModelError),
}
SPECIFIC = [
    langchain.ModelAuthenticationError,
    langchain.ModelPermissionDeniedError,
    langchain.ModelInvalidRequestError,
    langchain.ModelNotFoundError,
    langchain.ModelRateLimitError,
    langchain.ModelTimeoutError,
    langchain.ModelConnectionError,
    langchain.ModelAPIError,
]

SANDBOX = (
    "Local SDK sandboxing was requested, but sandboxing is not supported in this environment. "
    "Disable local.sandboxOptions.enabled or remove ~/.cursor/sandbox.json to run without "
    "sandboxing."
)
SYSTEM_PROMPT = (
    "[invalid_argument] Custom system prompt is not enabled for this account. Contact Cursor "
    "support to request access."
)


def our_class(error: CursorError) -> type[CursorError]:
    """The class of this package that an exception has, without the SDK's part."""
    return next(base for base in type(error).__mro__ if base in TREE)


def full(cls: type[CursorError]) -> CursorError:
    return cls(
        "it went wrong",
        code="unavailable",
        run_id="run-1",
        usage={"input_tokens": 3},
        retry_after=1.5,
    )


@pytest.mark.clause("ERRORS-1")
def test_the_tree_lists_every_class_of_the_module() -> None:
    found = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, CursorError)
    }
    assert found == set(TREE)
    drawn = errors.__doc__ or ""
    for cls in TREE:
        line = next(line for line in drawn.splitlines() if cls.__name__ in line.split("─ ")[-1])
        assert line.endswith("(retryable)") is TREE[cls][0]


@clause("ERRORS-1")
@pytest.mark.parametrize("cls", TREE)
def test_a_class_says_whether_to_retry_and_is_langchains_class(cls: type[CursorError]) -> None:
    retryable, timeout, theirs = TREE[cls]
    error = full(cls)
    assert cls.is_retryable is error.is_retryable is retryable
    assert isinstance(error, TimeoutError) is timeout
    assert isinstance(error, CursorError)
    assert isinstance(error, langchain.ModelError)
    assert {base for base in SPECIFIC if isinstance(error, base)} == {theirs} - {
        langchain.ModelError
    }


@clause("ERRORS-2")
@pytest.mark.parametrize("cls", TREE)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling_with_all_its_attributes(
    cls: type[CursorError], protocol: int
) -> None:
    error = full(cls)
    error.extra = "kept"  # type: ignore[attr-defined]  # what add_note and others do
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is cls
    assert vars(again) == vars(error)
    assert (str(again), again.args, again.is_retryable) == (
        str(error),
        error.args,
        error.is_retryable,
    )


@clause("ERRORS-2")
@pytest.mark.parametrize("cls", TREE)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_is_another_object_that_says_the_same(
    cls: type[CursorError], duplicate: Any
) -> None:
    error = full(cls)
    again = duplicate(error)
    assert again is not error
    assert type(again) is cls
    assert vars(again) == vars(error)
    assert str(again) == "it went wrong"


@clause("ERRORS-2")
def test_an_error_without_a_message_is_still_one() -> None:
    for cls in TREE:
        assert str(pickle.loads(pickle.dumps(cls()))) == ""
        assert (cls().code, cls().run_id, cls().usage, cls().retry_after) == (None,) * 4


@clause("ERRORS-2")
def test_a_contract_error_is_what_output_parsers_raise_and_keeps_the_reply() -> None:
    error = CursorContractError("no such tool", reason="unknown-tool", llm_output="{}", run_id="r")
    assert isinstance(error, langchain.OutputParserException)
    for again in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert str(again) == "no such tool"
        assert (again.reason, again.llm_output, again.run_id) == ("unknown-tool", "{}", "r")
        assert vars(again) == vars(error)


# --- the table ---

RUNS = [
    ("[resource_exhausted] slow down", CursorRateLimitError),
    ("[unavailable] busy", CursorConnectionError),
    ("[unauthenticated] log in", CursorAuthenticationError),
    ("[permission_denied] not on this plan", CursorPermissionDeniedError),
    ("[deadline_exceeded] too slow", CursorTimeoutError),
    ("[internal] oops", CursorAPIError),
    ("[aborted] oops", CursorAPIError),
    ("[data_loss] oops", CursorAPIError),
    ("[unknown] oops", CursorAPIError),
    ("[failed_precondition] no", CursorInvalidRequestError),
    ("[invalid_argument] no", CursorInvalidRequestError),
    ("[out_of_range] no", CursorInvalidRequestError),
    ("[unimplemented] no", CursorInvalidRequestError),
    ("[not_found] no", CursorInvalidRequestError),
    ("[canceled] stopped", CursorCancelledError),
    ("[cancelled] stopped", CursorCancelledError),
    ("[a_code_of_tomorrow] hm", CursorAPIError),
    ("no code at all", CursorAPIError),
    ("", CursorAPIError),
    # Seen with cursor-sdk 1.1.0.
    (SYSTEM_PROMPT, CursorInvalidRequestError),
    ("[unknown] Invalid API key", CursorAuthenticationError),
    ("[unknown] Invalid User API Key", CursorAuthenticationError),
    ("[unknown] The API key of this team has expired", CursorAuthenticationError),
    (
        "[unknown] Failed to connect to API key exchange endpoint: fetch failed",
        CursorConnectionError,
    ),
    ("[invalid_argument] Cannot use this model: x. Available models: y", CursorModelNotFoundError),
    # A clear code says more than the text.
    ("[resource_exhausted] fetch failed: too many requests", CursorRateLimitError),
    ("[deadline_exceeded] failed to connect in time", CursorTimeoutError),
    # Only a code in brackets at the beginning is one.
    ("the server said [resource_exhausted]", CursorAPIError),
    ("[Errno 111] refused", CursorAPIError),
]


@clause("ERRORS-3")
@pytest.mark.parametrize(("text", "cls"), RUNS)
def test_a_failed_run_is_classed_by_its_code_and_text(text: str, cls: type[CursorError]) -> None:
    error = run_error(text, run_id="run-7", usage={"output_tokens": 4})
    assert type(error) is cls
    assert (error.run_id, error.usage) == ("run-7", {"output_tokens": 4})


@clause("ERRORS-3")
def test_the_code_in_brackets_moves_to_the_attribute() -> None:
    error = run_error("[resource_exhausted] slow down")
    assert error.code == "resource_exhausted"
    assert "[resource_exhausted]" not in str(error)
    assert "slow down (resource_exhausted)" in str(error)


@clause("ERRORS-3")
@pytest.mark.parametrize(
    ("code", "text", "cls", "kept"),
    [
        ("rate_limited", "slow down", CursorRateLimitError, "rate_limited"),
        ("SDK_ERROR_CODE_PLAN_REQUIRED", "no", CursorPermissionDeniedError, "plan_required"),
        ("rate_limited", "[unknown] slow down", CursorRateLimitError, "rate_limited"),
        ("unknown", "[unauthenticated] no", CursorAuthenticationError, "unauthenticated"),
        ("some_new_code", "[unavailable] no", CursorConnectionError, "unavailable"),
        ("unknown", "Invalid API key", CursorAuthenticationError, "unknown"),
        ("", "[internal] oops", CursorAPIError, "internal"),
    ],
)
def test_a_code_given_apart_and_one_in_the_text_are_both_heard(
    code: str, text: str, cls: type[CursorError], kept: str
) -> None:
    error = run_error(text, code=code)
    assert (type(error), error.code) == (cls, kept)


@clause("ERRORS-3")
def test_a_reason_of_many_lines_is_kept_whole() -> None:
    assert "first\nsecond" in str(run_error("[internal] first\nsecond"))


SDK = [
    (sdk.AuthenticationError("no", code="unauthenticated"), CursorAuthenticationError),
    (sdk.PermissionDeniedError("no"), CursorPermissionDeniedError),
    (sdk.RateLimitError("no"), CursorRateLimitError),
    (sdk.BadRequestError("no", code="invalid_argument", status=200), CursorInvalidRequestError),
    (sdk.BadRequestError(SANDBOX, code="invalid_argument"), CursorInvalidRequestError),
    (
        sdk.BadRequestError("Cannot use this model: X. Available models: Y"),
        CursorModelNotFoundError,
    ),
    (sdk.ConfigurationError("no"), CursorInvalidRequestError),
    (sdk.ConfigurationError("no key", code="missing_api_key"), CursorAuthenticationError),
    (
        sdk.ConfigurationError("no", proto_error_code="SDK_ERROR_CODE_INVALID_MODEL"),
        CursorModelNotFoundError,
    ),
    (
        sdk.IntegrationNotConnectedError("connect it", provider="github", help_url="https://h"),
        CursorInvalidRequestError,
    ),
    (sdk.UnsupportedRunOperationError("cancel"), CursorInvalidRequestError),
    (sdk.APITimeoutError("Bridge request timed out: ReadTimeout: "), CursorTimeoutError),
    (sdk.NetworkError("Bridge request failed: ReadError: "), CursorConnectionError),
    (sdk.NetworkError("too slow", code="deadline_exceeded"), CursorTimeoutError),
    (sdk.NetworkError("busy", code="unavailable"), CursorConnectionError),
    (sdk.InternalServerError("oops", code="internal", status=500), CursorAPIError),
    (
        sdk.InternalServerError("Network request failed", code="internal", status=500),
        CursorConnectionError,
    ),
    (sdk.NotFoundError("gone", code="not_found"), CursorAPIError),
    (sdk.AgentNotFoundError("gone", code="not_found"), CursorAPIError),
    (sdk.AgentBusyError("busy", code="failed_precondition"), CursorAPIError),
    (sdk.CursorSDKError("stopped", code="canceled"), CursorCancelledError),
    (sdk.CursorSDKError("no", code="unimplemented"), CursorInvalidRequestError),
    (sdk.CursorSDKError("no", code="failed_precondition"), CursorInvalidRequestError),
    (sdk.CursorSDKError("oops", code="unknown"), CursorAPIError),
    (
        sdk.CursorSDKError("no", proto_error_code="SDK_ERROR_CODE_PLAN_REQUIRED"),
        CursorPermissionDeniedError,
    ),
    (sdk.CursorSDKError("Bridge request failed with HTTP 401", status=401),
     CursorAuthenticationError),
    (sdk.CursorSDKError("Bridge request failed with HTTP 403", status=403),
     CursorPermissionDeniedError),
    (sdk.CursorSDKError("Bridge request failed with HTTP 404", status=404),
     CursorInvalidRequestError),
    (sdk.CursorSDKError("Bridge request failed with HTTP 429", status=429), CursorRateLimitError),
    (sdk.CursorSDKError("Bridge request failed with HTTP 502", status=502),
     CursorConnectionError),
    (sdk.CursorSDKError("Bridge request failed with HTTP 504", status=504), CursorTimeoutError),
    (sdk.CursorSDKError("Bridge request failed with HTTP 500", status=500), CursorAPIError),
    (sdk.CursorSDKError("Bridge returned invalid JSON"), CursorAPIError),
    (sdk.CursorAgentError("oops"), CursorAPIError),
]  # fmt: skip


@clause("ERRORS-4")
@pytest.mark.parametrize(("raised", "cls"), SDK, ids=[repr(raised)[:70] for raised, _ in SDK])
def test_what_the_sdk_raises_is_classed_by_code_text_and_class(
    raised: sdk.CursorAgentError, cls: type[CursorError]
) -> None:
    error = sdk_error(raised)
    assert our_class(error) is cls
    assert raised.message.rstrip(".: ") in str(error)


@clause("ERRORS-4")
@pytest.mark.parametrize(
    ("code", "proto", "cls"),
    [
        ("resource_exhausted", "SDK_ERROR_CODE_RATE_LIMIT_EXCEEDED", CursorRateLimitError),
        ("failed_precondition", "SDK_ERROR_CODE_AGENT_BUSY", CursorAPIError),
        ("not_found", "SDK_ERROR_CODE_AGENT_NOT_FOUND", CursorAPIError),
        ("unauthenticated", "SDK_ERROR_CODE_UNAUTHORIZED", CursorAuthenticationError),
        ("internal", "SDK_ERROR_CODE_INTERNAL_ERROR", CursorAPIError),
        ("internal", "SDK_ERROR_CODE_USAGE_LIMIT_EXCEEDED", CursorRateLimitError),
        ("failed_precondition", "SDK_ERROR_CODE_CLIENT_CANCELLED", CursorCancelledError),
        ("resource_exhausted", "", CursorRateLimitError),
    ],
)
def test_what_the_bridge_sends_is_classed_as_the_sdk_reads_it(
    code: str, proto: str, cls: type[CursorError]
) -> None:
    raised = sdk.error_from_connect_payload(
        {
            "code": code,
            "message": "m",
            "details": [{"debug": {"sdkErrorCode": proto, "message": "m", "retryAfter": "2.500s"}}],
        },
        status=200,
    )
    error = sdk_error(raised)
    assert our_class(error) is cls
    assert error.retry_after == 2.5


@clause("ERRORS-4")
@pytest.mark.parametrize("cls", [AttributeError, TypeError, RuntimeError, OSError, KeyError])
def test_what_no_table_knows_is_no_passing_failure(cls: type[Exception]) -> None:
    error = sdk_error(cls("whoops"))
    assert type(error) is CursorError
    assert not error.is_retryable
    assert cls.__name__ in str(error)
    assert "whoops" in str(error)


@clause("ERRORS-4")
@pytest.mark.parametrize(
    ("raised", "cls"),
    [
        (TimeoutError("slow"), CursorTimeoutError),
        (ConnectionRefusedError("no"), CursorConnectionError),
        (ConnectionResetError(), CursorConnectionError),
    ],
)
def test_builtin_timeouts_and_connection_failures_are_classed_too(
    raised: Exception, cls: type[CursorError]
) -> None:
    assert type(sdk_error(raised)) is cls


class Odd(Exception):
    """An exception whose attributes are not what the SDK's are."""

    code = 14
    message = None
    retry_after = object()
    status = "busy"


@clause("ERRORS-4")
def test_attributes_of_other_kinds_do_no_harm() -> None:
    error = sdk_error(Odd("whoops"))
    assert (error.code, error.retry_after) == (None, None)
    assert "whoops" in str(error)
    assert "Odd" in str(sdk_error(Odd()))


# --- the SDK's classes ---

OF_SDK = {
    CursorAuthenticationError: sdk.AuthenticationError,
    CursorPermissionDeniedError: sdk.PermissionDeniedError,
    CursorInvalidRequestError: sdk.BadRequestError,
    CursorModelNotFoundError: sdk.BadRequestError,
    CursorRateLimitError: sdk.RateLimitError,
    CursorTimeoutError: sdk.APITimeoutError,
    CursorConnectionError: sdk.NetworkError,
    CursorBridgeError: sdk.NetworkError,
    CursorAPIError: sdk.InternalServerError,
    CursorCancelledError: sdk.CursorAgentError,
}


@clause("ERRORS-5")
@pytest.mark.parametrize(("cls", "theirs"), OF_SDK.items())
def test_ours_and_the_sdks_class_in_one(
    cls: type[CursorError], theirs: type[sdk.CursorAgentError]
) -> None:
    both = with_sdk_class(cls, theirs)
    error: Any = full(both)
    assert {cls, theirs} < set(both.__mro__)
    assert vars(error).items() >= vars(full(cls)).items()
    assert error.is_retryable is TREE[cls][0]
    assert isinstance(error, TimeoutError) is TREE[cls][1]
    assert (str(error), error.args) == ("it went wrong", ("it went wrong",))
    assert error.status_code is None
    assert repr(error).startswith(f"{cls.__name__}('it went wrong'")
    assert with_sdk_class(cls, theirs) is both
    assert (both.__name__, both.__module__) == (cls.__name__, cls.__module__)


@clause("ERRORS-5")
@pytest.mark.parametrize(("text", "cls"), RUNS)
def test_a_failed_run_is_the_sdks_class_too(text: str, cls: type[CursorError]) -> None:
    error: Any = run_error(text, sdk=cursor_sdk)
    assert our_class(error) is cls
    assert isinstance(error, OF_SDK[cls])
    assert error.is_retryable is TREE[cls][0]
    assert str(error) == str(run_error(text))


@clause("ERRORS-5")
@pytest.mark.parametrize(("raised", "cls"), SDK, ids=[repr(raised)[:70] for raised, _ in SDK])
def test_who_catches_the_sdks_class_catches_ours(
    raised: sdk.CursorAgentError, cls: type[CursorError]
) -> None:
    error = sdk_error(raised)
    plain = next(
        base
        for base in type(raised).__mro__
        if base not in (sdk.IntegrationNotConnectedError, sdk.UnsupportedRunOperationError)
    )
    assert isinstance(error, plain)
    assert error.is_retryable is TREE[cls][0]
    assert error.status_code == raised.status_code  # type: ignore[attr-defined]  # the SDK's


@clause("ERRORS-5")
def test_the_sdks_plain_attributes_are_kept() -> None:
    raised = sdk.IntegrationNotConnectedError(
        "connect it",
        provider="github",
        help_url="https://help",
        request_id="req-1",
        status=412,
        headers={"x": "y"},
    )
    kept: Any = sdk_error(raised)
    assert (kept.provider, kept.help_url) == ("github", "https://help")
    assert (kept.request_id, kept.status) == ("req-1", 412)
    assert kept.headers == {}  # only what is plain


@clause("ERRORS-5")
@pytest.mark.parametrize(("raised", "cls"), SDK, ids=[repr(raised)[:70] for raised, _ in SDK])
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_an_error_of_both_classes_survives_copying_and_pickling(
    raised: sdk.CursorAgentError, cls: type[CursorError], duplicate: Any
) -> None:
    error = sdk_error(raised)
    again = duplicate(error)
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)


@clause("ERRORS-5")
def test_where_the_sdk_is_not_loaded_a_pickle_opens_as_ours_alone() -> None:
    data = pickle.dumps(sdk_error(sdk.RateLimitError("slow down", retry_after="3")))
    code = (
        "import pickle, sys; error = pickle.loads(bytes.fromhex(sys.argv[1]));"
        "print(type(error).__mro__[1].__name__, error.retry_after, 'cursor_sdk' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, data.hex()], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["CursorError", "3.0", "False"]


@clause("ERRORS-5")
def test_an_sdk_without_the_class_costs_nothing() -> None:
    bare = ModuleType("bare_sdk")
    bare.RateLimitError = "not a class"  # type: ignore[attr-defined]  # a module made here
    assert type(run_error("[resource_exhausted] x", sdk=bare)) is CursorRateLimitError


@pytest.mark.clause("PACKAGE-3")
def test_the_module_does_not_import_the_sdk() -> None:
    code = "import langchain_cursor.errors, sys; print('cursor_sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- messages ---


@clause("ERRORS-6")
@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("unauthenticated", "Check the key given as `api_key` or in CURSOR_API_KEY."),
        ("permission_denied", "Check what the account's plan and team allow."),
        ("invalid_argument", "Change the request: as it stands it will be refused again."),
        ("invalid_model", "Pass one of the account's models as `model`."),
        (
            "resource_exhausted",
            "Wait, lower the number of concurrent calls, or check the plan's usage.",
        ),
        ("deadline_exceeded", "Try again, or allow more time with `timeout`."),
        ("unavailable", "Check the network and `base_url`, then try again."),
        ("aborted", "Try again later: the cause is inside Cursor."),
        ("canceled", "Call again if it was not you who cancelled it."),
    ],
)
def test_a_message_says_what_went_wrong_and_what_to_do(code: str, advice: str) -> None:
    message = f"Cursor ended the run: it went wrong ({code}). {advice}"
    assert str(run_error(f"[{code}] it went wrong")) == message


@clause("ERRORS-6")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("busy", "busy. Try again"),
        ("busy.", "busy. Try again"),
        ("busy!", "busy! Try again"),
        ("busy, try later...", "busy, try later... Try again"),
        ("[internal] busy.", "busy (internal). Try again"),
        ("[internal] internal error", "internal error. Try again"),
        ("[internal] ", "no reason given (internal). Try again"),
        ("", "no reason given. Try again"),
        ("  \n", "no reason given. Try again"),
    ],
)
def test_a_message_is_made_of_whole_sentences(text: str, message: str) -> None:
    told = str(run_error(text)).removesuffix(" later: the cause is inside Cursor.")
    assert told == f"Cursor ended the run: {message}"


@clause("ERRORS-6")
def test_the_message_of_an_sdk_error_tells_the_code_and_the_wait() -> None:
    error = sdk_error(sdk.RateLimitError("slow down", code="resource_exhausted", retry_after="12"))
    assert str(error) == (
        "The request to Cursor failed: slow down (resource_exhausted). Wait, lower the number of "
        "concurrent calls, or check the plan's usage. Cursor asks to wait 12 s."
    )


# --- retry_after ---


@clause("ERRORS-7")
@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("12", 12.0),
        ("12.5s", 12.5),
        ("0.250s", 0.25),
        (" 12 ", 12.0),
        (3, 3.0),
        (1.5, 1.5),
        ("0", 0.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("12ms", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("-1", None),
        ("-1s", None),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        (True, None),
        ({"seconds": 3}, None),
    ],
)
def test_retry_after_is_seconds_or_nothing(given: Any, seconds: float | None) -> None:
    error = sdk_error(sdk.RateLimitError("slow down", retry_after=given))
    assert error.retry_after == seconds


# --- no secrets ---

# What looks like a key, and the part of it that must not be seen.
SECRETS = {
    "crsr_0123456789abcdef": "0123456789abcdef",
    "crsr_ABC-def_ghi": "ABC-def_ghi",
    "key_0123456789abcdef": "0123456789abcdef",
    "Bearer abc.def-123": "abc.def-123",
    "bearer  AbCdEfGhIjKlMnOpQrStUvWxYz": "AbCdEfGhIjKlMnOpQrStUvWxYz",
    "eyJhbGciOi.eyJzdWIi0.c2ln-_": "eyJ",
    "https://user:passw0rd@proxy.example": "passw0rd",
}


@clause("ERRORS-8")
@clause("SECURITY-8")
@pytest.mark.parametrize(("secret", "hidden"), SECRETS.items())
@pytest.mark.parametrize(
    "around", ["{}", "key '{}' is wrong.", "a={};b", "Authorization: {}, x", "[unknown] {}"]
)
def test_no_message_shows_what_looks_like_a_key(secret: str, hidden: str, around: str) -> None:
    text = around.format(secret)
    raised = sdk.BadRequestError(text, code="invalid_argument")
    for error in (run_error(text), sdk_error(raised), CursorStartupError(text)):
        shown = f"{error} {error!r} {error.args} {error.message} {vars(error)}"
        assert hidden not in shown
        assert "***" in shown


@clause("ERRORS-8")
@clause("SECURITY-8")
@pytest.mark.parametrize(("secret", "hidden"), SECRETS.items())
def test_a_traceback_does_not_show_it_either(secret: str, hidden: str) -> None:
    def call() -> None:
        try:
            raise sdk.BadRequestError(f"Bad header {secret}", code="invalid_argument")
        except sdk.CursorSDKError as raised:
            raise sdk_error(raised) from raised

    with pytest.raises(CursorInvalidRequestError) as caught:
        call()
    error = caught.value
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert "direct cause" in shown
    assert hidden not in f"{shown} {error.__cause__!r}"


@clause("ERRORS-8")
def test_one_secret_within_another_is_not_overlooked() -> None:
    for text in ("bearer crsr_abcdefgh", "https://crsr_abcdefgh@host/", "key_crsr_abcdefgh"):
        assert "abcdefgh" not in redact(text)


@clause("ERRORS-8")
@pytest.mark.parametrize(
    "text",
    [
        "api_key_not_found",
        "key_not_found: missing_api_key",
        "the bearer token is missing",
        "bearer authentication required.",
        "https://example.com/@scope/name",
        "write to me@example.com",
        "eyJust a word",
        "sdk.v1.SdkBridgeControlService",
        SANDBOX,
        SYSTEM_PROMPT,
    ],
)
def test_what_is_no_key_stays(text: str) -> None:
    assert redact(text) == text


@clause("ERRORS-8")
@given(st.text(alphabet="crskeyJbar_-./@: *1a\n", max_size=60))
def test_redacting_twice_changes_nothing(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@clause("ERRORS-8")
@given(
    st.text(max_size=30),
    st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=8, max_size=40),
    st.text(max_size=30),
)
def test_a_cursor_key_is_found_wherever_it_stands(before: str, key: str, after: str) -> None:
    assert f"crsr_{key}" not in redact(f"{before}crsr_{key} {after}")


@pytest.mark.clause("ERRORS-8")
@pytest.mark.parametrize(
    "piece", ["crsr_", "key_", "key_-", "eyJ", "eyJ-", "bearer ", "//", "//a@", "api key ", "a@//"]
)
def test_a_long_error_text_is_read_in_linear_time(piece: str) -> None:
    def seconds(length: int) -> float:
        text = "[internal] " + piece * (length // len(piece))
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            run_error(text)
            best = min(best, time.process_time() - started)
        return best

    # Four times the text; a quadratic reading would take sixteen times as long.
    assert seconds(120_000) < 10 * seconds(30_000) + 0.01


@pytest.mark.clause("ERRORS-5")
def test_names_of_the_tables_are_names_of_the_sdk() -> None:
    module = importlib.import_module("cursor_sdk")
    builtin = {"TimeoutError", "ConnectionError", "UnicodeDecodeError"}
    for name in set(errors._BY_CLASS) - builtin | set(errors._SDK_CLASS.values()):
        assert issubclass(getattr(module, name), module.CursorAgentError)


@clause("ERRORS-8")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the key crsr_0123456789abc is bad", "the key crsr_*** is bad"),
        ("Bearer abc123!", "Bearer ***!"),
        ("bearer " + "x" * 23, "bearer " + "x" * 23),
        ("bearer " + "x" * 24, "bearer ***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "***"),
        ("eyJhbGciOiJI.txt", "eyJhbGciOiJI.txt"),
    ],
)
def test_what_is_taken_out_leaves_three_stars(text: str, shown: str) -> None:
    assert redact(text) == shown


@clause("ERRORS-8")
def test_of_the_cause_only_texts_are_changed() -> None:
    raised = sdk.BadRequestError("crsr_0123456789abc")
    raised.args = ("crsr_0123456789abc", 5)
    sdk_error(raised)
    assert raised.args == ("crsr_***", 5)


@clause("ERRORS-2")
def test_code_and_pause_are_kept_whoever_raised_it() -> None:
    class RateLimitError(Exception):
        code = "resource_exhausted"
        retry_after = "3s"

    by_status = sdk.CursorSDKError("Bridge request failed with HTTP 429", status=429)
    by_status.retry_after = "3s"
    for raised in (RateLimitError("slow down"), by_status):
        error = sdk_error(raised)
        assert isinstance(error, CursorRateLimitError)
        assert (error.code, error.retry_after) == ("resource_exhausted", 3.0)


# --- the texts ---


@clause("SPEC-5")
def test_the_texts_of_failed_runs(snapshot: SnapshotAssertion) -> None:
    assert {text: str(run_error(text)) for text, _ in RUNS} == snapshot


@clause("SPEC-5")
def test_the_texts_of_what_the_sdk_raises(snapshot: SnapshotAssertion) -> None:
    raised = {
        f"{type(error).__name__} {error.code or error.proto_error_code or ''} "
        f"{error.status or ''} {error.message}": error
        for error, _ in SDK
    }
    assert {name: str(sdk_error(error)) for name, error in raised.items()} == snapshot


@clause("SPEC-5")
def test_what_each_class_advises(snapshot: SnapshotAssertion) -> None:
    advice = {
        cls.__name__: errors._sentence(cls, "It failed", "the reason", "the_code") for cls in TREE
    }
    assert advice == snapshot
