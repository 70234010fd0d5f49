"""The form of a cassette: what Python and the bridge said to each other, readable, without secrets.

A cassette is a YAML file: a header that says what was recorded, then the exchanges. vcrpy records
and replays them; this module gives it the serializer, the normal form in which requests are
compared, and the checks. Nothing here knows of pytest or starts anything.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import yaml
from packaging.version import Version
from vcr.request import Request

FORMAT = 1
# Where a replayed bridge seems to be: no name that resolves.
HOST = "bridge.invalid"
RECORD_AGAIN = "If what is sent was changed on purpose, record it again: make record"

_UNARY, _STREAM = "application/json", "application/connect+json"
# A frame of a Connect stream: a byte of flags, four of length. The last one has this flag.
_FRAME = struct.Struct(">BI")
_END = 0x02


class CassetteError(AssertionError):
    """A cassette that cannot be used, or that does not fit what was asked."""


@dataclass(frozen=True)
class Header:
    """What was recorded.

    Args:
        cursor_sdk: Version of the SDK: of the Python client, and of the bridge in its wheel.
        extension: Version of `@cursor/sdk` that the bridge extension reported; None for the
            stock bridge.
        cloud: What stood behind the bridge.
    """

    cursor_sdk: str
    extension: str | None
    cloud: Literal["stand-in", "account"]


@dataclass(frozen=True)
class Exchange:
    """One request to the bridge and its answer.

    Args:
        request: Method and path.
        body: The request's message.
        answer: The answer's message; of a stream, the list of its messages.
        status: The HTTP status of the answer.
        end: What a stream ended with: an empty mapping, or an error. None for no stream.
    """

    request: str
    body: Any
    answer: Any
    status: int = 200
    end: Mapping[str, Any] | None = None

    @property
    def method(self) -> str:
        """The name of the method that was called."""
        return self.request.rpartition("/")[2]


class Serializer:
    """vcrpy's serializer for cassettes in this form.

    Args:
        header: Called for the header when a cassette is written.
        installed: Version of the installed cursor-sdk, the newest that a cassette may have been
            recorded with.
        own: What is known of this machine and its user, and may not be written.

    Attributes:
        read: The header of the cassette that was read last.
    """

    def __init__(
        self, header: Callable[[], Header], installed: str, own: Iterable[str] = ()
    ) -> None:
        self.read: Header | None = None
        self._own = [name for name in own if len(name) > 3]
        self._header = header
        self._installed = installed

    def serialize(self, cassette: Mapping[str, Any]) -> str:
        """Write a cassette.

        Raises:
            CassetteError: It would hold something that belongs in no repository.
        """
        found = [_from_vcr(interaction) for interaction in cassette["interactions"]]
        text = dump(self._header(), in_order(found))
        if leaks := list(find_leaks(text, self._own)):
            raise CassetteError("Not recorded, for it would hold " + ", ".join(leaks))
        return text

    def deserialize(self, text: str) -> dict[str, Any]:
        """Read a cassette.

        Raises:
            CassetteError: It has another form, was recorded with another SDK, or holds something
                that belongs in no repository.
        """
        header, exchanges = load(text)
        # What a newer SDK sends is compared all the same, request by request.
        if Version(header.cursor_sdk) > Version(self._installed):
            raise CassetteError(
                f"Recorded with cursor-sdk {header.cursor_sdk}, but {self._installed} is "
                "installed, which is older. Install that one, or record it again: make record"
            )
        if leaks := list(find_leaks(text)):
            raise CassetteError("The cassette holds " + ", ".join(leaks))
        self.read = header
        return {"interactions": [_to_vcr(exchange) for exchange in exchanges]}


# --- The file -------------------------------------------------------------------------------------


def dump(header: Header, exchanges: Iterable[Exchange]) -> str:
    """The text of a cassette."""
    document = {
        "format": FORMAT,
        "recorded": asdict(header),
        "exchanges": [_as_mapping(exchange) for exchange in exchanges],
    }
    return "# Written by `make record`; see spec/cassettes.md.\n" + as_yaml(document)


def load(text: str) -> tuple[Header, list[Exchange]]:
    """Read the text of a cassette.

    Raises:
        CassetteError: It has another form.
    """
    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if document["format"] != FORMAT:
            raise CassetteError(
                f"The cassette has format {document['format']}, not {FORMAT}. Record it again: "
                "make record"
            )
        return Header(**document["recorded"]), [_of(each) for each in document["exchanges"]]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise CassetteError(f"This is no cassette, or a broken one: {error!r}") from error


def as_yaml(value: Any) -> str:
    """YAML as a person reads it: texts of several lines as blocks, a stream's message on a line."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))


