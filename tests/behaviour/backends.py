"""The four backends that a behaviour is shown on, and how a test names those that it needs.

| backend | below ChatCursor | the model is |
|---|---|---|
| `fake` | `FakeCursor`, the SDK in process | scripted |
| `cassette` | what the real bridge once answered | recorded |
| `bridge` | the real SDK and bridge over `CursorCloud` | scripted |
| `live` | the real SDK, bridge and account | a real one |
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from langchain_core.messages import ToolCall
from pydantic import SecretStr
from vcr.cassette import Cassette

from langchain_cursor import ChatCursor, ModelInfo, list_models
from langchain_cursor_fakes import (
    Brain,
    CursorCloud,
    Error,
    FakeCursor,
    ReceivedRun,
    Reply,
    Step,
    answer,
)
from langchain_cursor_fakes.brain import split_words
from langchain_cursor_fakes.runs import to_steps
from tests.behaviour.account import Account
from tests.behaviour.recording import Tape
from tests.behaviour.sdks import older_sdk, sdk_without_sandbox
from tests.conftest import API_KEY

NAMES = ("fake", "cassette", "bridge", "live")

# Why some behaviours are not shown on every backend.
SCRIPTED = "an account cannot be told what to answer, nor shows what it has received"
CONCURRENT = "a cassette knows one order, and calls at once have none"
UNFINISHED = "vcrpy records a stream when it has ended, and a run that hangs costs an account"


def backends(*names: str, because: str) -> pytest.MarkDecorator:
    """Show a behaviour on these backends alone, for a reason."""
    if not because or not set(names) < set(NAMES):
        raise ValueError(f"some of {NAMES}, with a reason: {names}, {because!r}")
    return pytest.mark.backends(*names, because=because)


scripted = backends("fake", "cassette", "bridge", because=SCRIPTED)


def runs(most: int) -> pytest.MarkDecorator:
    """How many runs a behaviour takes at most, for what it costs on an account; 1 unless said."""
    return pytest.mark.runs(most)


@dataclass(frozen=True)
class Circumstances:
    """What is different from a current SDK, and a machine and an account that allow everything.

    Args:
        sandbox: The machine supports Cursor's sandbox.
        system_prompts: The account may set an agent's own system prompt.
        key: The account's key is accepted.
        cloud: Cursor's cloud is reached.
        old_sdk: cursor-sdk is older than 1.0.29, and cannot deny an agent its tools.
    """

    sandbox: bool = True
    system_prompts: bool = True
    key: bool = True
    cloud: bool = True
    old_sdk: bool = False


USUAL = Circumstances()


class Backend(ABC):
    """Something that `ChatCursor` runs on, and what a test can tell it and ask it."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.circumstances = USUAL
        self._models: list[ChatCursor] = []

    @property
    def speaks_freely(self) -> bool:
        """Whether a real model answers, or has: in its own words."""
        return False

    def chat(self, **arguments: Any) -> ChatCursor:
        """Make a model; it is closed with the test if its bridge is the test's own."""
        self._models.append(ChatCursor(**{**self.arguments(), **arguments}))
        return self._models[-1]

    def list_models(self) -> tuple[ModelInfo, ...]:
        """List the account's models."""
        return list_models(**self.arguments())

    def given(self, **circumstances: bool) -> None:
        """Set circumstances that differ from the usual, before a model is made."""
        self.circumstances = Circumstances(**circumstances)

    def check_answer(self, said: str, wanted: str, *, gist: str | None = None) -> None:
        """Check an answer.

        Args:
            said: The answer.
            wanted: What it is word for word, if the model is scripted.
            gist: What a real model's answer holds, in small or capital letters; by default the
                same.
        """
        if self.speaks_freely:
            assert (gist or wanted).strip().casefold() in said.casefold()
        else:
            assert said == wanted

    def seen_ids(self, *calls: ToolCall) -> list[str | None]:
        """The ids of tool calls, as `received` shows them in a prompt."""
        return [call["id"] for call in calls]

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments of a `ChatCursor` that runs here."""

    @abstractmethod
    def script(self, *replies: Reply | Brain) -> None:
        """Set what the model answers: a reply for each run, or a function for all of them.

        Without it the default brain answers, see `langchain_cursor_fakes.brain`.
        """

    def suggest(self, reply: str) -> None:
        """Set what the model answers, if it can be told; a real one finds it in the prompt."""
        self.script(reply)

    @property
    @abstractmethod
    def received(self) -> list[ReceivedRun]:
        """The runs so far, as they were received."""

    @property
    def outcomes(self) -> list[str]:
        """How the runs so far have ended."""
        raise NotImplementedError(f"{self.name} does not know how a run ended")

    def wait_for_outcomes(self, *outcomes: str) -> None:
        """Wait until the runs have ended so, which they do within a second."""
        raise NotImplementedError(f"{self.name} does not know how a run ended")

    def close(self) -> None:
        """End what the test has started, and check that its script was followed."""
        for model in self._models:
            model.close()


class _Script:
    """Answers the runs of one test; the same on the fake and on the stand-in."""

    def __init__(self, replies: Sequence[Reply | Brain]) -> None:
        first = replies[0] if len(replies) == 1 else None
        self._brain = first if callable(first) else None
        self._replies = [] if self._brain else list(replies)

    def __call__(self, run: ReceivedRun) -> list[Step]:
        if self._brain is not None:
            reply = self._brain(run)
        elif self._replies:
            reply = cast("Reply", self._replies.pop(0))
        else:
            raise AssertionError(f"the script has no reply left for {run.text!r}")
        return split_words(reply) if isinstance(reply, str) else list(to_steps(reply))

    @property
    def left(self) -> int:
        """How many replies nobody has asked for."""
        return len(self._replies)


class FakeBackend(Backend):
    """`FakeCursor`."""

    name = "fake"

    def __init__(self) -> None:
        super().__init__()
        self._fake = FakeCursor()
        self._script = _Script([answer])

    def given(self, **circumstances: bool) -> None:
        super().given(**circumstances)
        now = self.circumstances
        self._fake = FakeCursor(
            version="1.0.24" if now.old_sdk else None,
            sandbox=now.sandbox,
            system_prompt="allowed" if now.system_prompts else "refused",
            refuse_all_keys=not now.key,
        )
        if not now.cloud:
            self.script(
                Error("unknown", "Failed to connect to API key exchange endpoint: fetch failed")
            )

    def arguments(self) -> dict[str, Any]:
        return {"sdk_loader": self._fake.sdk}

    def script(self, *replies: Reply | Brain) -> None:
        self._script = _Script(replies)
        self._fake.reply_with(self._script)

    @property
    def received(self) -> list[ReceivedRun]:
        return [run.received for run in self._fake.runs]

    @property
    def outcomes(self) -> list[str]:
        return [run.outcome for run in self._fake.runs]

    def wait_for_outcomes(self, *outcomes: str) -> None:
        self._fake.wait_for(lambda _: self.outcomes == list(outcomes), timeout=1)

    def close(self) -> None:
        super().close()
        self._fake.assert_done()
        assert not self._script.left


class BridgeBackend(Backend):
    """The real SDK and bridge, over the stand-in for Cursor's cloud.

    Tests share one bridge, as far as their circumstances are the usual ones.

    Args:
        cloud: The stand-in.
        directory: For files of the test.
        patch: For its environment.
        own: Whether the test always has a bridge of its own.
    """

    name = "bridge"

    def __init__(
        self, cloud: CursorCloud, directory: Path, patch: pytest.MonkeyPatch, *, own: bool = False
    ) -> None:
        super().__init__()
        self._cloud = cloud
        self._directory = directory
        self._patch = patch
        self._own = own
        self._script = _Script([answer])
        self._more: dict[str, Any] = {}

    def given(self, **circumstances: bool) -> None:
        super().given(**circumstances)
        now = self.circumstances
        self._own = True  # what a runtime has learnt of its circumstances, it remembers
        self._cloud.system_prompt_allowed = now.system_prompts
        self._cloud.refuse_all_keys = not now.key
        if now.old_sdk:
            self._more = {"sdk_loader": older_sdk, "bridge_extension": False}
        if not now.sandbox:
            sdk = sdk_without_sandbox(self._directory)
            self._more = {"sdk_loader": lambda: sdk}
        if not now.cloud:
            with CursorCloud() as gone:
                self._more = {"base_url": gone.url}
            # Else it fails before there is a run, for want of the catalog.
            catalog = json.dumps([{"id": "composer-2.5", "displayName": "Composer"}])
            self._patch.setenv("CURSOR_SDK_LOCAL_MODEL_CATALOG_JSON", catalog)

    def arguments(self) -> dict[str, Any]:
        if self._own and "api_key" not in self._more:
            self._more["api_key"] = f"{API_KEY}_{uuid.uuid4().hex}"
        return {"api_key": API_KEY, "base_url": self._cloud.url, **self._more}

    def script(self, *replies: Reply | Brain) -> None:
        self._script = _Script(replies)
        self._cloud.brain = self._script

    @property
    def received(self) -> list[ReceivedRun]:
        return [run.received for run in self._cloud.runs]

    @property
    def outcomes(self) -> list[str]:
        return [run.outcome for run in self._cloud.runs]

    def wait_for_outcomes(self, *outcomes: str) -> None:
        self._cloud.wait_for(lambda _: self.outcomes == list(outcomes), timeout=1)

    def close(self) -> None:
        if self._own:
            super().close()
        assert not self._cloud.brain_errors
        assert not self._script.left


class LiveBackend(Backend):
    """A real account, behind the real SDK and bridge; all tests share one bridge.

    Args:
        account: The account.
        patch: For the test's environment.
    """

    name = "live"

    def __init__(self, account: Account, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._account = account
        account.set_up(patch)

    @property
    def speaks_freely(self) -> bool:
        return True

    def given(self, **circumstances: bool) -> None:
        raise NotImplementedError("a live account is as it is")

    def arguments(self) -> dict[str, Any]:
        # Hidden, so that no traceback shows it.
        return {"api_key": SecretStr(self._account.key), "base_url": self._account.url}

    def script(self, *replies: Reply | Brain) -> None:
        raise NotImplementedError("a live account cannot be told what to answer")

    def suggest(self, reply: str) -> None:
        return

    @property
    def received(self) -> list[ReceivedRun]:
        raise NotImplementedError("a live account does not show what it has received")

    def close(self) -> None:
        return  # the bridge serves the next test


class CassetteBackend(Backend):
    """A cassette: what the real bridge has answered once, with no bridge and no Node.

    Args:
        tape: The cassette.
        cassette: vcrpy's side of it.
        source: The backend that it is being recorded from; None plays it.
    """

    name = "cassette"

    def __init__(self, tape: Tape, cassette: Cassette, source: Backend | None) -> None:
        super().__init__()
        self._tape = tape
        self._cassette = cassette
        self._source = source

    @property
    def speaks_freely(self) -> bool:
        return self._tape.header.cloud == "account"

    def given(self, **circumstances: bool) -> None:
        super().given(**circumstances)
        if self._source is not None:
            self._source.given(**circumstances)

    def arguments(self) -> dict[str, Any]:
        if self._source is not None:
            return self._source.arguments()
        own: dict[str, Any] = {"api_key": f"{API_KEY}_{self._tape.name}"}
        if self.circumstances.old_sdk:
            own |= {"sdk_loader": older_sdk, "bridge_extension": False}
        return own

    def script(self, *replies: Reply | Brain) -> None:
        if self._source is not None:
            self._source.script(*replies)

    def suggest(self, reply: str) -> None:
        if self._source is not None:
            self._source.suggest(reply)

    @property
    def received(self) -> list[ReceivedRun]:
        return self._tape.received(self._cassette)

    def seen_ids(self, *calls: ToolCall) -> list[str | None]:
        return [f"call_{number}" for number in range(1, len(calls) + 1)]

    def close(self) -> None:
        super().close()
        if self._source is not None:
            self._source.close()
        self._tape.check(self._cassette)
