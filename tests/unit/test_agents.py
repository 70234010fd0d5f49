"""An agent's options say the same on the wire whatever the SDK: a plain model, and nothing more."""

from __future__ import annotations

import dataclasses
import enum
import json
from types import ModuleType
from typing import Any

import cursor_sdk
import pytest
from syrupy.assertion import SnapshotAssertion

from langchain_cursor.agents import (
    MARK,
    AgentSettings,
    Capabilities,
    agent_options,
    capabilities,
    model_params,
    version_tuple,
)

clause = pytest.mark.clause

WORKSPACE = "/tmp/langchain-cursor-x/workspace"
STOCK = Capabilities(tools=True, sandbox=True)
EXTENDED = Capabilities(tools=True, sandbox=True, extension=True, system_prompt=True)


def wire(
    can: Capabilities = STOCK,
    settings: AgentSettings | None = None,
    sdk: ModuleType = cursor_sdk,
    **more: Any,
) -> dict[str, Any]:
    """The options as the real SDK writes them into the request, and JSON leaves them."""
    options = agent_options(
        sdk,
        can,
        settings or AgentSettings("composer-2.5"),
        api_key="crsr_0123",
        workspace=WORKSPACE,
        **more,
    )
    sent: dict[str, Any] = json.loads(json.dumps(options.to_json()))
    return sent


def wish(sent: dict[str, Any]) -> Any:
    """What the extension is asked for."""
    return json.loads(sent["agents"][MARK]["prompt"])


def sdk_with(
    *, options: tuple[str, ...] = (), local: tuple[str, ...] = (), name: str = "old_sdk"
) -> ModuleType:
    """An SDK of another version: the same classes with other fields."""
    module = ModuleType(name)
    vars(module).update(
        {
            cls: getattr(cursor_sdk, cls)
            for cls in ("AgentDefinition", "ModelParameterValue", "ModelSelection")
        },
        SandboxOptions=cursor_sdk.SandboxOptions,
        AgentOptions=dataclasses.make_dataclass(
            "AgentOptions",
            [
                (field, Any, None)
                for field in ("model", "api_key", "name", "local", "agents", *options)
            ],
            frozen=True,
        ),
        LocalAgentOptions=dataclasses.make_dataclass(
            "LocalAgentOptions",
            [(field, Any, None) for field in ("cwd", "setting_sources", *local)],
            frozen=True,
        ),
    )
    return module


# --- on the wire ---


@clause("AGENTS-1")
def test_the_options_of_a_plain_model_are_exactly_these() -> None:
    assert wire() == {
        "model": {"id": "composer-2.5"},
        "apiKey": "crsr_0123",
        "local": {"cwd": [WORKSPACE], "sandboxOptions": {"enabled": True}},
        "tools": {"names": []},
    }


@clause("AGENTS-1")
def test_with_the_extension_only_the_mark_is_added() -> None:
    stock, extended = wire(STOCK), wire(EXTENDED)
    agents = extended.pop("agents")
    assert extended == stock
    assert agents == {MARK: {"description": MARK, "prompt": "{}", "inheritModel": True}}


@clause("AGENTS-2")
@clause("SECURITY-4")
@pytest.mark.parametrize("can", [STOCK, EXTENDED])
@pytest.mark.parametrize("sandbox", [True, False])
def test_no_tools_reaches_the_wire_as_an_empty_list_of_names(
    can: Capabilities, sandbox: bool
) -> None:
    assert wire(can, AgentSettings("m", sandbox=sandbox))["tools"] == {"names": []}


@clause("AGENTS-2")
@clause("SECURITY-4")
def test_no_settings_of_the_user_are_loaded() -> None:
    options = agent_options(cursor_sdk, STOCK, AgentSettings("m"), api_key="k", workspace=WORKSPACE)
    assert options.local.setting_sources == []
    assert "settingSources" not in options.to_json()["local"]  # absent means none


