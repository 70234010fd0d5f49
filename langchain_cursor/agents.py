"""The agent factory: what this SDK can do, and the options for one throwaway agent."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

# The entry of `AgentOptions.agents` that carries our wishes to the bridge extension. `agents` is
# one of the few free-text fields that reach the bridge unchanged (cursor-sdk 1.1.0).
MARK = "langchain-cursor"

GUARDRAIL = (
    "Answer with text alone. Do not use any tool, do not read or write files, do not run "
    "commands, and do not ask for permission to do so: nothing outside this text is part of the "
    "task."
)


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What an SDK and its bridge can carry.

    Args:
        tools: `AgentOptions` has `tools`, so that an agent can be denied every tool
            (cursor-sdk 1.0.29 and later).
        sandbox: `LocalAgentOptions` has `sandbox_options`.
        extension: The bridge runs with this package's extension.
        system_prompt: An agent can be given a system prompt of its own: by a field of
            `AgentOptions`, or through the extension from `@cursor/sdk` 1.0.31 on
            (1.0.29 ignores it silently, so this goes by version).
    """

    tools: bool
    sandbox: bool
    extension: bool = False
    system_prompt: bool = False


@dataclasses.dataclass(frozen=True)
class AgentSettings:
    """What one call wants of its agent.

    Args:
        model: Model id or alias.
        model_params: Parameters of the model, by id.
        sandbox: Whether to ask for the sandbox.
        native_system_prompt: Whether system text must (True) or must not (False) become the
            agent's own system prompt; None where that is possible.
    """

    model: str
    model_params: tuple[tuple[str, str], ...] = ()
    sandbox: bool = True
    native_system_prompt: bool | None = None


def capabilities(sdk: ModuleType, extension_version: str | None = None) -> Capabilities:
    """Read from the SDK's types what it can carry.

    Args:
        sdk: The loaded SDK module.
        extension_version: The version of `@cursor/sdk` that the extension reported, if the
            bridge runs with it.
    """
    options = _fields(sdk.AgentOptions)
    return Capabilities(
        tools="tools" in options,
        sandbox="sandbox_options" in _fields(sdk.LocalAgentOptions),
        extension=extension_version is not None,
        system_prompt="system_prompt" in options
        or (extension_version is not None and version_tuple(extension_version) >= (1, 0, 31)),
    )


def agent_options(
    sdk: ModuleType,
    can: Capabilities,
    settings: AgentSettings,
    *,
    api_key: str,
    workspace: str,
    system_prompt: str | None = None,
    wishes: Mapping[str, Any] | None = None,
) -> Any:
    """Build the SDK's `AgentOptions` for one agent that can do nothing but answer.

    Args:
        sdk: The loaded SDK module.
        can: What this SDK and bridge can carry.
        settings: Model and sandbox.
        api_key: The account's key.
        workspace: An empty directory.
        system_prompt: The agent's own system prompt; only where ``can.system_prompt``. An empty
            one is none.
        wishes: What else the bridge extension should do; dropped where there is none.

    Raises:
        ValueError: A system prompt is given that this bridge would drop without a word.
    """
    local: dict[str, Any] = {"cwd": workspace, "setting_sources": []}
    if can.sandbox:
        local["sandbox_options"] = sdk.SandboxOptions(enabled=settings.sandbox)
    options: dict[str, Any] = {
        "model": sdk.ModelSelection(
            id=settings.model,
            params=tuple(
                sdk.ModelParameterValue(id=name, value=value)
                for name, value in settings.model_params
            ),
        ),
        "api_key": api_key,
        "local": sdk.LocalAgentOptions(**local),
    }
    if can.tools:
        # Only this makes the agent a plain model: unset means the full set of tools.
        options["tools"] = []
    wish: dict[str, Any] = dict(wishes or {})
    if system_prompt:
        if "system_prompt" in _fields(sdk.AgentOptions):
            options["system_prompt"] = system_prompt
        elif can.extension and can.system_prompt:
            wish["systemPrompt"] = system_prompt
        else:
            raise ValueError("this SDK and bridge cannot carry a system prompt: inline it")
    if can.extension:
        options["agents"] = {MARK: sdk.AgentDefinition(description=MARK, prompt=json.dumps(wish))}
    return sdk.AgentOptions(**options)


def model_params(params: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """Write model parameters as the SDK wants them: text by id, booleans in lower case.

    Raises:
        ValueError: A parameter is no text, finite number or boolean.

    Example:
        >>> model_params({"thinking": True, "effort": "high"})
        (('thinking', 'true'), ('effort', 'high'))
    """
    if params is None:
        return ()
    if not isinstance(params, Mapping):
        raise ValueError(f"model_params must be a mapping of ids to values: {params!r}")
    return tuple((_id(name), _text(name, value)) for name, value in params.items())


def version_tuple(version: str) -> tuple[int, ...]:
    """Read the leading numbers of a version.

    Example:
        >>> version_tuple("1.0.31-rc.1")
        (1, 0, 31)
    """
    leading = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def _id(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"the ids in model_params must be texts: {name!r}")
    return name


def _text(name: str, value: object) -> str:
    # The plain types' own words: a member of a `str` enum would tell its name, not its value.
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float) and math.isfinite(value):
        return float.__repr__(value)
    raise ValueError(
        f"model_params[{name!r}] must be a text, a finite number or a boolean: {value!r}"
    )


def _fields(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}
