"""The exceptions of this package, and the table that maps failures of the SDK to them.

::

    CursorError
    ├── CursorAuthenticationError       the key is missing, refused or expired
    ├── CursorPermissionDeniedError     the account may not do this
    ├── CursorInvalidRequestError       Cursor refuses the request as it stands
    ├── CursorModelNotFoundError        no such model on this account
    ├── CursorRateLimitError            too many requests, or the plan is used up   (retryable)
    ├── CursorTimeoutError              no answer in time                           (retryable)
    ├── CursorConnectionError           Cursor or the bridge cannot be reached      (retryable)
    │   └── CursorBridgeError           the bridge process ended during the call    (retryable)
    ├── CursorAPIError                  a failure inside Cursor                     (retryable)
    ├── CursorContractError             the model broke the tool contract twice
    ├── CursorCancelledError            the run was cancelled
    ├── CursorStartupError              the bridge does not start here
    └── CursorClosedError               the model or the process is closing

Each class but the last four also inherits from LangChain's class for the same condition
(``ModelRateLimitError`` and so on), and the transient ones from the builtin ``TimeoutError``, so
that retry wrappers, fallbacks and middleware decide rightly by class. An exception made by
`run_error` or `sdk_error` is the SDK's class too (``cursor_sdk.RateLimitError`` and so on).
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from traceback import clear_frames
from types import ModuleType
from typing import Any, ClassVar, cast

from langchain_core.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelError,
    ModelInvalidRequestError,
    ModelNotFoundError,
    ModelPermissionDeniedError,
    ModelRateLimitError,
    ModelTimeoutError,
    OutputParserException,
)


class CursorError(ModelError):
    """Base of every error that this package raises on its own.

    Args:
        message: What went wrong and what to do about it. What looks like a key is taken out.
        code: Cursor's or Connect's own code in lower snake case, such as ``"unavailable"``.
        run_id: The run that failed, if one had begun.
        usage: Tokens spent by the run before it failed, in LangChain's form.
        retry_after: Seconds to wait before trying again, if Cursor said so.

    Example:
        >>> error = CursorError("no such thing", code="not_found")
        >>> (str(error), error.code, error.is_retryable)
        ('no such thing', 'not_found', False)
    """

    # In a class made by `with_sdk_class`: our class and the SDK's.
    _parts: ClassVar[tuple[type[CursorError], type[Exception]] | None] = None

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        run_id: str | None = None,
        usage: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        message = redact(message)
        super().__init__(message)
        self.message = message
        self.code = code
        self.run_id = run_id
        self.usage = dict(usage) if usage is not None else None
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        ours, theirs = self._parts or (type(self), None)
        where = (theirs.__module__, theirs.__qualname__) if theirs is not None else None
        return (_rebuild, (ours, where, self.message, self.__dict__.copy()))


def _rebuild(
    cls: type[CursorError],
    sdk_class: tuple[str, str] | None,
    message: str,
    state: dict[str, Any],
) -> CursorError:
    if sdk_class is not None:
        # Never imported for this: who catches the SDK's class has imported it.
        module, name = sdk_class
        cls = with_sdk_class(cls, getattr(sys.modules.get(module), name, None))
    error = cls(message)
    error.__dict__.update(state)
    return error


class CursorAuthenticationError(CursorError, ModelAuthenticationError):
    """No usable API key: none given, refused by Cursor, or expired."""


class CursorPermissionDeniedError(CursorError, ModelPermissionDeniedError):
    """The key is valid, but the account may not do this."""


class CursorInvalidRequestError(CursorError, ModelInvalidRequestError):
    """Cursor refuses the request as it stands; sending it again changes nothing."""


class CursorModelNotFoundError(CursorError, ModelNotFoundError):
    """The account has no such model."""


class CursorRateLimitError(CursorError, ModelRateLimitError):
    """Too many requests at once, or the plan's allowance is used up."""