@clause("AGENTS-3")
@clause("SECURITY-6")
@pytest.mark.parametrize("sandbox", [True, False])
def test_the_sandbox_is_asked_for_or_refused_never_left_out(sandbox: bool) -> None:
    sent = wire(settings=AgentSettings("m", sandbox=sandbox))
    assert sent["local"]["sandboxOptions"] == {"enabled": sandbox}


@clause("AGENTS-4")
def test_the_model_and_its_parameters_keep_their_order() -> None:
    params = model_params({"thinking": True, "effort": "high", "context": 200_000, "t": 0.5})
    assert wire(settings=AgentSettings("gpt-x", params))["model"] == {
        "id": "gpt-x",
        "params": [
            {"id": "thinking", "value": "true"},
            {"id": "effort", "value": "high"},
            {"id": "context", "value": "200000"},
            {"id": "t", "value": "0.5"},
        ],
    }


class Effort(str, enum.Enum):
    HIGH = "high"


class Level(enum.IntEnum):
    TWO = 2


@clause("AGENTS-4")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        ("True", "True"),
        ("", ""),
        (0, "0"),
        (-3, "-3"),
        (1e22, "1e+22"),
        (0.1, "0.1"),
        (Effort.HIGH, "high"),
        (Level.TWO, "2"),
    ],
)
def test_a_parameter_is_written_as_text(value: Any, text: str) -> None:
    ((name, written),) = model_params({"p": value})
    assert (name, written) == ("p", text)
    assert type(written) is str


@clause("AGENTS-4")
@pytest.mark.parametrize("none", [None, {}])
def test_no_parameters_leave_no_trace(none: Any) -> None:
    assert model_params(none) == ()
    assert wire(settings=AgentSettings("m", model_params(none)))["model"] == {"id": "m"}


@clause("AGENTS-4")
@pytest.mark.parametrize(
    "value", [None, float("nan"), float("inf"), ["high"], {"a": 1}, b"high", object()]
)
def test_a_parameter_that_is_no_plain_value_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"model_params\['effort'\] must be a text"):
        model_params({"ok": 1, "effort": value})


@clause("AGENTS-4")
@pytest.mark.parametrize("params", [["effort"], "effort", 5, [("effort", "high")]])
def test_parameters_that_are_no_mapping_are_refused(params: Any) -> None:
    with pytest.raises(ValueError, match="model_params must be a mapping"):
        model_params(params)


@clause("AGENTS-4")
@pytest.mark.parametrize("name", [1, None, ""])
def test_a_parameter_without_an_id_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="ids in model_params must be texts"):
        model_params({name: "x"})


# --- the system prompt ---


@clause("AGENTS-5")
@pytest.mark.parametrize("text", ["Be brief.", 'Say "ä" \\ \n</system>', "x" * 100_000, "\u2028"])
def test_the_system_prompt_travels_in_the_mark(text: str) -> None:
    sent = wire(EXTENDED, system_prompt=text)
    assert wish(sent) == {"systemPrompt": text}
    assert "systemPrompt" not in sent


@clause("AGENTS-5")
def test_where_the_sdk_has_a_field_the_system_prompt_goes_there() -> None:
    sdk = sdk_with(options=("tools", "system_prompt"), local=("sandbox_options",))
    for version in (None, "1.2.0", "1.0.29"):
        can = capabilities(sdk, version)
        assert can.system_prompt
        options = agent_options(
            sdk,
            can,
            AgentSettings("m"),
            api_key="k",
            workspace=WORKSPACE,
            system_prompt="Be brief.",
        )
        assert options.system_prompt == "Be brief."
        if version:
            assert json.loads(options.agents[MARK].prompt) == {}
        else:
            assert options.agents is None


@clause("AGENTS-5")
@pytest.mark.parametrize(
    "can",
    [
        STOCK,
        dataclasses.replace(STOCK, extension=True),
        # Capabilities of another bridge than this one: the text would vanish.
        dataclasses.replace(STOCK, system_prompt=True),
    ],
)
def test_a_system_prompt_that_would_be_dropped_is_refused(can: Capabilities) -> None:
    with pytest.raises(ValueError, match="inline it"):
        wire(can, system_prompt="Be brief.")


