"""Test doubles for Cursor: an in-process `FakeCursor`, a stand-in for its cloud, and brains.

Names are imported when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._sdk_script import Script
    from .brain import answer, misbehave
    from .cloud import DEFAULT_MODELS, CursorCloud, Delays, Request, RunRecord, fingerprint
    from .replies import BridgeDies, FakeReply, tool_call, tool_calls, violation
    from .runs import (
        Brain,
        Delay,
        Drop,
        Error,
        Garbage,
        Hang,
        ReceivedImage,
        ReceivedRun,
        Reply,
        Step,
        Text,
        Thinking,
        ThinkingDone,
        Usage,
    )
    from .sdk import FakeCursor, Phases

__all__ = [
    "DEFAULT_MODELS",
    "Brain",
    "BridgeDies",
    "CursorCloud",
    "Delay",
    "Delays",
    "Drop",
    "Error",
    "FakeCursor",
    "FakeReply",
    "Garbage",
    "Hang",
    "Phases",
    "ReceivedImage",
    "ReceivedRun",
    "Reply",
    "Request",
    "RunRecord",
    "Script",
    "Step",
    "Text",
    "Thinking",
    "ThinkingDone",
    "Usage",
    "answer",
    "fingerprint",
    "misbehave",
    "tool_call",
    "tool_calls",
    "violation",
]

_HOMES = {
    "brain": ["answer", "misbehave"],
    "_account": ["DEFAULT_MODELS"],
    "cloud": ["CursorCloud", "Delays", "Request", "RunRecord", "fingerprint"],
    "_sdk_script": ["Script"],
    "replies": ["BridgeDies", "FakeReply", "tool_call", "tool_calls", "violation"],
    "sdk": ["FakeCursor", "Phases"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_HOME_OF.get(name, 'runs')}", __name__)
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
