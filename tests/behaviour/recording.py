"""One test's cassette: recorded from the real bridge, or played in place of one."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from vcr import VCR
from vcr.cassette import Cassette
from vcr.request import Request

from langchain_cursor.agents import capabilities
from langchain_cursor.bridge.launch import Bridge, BridgeSettings, start_bridge
from langchain_cursor.bridge.process import BridgeProcess
from langchain_cursor.scratch import Scratch
from langchain_cursor_fakes import ReceivedImage, ReceivedRun
from tests.behaviour import cassettes
from tests.behaviour.cassettes import (
    HOST,
    RECORD_AGAIN,
    CassetteError,
    Exchange,
    Header,
    Serializer,
)

INSTALLED = importlib.metadata.version("cursor-sdk")


def cassette_name(node_id: str) -> str:
    """Where the cassette of a test lies, below the directory of cassettes, without its suffix.

    >>> cassette_name("tests/behaviour/test_tools.py::test_a_call[cassette-json_mode]")
    'tools/a_call[json_mode]'
    """
    path, _, test = node_id.partition("::")
    name = re.sub(r"\[cassette\]$|(?<=\[)cassette-", "", test)
    return f"{Path(path).stem.removeprefix('test_')}/{name.removeprefix('test_')}"


def is_recording(mode: str | None) -> bool:
    """Whether cassettes are recorded, by the option `--record-mode`.

    Raises:
        pytest.UsageError: They would be recorded in part.
    """
    if mode not in (None, "none", "rewrite"):
        raise pytest.UsageError(
            f"--record-mode={mode}: a cassette is played (none) or recorded whole (rewrite)"
        )
    return mode == "rewrite"


class Tape:
    """What vcrpy needs to record or replay a cassette of one bridge, and what was wrong with it.

    Args:
        name: The cassette's name, for messages.
        recording: Whether it is being recorded; else it is played.
        cloud: What stands behind the bridge, if it is recorded.
        own: What is known of this machine and its user, and may not be recorded.

    Attributes:
        misses: For each request that the cassette has no answer for, why.
        checked: Whether `check` has found nothing wrong.
    """

    def __init__(
        self,
        name: str,
        *,
        recording: bool,
        cloud: Literal["stand-in", "account"] = "stand-in",
        own: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.recording = recording
        self.misses: list[str] = []
        self.checked = False
        self._cloud = cloud
        self._recorded: Header | None = None
        self._addresses = {HOST}
        self._serializer = Serializer(lambda: self.header, INSTALLED, own)

    @property
    def header(self) -> Header:
        """What was recorded.

        Raises:
            CassetteError: Nothing was yet, or the cassette was not read.
        """
        header = self._recorded if self.recording else self._serializer.read
        if header is None:
            raise CassetteError(f"{self.name} has no header: no bridge was started.")
        return header

    # --- for vcrpy ---

    def configure(self, vcr: VCR) -> None:
        """Set the form of the file, and how requests are compared."""
        vcr.register_serializer("yaml", self._serializer)
        vcr.register_matcher("message", _same_message)
        vcr.match_on = ["method", "path", "message"]
        vcr.before_record_request = self._normal

    def _normal(self, request: Request) -> Request | None:
        # Other bridges of this process are none of this cassette's business.
        if urlsplit(request.uri).netloc not in self._addresses:
            return None
        # One that was read from a cassette has no headers, and the normal form already.
        return cassettes.normal(request) if request.headers else request

    def miss(self, *, cassette: Cassette, failed_request: Request) -> CassetteError:
        """Make the exception for a request that a cassette has no answer for, and note it.

        In the place of vcrpy's own, which tells neither what was asked nor where it differs.
        """
        asked = cassettes.normal(failed_request)
        self.misses.append(cassettes.explain(asked, _unplayed(cassette), self.name))
        return CassetteError(self.misses[-1])

    # --- in the place of `start_bridge` ---

    async def start_bridge(
        self,
        settings: BridgeSettings,
        scratch: Callable[[], Scratch],
        track: Callable[[BridgeProcess], None],
        on_exit: Callable[[BridgeProcess], None],
    ) -> Bridge:
        """Start the bridge that is recorded; or connect to the recorded one, without a process."""
        if not self.recording:
            # To connect to a bridge of the user's own is all of it but the process.
            settings = replace(settings, own_url=f"http://{HOST}", own_token="none")
            bridge = await start_bridge(settings, scratch, track, on_exit)
            bridge.can = capabilities(bridge.sdk, self.header.extension)
            return bridge
        bridge = await start_bridge(settings, scratch, track, on_exit)
        assert bridge.process is not None
        self._addresses.add(urlsplit(bridge.process.discovery.result()["url"]).netloc)
        told = bridge.process.extension
        header = Header(INSTALLED, told["sdk"] if told else None, self._cloud)
        if self._recorded not in (None, header):
            raise CassetteError("Two bridges that differ do not go on one cassette.")
        self._recorded = header
        return bridge

    # --- afterwards ---

    def check(self, cassette: Cassette) -> None:
        """Check that a cassette was played to its end, and nothing beside it was asked for.

        Raises:
            CassetteError: It was not; the message says why.
        """
        wrong = list(self.misses)
        unplayed = [] if self.recording else _unplayed(cassette)
        if unplayed:
            told = "".join(
                f"\n  {request.path} {request.body.decode()}"[:300] for request in unplayed
            )
            wrong.append(f"{self.name} holds what nobody asks for:{told}\n{RECORD_AGAIN}")
        if wrong:
            raise CassetteError("\n\n".join(wrong))
        self.checked = True

    def received(self, cassette: Cassette) -> list[ReceivedRun]:
        """The runs that the bridge was asked for, read from the requests."""
        return list(
            runs_of(
                cassettes.exchange_of(request, response)
                for number, (request, response) in enumerate(list(cassette.data))
                if self.recording or cassette.play_counts[number]
            )
        )


def runs_of(exchanges: Iterator[Exchange]) -> Iterator[ReceivedRun]:
    """The runs in a conversation with the bridge."""
    agents: dict[str, Any] = {}
    turns: dict[str, int] = {}
    for exchange in exchanges:
        if exchange.method == "CreateAgent" and exchange.status == 200:
            agents[exchange.answer["agentId"]] = exchange.body["options"]
        elif exchange.method == "Send":
            id = exchange.body["agentId"]
            turns[id] = turns.get(id, 0) + 1
            yield _run(agents[id], exchange.body, turns[id])


def _run(options: Any, body: Any, turn: int) -> ReceivedRun:
    mark = options.get("agents", {}).get("langchain-cursor", {}).get("prompt", "{}")
    message = body["message"]
    return ReceivedRun(
        text=message["text"],
        system_prompt=json.loads(mark).get("systemPrompt"),
        images=tuple(
            ReceivedImage(base64.b64decode(image["data"]["data"]), image["data"]["mimeType"])
            for image in message.get("images", ())
        ),
        model=options["model"]["id"],
        allowed_tools=",".join(options["tools"]["names"]) if "tools" in options else None,
        agent_id=body["agentId"],
        turn=turn,
    )


def _unplayed(cassette: Cassette) -> list[Request]:
    return [
        request
        for number, request in enumerate(cassette.requests)
        if not cassette.play_counts[number]
    ]


def _same_message(one: Request, other: Request) -> bool:
    # As texts, for to Python `true`, 1 and 1.0 are equal.
    return _in_order(one.body) == _in_order(other.body)


def _in_order(body: bytes) -> str:
    return json.dumps(json.loads(body), sort_keys=True)