class CursorTimeoutError(CursorError, ModelTimeoutError, TimeoutError):
    """No answer came within ``timeout`` seconds, or within Cursor's own deadline."""


class CursorConnectionError(CursorError, ModelConnectionError, TimeoutError):
    """Cursor's cloud, or the bridge, cannot be reached."""


class CursorBridgeError(CursorConnectionError):
    """The bridge process ended or fell silent during this call; the next call starts another."""


class CursorAPIError(CursorError, ModelAPIError, TimeoutError):
    """A failure inside Cursor."""


class CursorContractError(CursorError, OutputParserException):
    """The model's reply broke the tool contract, and so did its second one.

    Args:
        message: What was wrong.
        reason: One word for programs, such as ``"unknown-tool"``.
        llm_output: The last reply, as the model wrote it.
        **details: As for `CursorError`; `usage` counts both turns.
    """

    def __init__(
        self,
        message: str = "",
        *,
        reason: str | None = None,
        llm_output: str | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, **details)
        self.reason = reason
        self.llm_output = llm_output


class CursorCancelledError(CursorError):
    """The run was cancelled before it finished."""


class CursorStartupError(CursorError):
    """The bridge process does not start on this machine."""


class CursorClosedError(CursorError):
    """The model was closed during the call, or the interpreter is ending."""


# Cursor's failures by code: Connect's codes, the part in brackets of a run's "[code] text", and the
# SDK's own (`SdkErrorCode` in cursor-sdk 1.1.0's sdk_errors.proto, and Python's `missing_api_key`).
_BY_CODE: dict[str, type[CursorError]] = {
    "resource_exhausted": CursorRateLimitError,
    "rate_limit_exceeded": CursorRateLimitError,
    "rate_limited": CursorRateLimitError,
    "usage_limit_exceeded": CursorRateLimitError,
    "unauthenticated": CursorAuthenticationError,
    "unauthorized": CursorAuthenticationError,
    "api_key_not_found": CursorAuthenticationError,
    "missing_api_key": CursorAuthenticationError,
    "permission_denied": CursorPermissionDeniedError,
    "role_forbidden": CursorPermissionDeniedError,
    "plan_required": CursorPermissionDeniedError,
    "feature_unavailable": CursorPermissionDeniedError,
    "invalid_model": CursorModelNotFoundError,
    "deadline_exceeded": CursorTimeoutError,
    "timeout": CursorTimeoutError,
    "unavailable": CursorConnectionError,
    "connection_stalled": CursorConnectionError,
    "aborted": CursorAPIError,
    "data_loss": CursorAPIError,
    "upstream_error": CursorAPIError,
    "canceled": CursorCancelledError,
    "cancelled": CursorCancelledError,
    "client_cancelled": CursorCancelledError,
    "out_of_range": CursorInvalidRequestError,
    "unimplemented": CursorInvalidRequestError,
    "validation_error": CursorInvalidRequestError,
}

# Codes that stand for many failures: the text and the SDK's class say more.
_BY_VAGUE_CODE: dict[str, type[CursorError]] = {
    "unknown": CursorAPIError,
    "internal": CursorAPIError,
    "internal_error": CursorAPIError,
    "invalid_argument": CursorInvalidRequestError,
    "failed_precondition": CursorInvalidRequestError,
    "not_found": CursorInvalidRequestError,
}

# Seen with cursor-sdk 1.1.0, with a vague code or none.
_BY_TEXT: tuple[tuple[re.Pattern[str], type[CursorError]], ...] = (
    (re.compile(r"cannot use this model", re.I), CursorModelNotFoundError),
    (
        re.compile(r"invalid (?:user )?api key|not logged in|api key .{0,80}expired", re.I),
        CursorAuthenticationError,
    ),
    (
        re.compile(
            r"failed to connect|fetch failed|network request failed|connection stalled", re.I
        ),
        CursorConnectionError,
    ),
    # What comes from the cloud, or from a proxy before it, is no message of the protocol.
    (re.compile(r"protocol error: "), CursorAPIError),
)

