"""The SDK module that a `FakeCursor` hands out: the real one, as a given version has it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

# The attribute by which an SDK module brings ChatCursor its own bridge.
BRIDGE_HOOK = "__langchain_cursor_bridge__"


@dataclass(frozen=True)
class Features:
    """What a version of cursor-sdk has.

    Args:
        version: The version.
        tools: An agent's tools can be limited (1.0.29), which the bridge extension relies on.
        system_prompts: An agent can be given a system prompt of its own (1.0.31).
        run_errors: A run's result tells why it failed (1.0.40).
    """

    version: str
    tools: bool
    system_prompts: bool
    run_errors: bool


def features_of(version: str | None = None) -> Features:
    """What a version of cursor-sdk has; the installed one by default.

    >>> features_of("1.0.30")
    Features(version='1.0.30', tools=True, system_prompts=False, run_errors=False)

    Raises:
        ValueError: It is no version.
    """
    from langchain_cursor.agents import version_tuple

    version = version or importlib.metadata.version("cursor-sdk")
    numbers = version_tuple(version)
    if len(numbers) < 2:
        raise ValueError(f"version must be one of cursor-sdk, such as '1.0.31', not {version!r}")
    return Features(
        version,
        tools=numbers >= (1, 0, 29),
        system_prompts=numbers >= (1, 0, 31),
        run_errors=numbers >= (1, 0, 40),
    )


def sdk_module(features: Features, hook: Callable[..., Any]) -> ModuleType:
    """The installed SDK with the options of a version and a bridge of its own.

    Args:
        features: What that version has.
        hook: Makes the bridge.
    """
    import cursor_sdk  # not at import: it takes a tenth of a second

    module = ModuleType(cursor_sdk.__name__, cursor_sdk.__doc__)
    names = {name: value for name, value in vars(cursor_sdk).items() if not name.startswith("__")}
    vars(module).update(names, __file__=cursor_sdk.__file__, __all__=list(cursor_sdk.__all__))
    if not features.tools:
        vars(module)["AgentOptions"] = _without(
            cursor_sdk.AgentOptions, "tools", "disallowed_tools"
        )
    setattr(module, BRIDGE_HOOK, hook)
    return module


def _without(cls: type[Any], *missing: str) -> type[Any]:
    """A dataclass as it was before it had some of its fields."""

    def init(self: Any, *args: Any, **named: Any) -> None:
        for name in named:
            if name in missing:
                raise TypeError(
                    f"{cls.__name__}.__init__() got an unexpected keyword argument {name!r}"
                )
        cls.__init__(self, *args, **named)

    fields = {
        name: field for name, field in cls.__dataclass_fields__.items() if name not in missing
    }
    return type(
        cls.__name__,
        (cls,),
        {"__init__": init, "__dataclass_fields__": fields, "__module__": cls.__module__},
    )