class _Message(dict[str, Any]):
    """One message of a stream, written on one line."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    if re.search("[\x85\u2028\u2029]", text):  # PyYAML writes these ends of lines as line feeds
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _write_message(dumper: yaml.SafeDumper, message: _Message) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", message.items(), flow_style=True)


_Dumper.add_representer(str, _write_text)
_Dumper.add_representer(_Message, _write_message)


def _as_mapping(exchange: Exchange) -> dict[str, Any]:
    mapping: dict[str, Any] = {"request": exchange.request, "body": exchange.body}
    if exchange.status != 200:
        mapping["status"] = exchange.status
    if exchange.end is None:
        return {**mapping, "answer": exchange.answer}
    messages = [_Message(message) for message in exchange.answer]
    return {**mapping, "stream": messages, "end": _Message(exchange.end)}


def _of(mapping: Mapping[str, Any]) -> Exchange:
    return Exchange(
        request=mapping["request"],
        body=mapping["body"],
        answer=mapping["stream"] if "stream" in mapping else mapping["answer"],
        status=mapping.get("status", 200),
        end=mapping.get("end"),
    )


# --- To and from vcrpy ----------------------------------------------------------------------------


def normal(request: Request) -> Request:
    """A request as it is kept and compared: its path and message, without what varies."""
    framed = request.headers.get("content-type") == _STREAM
    body = bytes(request.body or b"{}")
    if framed:
        ((_, body),) = _frames(body)
    message = json.dumps(_normal_message(json.loads(body)))
    return Request(request.method, f"http://{HOST}{request.path}", message, {})


def exchange_of(request: Request, response: Mapping[str, Any]) -> Exchange:
    """What vcrpy keeps, as an exchange. The request is in the normal form."""
    body, headers = response["body"]["string"], response["headers"]
    body = body.encode() if isinstance(body, str) else body
    named = f"{request.method} {request.path}"
    asked, status = json.loads(request.body), response["status"]["code"]
    if not headers.get("content-type", [""])[0].startswith(_STREAM):
        return Exchange(named, asked, json.loads(body or b"{}"), status)
    *messages, (flags, end) = _frames(body)
    if flags != _END or any(flags for flags, _ in messages):
        raise CassetteError(f"The answer to {named} is compressed, or was cut off.")
    return Exchange(
        named, asked, [json.loads(data) for _, data in messages], status, json.loads(end)
    )


def _from_vcr(interaction: Mapping[str, Any]) -> Exchange:
    return exchange_of(Request(**interaction["request"]), interaction["response"])


def _to_vcr(exchange: Exchange) -> dict[str, Any]:
    method, _, path = exchange.request.partition(" ")
    if exchange.end is None:
        body, kind = json.dumps(exchange.answer).encode(), _UNARY
    else:
        frames = [(0, message) for message in exchange.answer] + [(_END, exchange.end)]
        body, kind = b"".join(_frame(flags, message) for flags, message in frames), _STREAM
    return {
        "request": {
            "method": method,
            "uri": f"http://{HOST}{path}",
            "body": json.dumps(exchange.body),
            "headers": {},
        },
        "response": {
            "status": {"code": exchange.status, "message": ""},
            "headers": {"content-type": [kind]},
            "body": {"string": body},
        },
    }


def _frame(flags: int, message: Any) -> bytes:
    data = json.dumps(message).encode()
    return _FRAME.pack(flags, len(data)) + data


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        flags, length = _FRAME.unpack_from(data, at)
        at += _FRAME.size + length
        yield flags, data[at - length : at]


# --- What varies from one recording to the next ---------------------------------------------------

_KEY, _WORKSPACE, _TIME, _MILLISECONDS = "<key>", "<workspace>", "2000-01-01T00:00:00.000Z", 1
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_ID = re.compile(rf"\b(?:(agent|run|lease)-)?{_UUID}\b")
_CALL = re.compile(r"\bcall_[0-9a-f]{32}\b")
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+")
_SCRATCH = re.compile(r"[\w./\\:~-]*langchain-cursor-\w{8}\b")


class Numbers:
    """Replaces what a pattern finds by a name and a number, the same for the same text."""

    def __init__(self, pattern: re.Pattern[str], name: Callable[[re.Match[str]], str]) -> None:
        self._pattern = pattern
        self._name = name
        self._known: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def replace(self, text: str) -> str:
        """The text with placeholders."""
        return self._pattern.sub(self._placeholder, text)

    def _placeholder(self, match: re.Match[str]) -> str:
        if match[0] not in self._known:
            name = self._name(match)
            self._counts[name] = self._counts.get(name, 0) + 1
            self._known[match[0]] = f"{name}{self._counts[name]}"
        return self._known[match[0]]


def _normal_message(message: Any) -> Any:
    """A message without keys, paths, times and ports; ids of tool calls are numbered in it."""
    calls = Numbers(_CALL, lambda match: "call_")

    def text(value: str) -> str:
        return _SCRATCH.sub("<scratch>", _PORT.sub("<port>", calls.replace(value)))

    return _map(
        _map(message, _field), lambda name, value: text(value) if _is_text(value) else value
    )


def _field(name: str, value: Any) -> Any:
    if name == "apiKey":
        return _KEY
    if name == "cwd":
        where = value if isinstance(value, list) else [value]
        return [_WORKSPACE if _SCRATCH.search(path) else path for path in where]
    if name in ("createdAt", "created_at"):
        return _TIME
    if re.fullmatch(r"(?:\w+_)?duration_ms|(?:\w+D|d)urationMs", name):
        return str(_MILLISECONDS) if _is_text(value) else _MILLISECONDS
    return value


def in_order(exchanges: Iterable[Exchange]) -> list[Exchange]:
    """The exchanges in one order, whatever ran beside what, and without what varies.

    What happens behind a caller's back has no place of its own: leases come first, ends last. Ids
    are numbered in that order.
    """
    ids = Numbers(_ID, lambda match: f"{match[1] or 'id'}-")

    def numbered(exchange: Exchange) -> Exchange:
        def text(name: str, value: Any) -> Any:
            return ids.replace(value) if _is_text(value) else value

        return Exchange(
            exchange.request,
            _map(exchange.body, text),
            _map(_normal_message(exchange.answer), text),
            exchange.status,
            None if exchange.end is None else _map(_normal_message(exchange.end), text),
        )

    return sorted(map(numbered, sorted(exchanges, key=_phase)), key=_place)


def _phase(exchange: Exchange) -> int:
    if exchange.method == "CloseAgent":
        return 2
    mark = exchange.body.get("options", {}).get("agents", {}).get("langchain-cursor", {})
    return 0 if "prewarm" in mark.get("prompt", "") else 1


def _place(exchange: Exchange) -> tuple[int, str, int]:
    if exchange.method != "CloseAgent":
        return _phase(exchange), "", 0
    kind, _, number = exchange.body["agentId"].rpartition("-")
    return _phase(exchange), kind, int(number)


def _map(value: Any, change: Callable[[str, Any], Any], name: str = "") -> Any:
    """A JSON value with each of its values changed, from the outside in; `name` is its key."""
    value = change(name, value)
    if isinstance(value, dict):
        return {key: _map(item, change, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_map(item, change) for item in value]
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# --- Checks ---------------------------------------------------------------------------------------

_LEAKS = {
    "an API key": r"(?i)\b(?:crsr|key|sk|pk|gh[opsu]|github_pat|glpat|xox[abps])[-_][\w-]{8,}"
    r"|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY",
    "a bearer token": r"(?i)\bbearer\s+\S+|\bauthorization:\s*\S",
    "a password": r"(?i)\bpass(?:word|wd)['\"]?\s*[:=]\s*\S|://[^/\s:@]+:[^/\s@]+@",
    "a signed token": r"\beyJ[\w-]{10,}",
    # Base64 has slashes, too: there a path is known by its beginning alone.
    "a path of a machine": r"(?<![\w.<>+=/~])/(?!sdk\.v1\.)[\w.-]+/[\w.-]+"
    r"|(?<![\w.<])/(?:home|root|Users|tmp|var|private|etc|opt|mnt)\b"
    r"|(?<!\w)~/\w|\bfile:/|\b[A-Z]:\\\w|\\\\\w+\\\w",
    "a port": r"(?:\b(?:127\.0\.0\.1|0\.0\.0\.0|localhost)|\[::1?\]):\d+",
    "an id that was not replaced": rf"(?i)\b{_UUID}\b|\b(?:call_)?[0-9a-f]{{32}}\b",
    "a time": r"\b20(?!00-01-01)\d\d-\d\d-\d\d[T ]\d\d:\d\d|\b1[6-9]\d{11}\b",
    "an address": r"\b[\w.+-]+@[\w-]+\.\w{2,}\b",
}
# Error details come as bytes too, in base64.
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{32,}")


def find_leaks(text: str, own: Iterable[str] = ()) -> Iterator[str]:
    """What looks as if it belongs in no repository, and the line where it stands; never itself.

    Args:
        text: The text of a cassette.
        own: What is known of this machine and its user, and may not stand there either.

    >>> list(find_leaks("one: 1\\nkey: crsr_0123456789abcdef"))
    ['an API key (line 2)']
    """
    for number, line in enumerate(text.splitlines(), 1):
        told = [line, *(_decoded(match[0]) for match in _BASE64.finditer(line))]
        for what, pattern in _LEAKS.items():
            if any(re.search(pattern, one) for one in told):
                yield f"{what} (line {number})"
        if any(name in one for name in own for one in told):
            yield f"something of this machine (line {number})"


def _decoded(data: str) -> str:
    plain = data.translate({ord("-"): "+", ord("_"): "/"})
    return base64.b64decode(plain[: len(plain) // 4 * 4]).decode("latin-1")


def explain(asked: Request, recorded: Iterable[Request], cassette: str) -> str:
    """Why a cassette has no answer to a request: where it differs from the recorded ones.

    Args:
        asked: The request, in the normal form.
        recorded: Those of the cassette that have not been asked yet.
        cassette: The cassette's name.
    """
    told = f"{cassette} has no answer for {asked.method} {asked.path}"
    wanted = _shown(asked)
    alike = [_shown(request) for request in recorded if request.path == asked.path]
    if not alike:
        return f"{told}: no such request is left in it. {RECORD_AGAIN}"
    nearest = max(alike, key=lambda one: difflib.SequenceMatcher(None, one, wanted).ratio())
    lines = difflib.unified_diff(
        nearest.splitlines(), wanted.splitlines(), "recorded", "asked", lineterm="", n=2
    )
    shown = "\n".join(f"  {line}" for line in lines)
    return f"{told}. The recorded request that is most like it:\n{shown}\n{RECORD_AGAIN}"


def _shown(request: Request) -> str:
    return as_yaml(json.loads(request.body))