# The SDK's exceptions, by the name of their class; and two that any library may let through.
_BY_CLASS: dict[str, type[CursorError]] = {
    "AuthenticationError": CursorAuthenticationError,
    "PermissionDeniedError": CursorPermissionDeniedError,
    "RateLimitError": CursorRateLimitError,
    "BadRequestError": CursorInvalidRequestError,
    "ConfigurationError": CursorInvalidRequestError,
    "APITimeoutError": CursorTimeoutError,
    "NetworkError": CursorConnectionError,
    "InternalServerError": CursorAPIError,
    # The bridge has lost or mixed up an agent; trying again makes a new one.
    "NotFoundError": CursorAPIError,
    "AgentBusyError": CursorAPIError,
    "TimeoutError": CursorTimeoutError,
    "ConnectionError": CursorConnectionError,
    "UnicodeDecodeError": CursorAPIError,  # the bridge's answer is no text
}

# The code for an HTTP status that came without one, as Connect has it.
_BY_STATUS: dict[int, str] = {
    401: "unauthenticated",
    403: "permission_denied",
    404: "unimplemented",
    429: "resource_exhausted",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
}

_SDK_ROOT = "CursorAgentError"

# The SDK's class for each of ours.
_SDK_CLASS: dict[type[CursorError], str] = {
    CursorAuthenticationError: "AuthenticationError",
    CursorPermissionDeniedError: "PermissionDeniedError",
    CursorInvalidRequestError: "BadRequestError",
    CursorModelNotFoundError: "BadRequestError",
    CursorRateLimitError: "RateLimitError",
    CursorTimeoutError: "APITimeoutError",
    CursorConnectionError: "NetworkError",
    CursorAPIError: "InternalServerError",
    CursorError: _SDK_ROOT,
}

_ADVICE: dict[type[CursorError], str] = {
    CursorAuthenticationError: "Check the key given as `api_key` or in CURSOR_API_KEY.",
    CursorPermissionDeniedError: "Check what the account's plan and team allow.",
    CursorInvalidRequestError: "Change the request: as it stands it will be refused again.",
    CursorModelNotFoundError: "Pass one of the account's models as `model`.",
    CursorRateLimitError: "Wait, lower the number of concurrent calls, or check the plan's usage.",
    CursorTimeoutError: "Try again, or allow more time with `timeout`.",
    CursorConnectionError: "Check the network and `base_url`, then try again.",
    CursorAPIError: "Try again later: the cause is inside Cursor.",
    CursorCancelledError: "Call again if it was not you who cancelled it.",
    CursorError: "This is unexpected: please report it with the traceback.",
}

# One error can wrap another: `[unknown] [unavailable] connect ECONNREFUSED`.
_RUN_ERROR = re.compile(r"\s*(?P<codes>(?:\[[a-z_]+\]\s*)+)(?P<text>.*)", re.S)

# Each pattern takes all that may be a secret at once, so that a text is read once for each.
_API_KEY = re.compile(r"(crsr_)[\w-]+", re.I)
_URL_USER = re.compile(r"(?<=//)[^/\s@]+(?=@)")
_TOKEN = re.compile(r"\b(key_|bearer\s+)([\w~+/=-]+(?:\.[\w~+/=-]+)*)", re.I)
_JWT = re.compile(r"\beyJ[\w-]+(?:\.[\w-]+)*")


def redact(text: str) -> str:
    """Take out of a text what looks like a key: API keys, tokens, the user part of a URL.

    Example:
        >>> redact("Key crsr_0123456789 is not valid (Authorization: Bearer abc123).")
        'Key crsr_*** is not valid (Authorization: Bearer ***).'
        >>> redact("key_not_found: bearer token missing")
        'key_not_found: bearer token missing'
    """
    text = _API_KEY.sub(r"\1***", text)
    text = _URL_USER.sub("***", text)
    text = _JWT.sub(lambda match: "***" if match[0].count(".") > 1 else match[0], text)
    return _TOKEN.sub(_redacted, text)