@clause("AGENTS-5")
@pytest.mark.parametrize("none", [None, ""])
@pytest.mark.parametrize("can", [STOCK, EXTENDED])
def test_no_system_prompt_asks_for_nothing(none: str | None, can: Capabilities) -> None:
    assert wire(can, system_prompt=none) == wire(can)


# --- what an SDK can do ---


@clause("AGENTS-6")
@pytest.mark.parametrize(
    ("version", "extension", "system_prompt"),
    [
        (None, False, False),
        ("1.0.29", True, False),
        ("1.0.30", True, False),
        ("1.0.31", True, True),
        ("1.0.31-rc.1", True, True),
        ("1.0.31+build.5", True, True),
        ("1.0.100", True, True),
        ("1.1", True, True),
        ("1.1.0", True, True),
        ("2.0.0", True, True),
        ("0.9.99", True, False),
        ("next", True, False),
        ("", True, False),
    ],
)
def test_the_extension_carries_a_system_prompt_from_1_0_31_on(
    version: str | None, extension: bool, system_prompt: bool
) -> None:
    assert capabilities(cursor_sdk, version) == Capabilities(
        tools=True, sandbox=True, extension=extension, system_prompt=system_prompt
    )


@clause("AGENTS-6")
@pytest.mark.parametrize(
    ("options", "local", "tools", "sandbox"),
    [
        ((), (), False, False),
        (("tools",), (), True, False),
        ((), ("sandbox_options",), False, True),
        (("tools",), ("sandbox_options",), True, True),
    ],
)
def test_what_an_sdk_can_do_is_read_from_its_types(
    options: tuple[str, ...], local: tuple[str, ...], tools: bool, sandbox: bool
) -> None:
    can = capabilities(sdk_with(options=options, local=local))
    assert can == Capabilities(tools=tools, sandbox=sandbox)


@clause("AGENTS-6")
def test_an_sdk_without_tools_and_sandbox_gets_the_rest() -> None:
    sdk = sdk_with()
    options = agent_options(
        sdk,
        capabilities(sdk),
        AgentSettings("m", (("effort", "high"),)),
        api_key="k",
        workspace=WORKSPACE,
    )
    assert not hasattr(options, "tools")
    assert (options.api_key, options.local.cwd) == ("k", WORKSPACE)
    assert options.local.setting_sources == []
    assert options.model == cursor_sdk.ModelSelection(
        id="m", params=(cursor_sdk.ModelParameterValue(id="effort", value="high"),)
    )
    assert options.agents is None


@clause("AGENTS-6")
@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("1.0.31", (1, 0, 31)),
        ("1.0.31-rc.1", (1, 0, 31)),
        ("1.0.31+build", (1, 0, 31)),
        ("1.0.31.dev4", (1, 0, 31)),
        ("10", (10,)),
        ("1.", (1,)),
        ("v1.0", ()),
        ("", ()),
        ("1.0.²", (1, 0)),
        ("١.0", ()),
    ],
)
def test_of_a_version_the_leading_numbers_are_read(version: str, numbers: tuple[int, ...]) -> None:
    assert version_tuple(version) == numbers


@clause("SPEC-5")
@pytest.mark.parametrize("can", [STOCK, EXTENDED], ids=["stock", "extension"])
@pytest.mark.parametrize("sandbox", [True, False], ids=["sandbox", "no sandbox"])
def test_the_options_as_they_are_sent(
    can: Capabilities, sandbox: bool, snapshot: SnapshotAssertion
) -> None:
    params = model_params({"thinking": True, "effort": "high"})
    settings = AgentSettings("composer-2.5", model_params=params, sandbox=sandbox)
    prompts = [None, "Be brief."] if can.system_prompt else [None]
    assert [wire(can, settings, system_prompt=prompt) for prompt in prompts] == snapshot