def _redacted(match: re.Match[str]) -> str:
    # Words of a sentence and names of errors have no digits and end soon; tokens do not.
    is_word = len(match[2]) < 24 and not any(map(str.isdigit, match[2]))
    return match[0] if is_word else match[1] + "***"


def forget_locals(error: BaseException) -> None:
    """Clear the local variables of the frames that an exception and its causes went through.

    The SDK's frames hold the request with the key and the bridge's token, and what prints or sends
    tracebacks with locals would show them. Frames that still run keep theirs.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            clear_frames(each.__traceback__)
            pending += [each.__cause__, each.__context__]


def run_error(
    text: str,
    *,
    code: str | None = None,
    run_id: str | None = None,
    usage: Mapping[str, Any] | None = None,
    sdk: ModuleType | None = None,
) -> CursorError:
    """Make the exception for a run that ended with an error.

    Args:
        text: The run's error text; cursor-sdk 1.1.0 gives ``"[code] message"``.
        code: The run's own error code, where the SDK gives one.
        run_id: The run.
        usage: Tokens spent so far.
        sdk: The loaded SDK module; given one, the exception is of the SDK's class too.

    Example:
        >>> error = run_error("[resource_exhausted] slow down")
        >>> (type(error).__name__, error.is_retryable)
        ('CursorRateLimitError', True)
    """
    match = _RUN_ERROR.fullmatch(text)
    message = match["text"] if match else text
    told = re.findall(r"[a-z_]+", match["codes"]) if match else []
    if status := re.fullmatch(r"HTTP (\d{3})", message):
        told.insert(0, _BY_STATUS.get(int(status[1]), ""))  # the SDK has `unavailable` for 429
    codes = [code for code in (_plain(code), *told) if code]
    cls = _class_for(message, codes) or CursorAPIError
    # The one that decided; an unknown code is told too.
    code = next((code for code in codes if _BY_CODE.get(code) is cls), codes[-1] if codes else None)
    if sdk is not None:
        cls = with_sdk_class(cls, _sdk_class(cls, sdk))
    return cls(
        _sentence(cls, "Cursor ended the run", message, code),
        code=code,
        run_id=run_id,
        usage=usage,
    )


def sdk_error(error: BaseException) -> CursorError:
    """Make the exception for one that the SDK raised; the caller chains it as ``__cause__``.

    The result is of the SDK's class too, and carries its plain attributes, such as ``status`` and
    ``request_id``. A traceback prints the cause as well, so what looks like a key is taken out of
    the SDK's message too, and its frames lose their local variables.

    Example:
        >>> class AuthenticationError(Exception):
        ...     code = "unauthenticated"
        >>> type(sdk_error(AuthenticationError("refused"))).__name__
        'CursorAuthenticationError'
    """
    forget_locals(error)
    if isinstance(error, AssertionError):  # of a test: its words are no failure of Cursor's
        return CursorError(f"{type(error).__name__}: {error}")
    names = [base.__name__ for base in type(error).__mro__]
    code = _plain(getattr(error, "code", None))
    status = getattr(error, "status", None)
    if code is None and isinstance(status, int):
        code = _BY_STATUS.get(status)
    codes = [code for code in (_plain(getattr(error, "proto_error_code", None)), code) if code]
    message = str(getattr(error, "message", "") or error)
    cls = _class_for(message, codes, names)
    from_sdk = _SDK_ROOT in names
    if cls is None:
        cls = CursorAPIError if from_sdk or codes else CursorError
    if cls is CursorError:
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    wait = _seconds(getattr(error, "retry_after", None))
    text = _sentence(cls, "The request to Cursor failed", message or type(error).__name__, code)
    if wait is not None:
        text += f" Cursor asks to wait {wait:g} s."
    if not from_sdk:
        return cls(text, code=code, retry_after=wait)
    ours = with_sdk_class(cls, _plain_class(type(error)))(text, code=code, retry_after=wait)
    for name, value in vars(error).items():
        if name not in _OWN and isinstance(value, (str, int)):
            setattr(ours, name, value)
    _clean(error)
    return ours


def with_sdk_class(cls: type[CursorError], sdk_class: type[Exception] | None) -> type[CursorError]:
    """Make of one of our classes one that is the SDK's too, so that code written for it catches it.

    Args:
        cls: A class of this module.
        sdk_class: An exception class of the loaded SDK, with the constructor of its root class;
            None gives ``cls`` back.

    Example:
        >>> from cursor_sdk import RateLimitError
        >>> both = with_sdk_class(CursorRateLimitError, RateLimitError)
        >>> isinstance(both("slow down"), RateLimitError), both("slow down").is_retryable
        (True, True)
    """
    ours: Any = cls
    theirs: Any = sdk_class
    return cls if theirs is None else cast("type[CursorError]", _both(ours, theirs))


@lru_cache(maxsize=256)
def _both(ours: Any, theirs: Any) -> type:
    def __init__(self: CursorError, message: str = "", **known: Any) -> None:
        # `OSError` does not pass the call on, so the SDK's part is built here.
        theirs.__init__(self, message)
        ours.__init__(self, message, **known)
        self.is_retryable = ours.is_retryable  # the SDK sets False on the instance

    namespace = {
        "__init__": __init__,
        "__module__": ours.__module__,
        "__qualname__": ours.__qualname__,
        "__doc__": ours.__doc__,
        "_parts": (ours, theirs),
    }
    return type(ours.__name__, (ours, theirs), namespace)


_OWN = frozenset({*vars(CursorError()), "is_retryable"})


def _sdk_class(cls: type[CursorError], sdk: ModuleType) -> type[Exception] | None:
    name = next(_SDK_CLASS[base] for base in cls.__mro__ if base in _SDK_CLASS)
    found = getattr(sdk, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _plain_class(cls: type[BaseException]) -> type[Exception]:
    # A class with a constructor of its own may want arguments that nobody has here.
    plain = (
        base for base in cls.__mro__ if "__init__" not in vars(base) or base.__name__ == _SDK_ROOT
    )
    return cast("type[Exception]", next(plain))


def _clean(error: BaseException) -> None:
    error.args = tuple(redact(arg) if isinstance(arg, str) else arg for arg in error.args)
    if isinstance(message := getattr(error, "message", None), str):
        error.message = redact(message)  # type: ignore[attr-defined]  # the SDK's attribute


def _class_for(
    message: str, codes: Iterable[str], names: Iterable[str] = ()
) -> type[CursorError] | None:
    """The one table: a code that is clear, then the text, the SDK's class, and a vague code."""
    for code in codes:
        if code in _BY_CODE:
            return _BY_CODE[code]
    for pattern, cls in _BY_TEXT:
        if pattern.search(message):
            return cls
    for table, keys in ((_BY_CLASS, names), (_BY_VAGUE_CODE, codes)):
        for key in keys:
            if key in table:
                return table[key]
    return None


def _plain(code: object) -> str | None:
    # `SDK_ERROR_CODE_AGENT_BUSY` and `agent_busy` are the same.
    return code.lower().removeprefix("sdk_error_code_") or None if isinstance(code, str) else None


def _sentence(cls: type[CursorError], what: str, message: str, code: str | None) -> str:
    message = message.strip().rstrip(": ") or "no reason given"  # httpx may name no reason
    said = f" ({code})" if code and code not in message else ""
    end = "" if not said and message[-1] in ".!?" else "."
    if said:
        message = message.rstrip(".")
    advice = next(_ADVICE[base] for base in cls.__mro__ if base in _ADVICE)
    return f"{what}: {message}{said}{end} {advice}"


def _seconds(value: object) -> float | None:
    # Cursor gives seconds, as a number or as a protobuf duration such as "12.5s".
    try:
        seconds = float(str(value).removesuffix("s"))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
