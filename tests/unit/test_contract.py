"""Tools become a contract, and the contract judges replies."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import re
import socket
import subprocess
import sys
from typing import Annotated, Any

import pytest
from langchain_core.tools import InjectedToolArg, StructuredTool, Tool, tool
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from langchain_cursor._json_scan import JSONError, decode
from langchain_cursor.contract import (
    Call,
    Contract,
    ContractViolation,
    JsonContract,
    Parsed,
    ReplyScanner,
    ToolSpec,
    bind,
    json_contract,
    read,
    render_calls,
)

NOW = {"name": "now", "description": "The time.", "parameters": {"type": "object"}}
SEARCH = {
    "name": "search",
    "description": "Find pages.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    },
}


def bound(*args: Any, **kwargs: Any) -> Contract:
    contract = bind(*args, **kwargs)
    assert contract is not None
    return contract


def violation(contract: Contract | JsonContract, reply: str) -> ContractViolation:
    with pytest.raises(ContractViolation) as caught:
        contract.parse(reply)
    return caught.value


def asking(name: str, **arguments: Any) -> str:
    return render_calls([Call(name, arguments)])


# --- Tools in -------------------------------------------------------------------------------------


def weather_function(city: str, days: int = 1) -> str:
    """Get the weather.

    Args:
        city: Where.
        days: How far ahead.
    """
    return f"{city} {days}"


@tool(parse_docstring=True)
def weather_tool(city: str, days: int = 1) -> str:
    """Get the weather.

    Args:
        city: Where.
        days: How far ahead.
    """
    return f"{city} {days}"


class WeatherModel(BaseModel):
    """Get the weather."""

    city: str = Field(description="Where.")
    days: int = Field(1, description="How far ahead.")


class WeatherDict(TypedDict, total=False):
    """Get the weather."""

    city: Annotated[str, ..., "Where."]
    days: Annotated[int, 1, "How far ahead."]


WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
    "required": ["city"],
}
FORMS = {
    "function": (weather_function, "weather_function"),
    "base-tool": (weather_tool, "weather_tool"),
    "structured-tool": (StructuredTool.from_function(weather_function), "weather_function"),
    "pydantic-model": (WeatherModel, "WeatherModel"),
    "openai": (
        {
            "type": "function",
            "function": {
                "name": "w",
                "description": "Get the weather.",
                "parameters": WEATHER_SCHEMA,
            },
        },
        "w",
    ),
    "openai-function": (
        {"name": "w", "description": "Get the weather.", "parameters": WEATHER_SCHEMA},
        "w",
    ),
    "openai-responses": (
        {
            "type": "function",
            "name": "w",
            "description": "Get the weather.",
            "parameters": WEATHER_SCHEMA,
        },
        "w",
    ),
    "anthropic": (
        {"name": "w", "description": "Get the weather.", "input_schema": WEATHER_SCHEMA},
        "w",
    ),
    "json-schema": ({"title": "w", "description": "Get the weather.", **WEATHER_SCHEMA}, "w"),
    "bedrock": (
        {
            "toolSpec": {
                "name": "w",
                "description": "Get the weather.",
                "inputSchema": {"json": WEATHER_SCHEMA},
            }
        },
        "w",
    ),
}


@pytest.mark.clause("CONTRACT-1")
@pytest.mark.parametrize("form", FORMS)
def test_a_tool_in_every_form_of_langchain_becomes_name_description_and_schema(form: str) -> None:
    given, name = FORMS[form]
    (spec,) = bound([given]).tools
    assert spec.name == name
    assert spec.description.startswith("Get the weather.")
    assert spec.parameters["type"] == "object"
    assert spec.parameters["required"] == ["city"]
    assert spec.parameters["properties"]["city"]["type"] == "string"
    assert spec.parameters["properties"]["days"]["type"] == "integer"


@pytest.mark.clause("CONTRACT-1")
def test_a_typed_dict_becomes_a_tool() -> None:
    (spec,) = bound([WeatherDict]).tools
    assert spec.name == "WeatherDict"
    assert set(spec.parameters["properties"]) == {"city", "days"}
    assert spec.parameters["required"] == ["city"]


@pytest.mark.clause("CONTRACT-1")
def test_a_pydantic_v1_model_becomes_a_tool() -> None:
    from pydantic.v1 import BaseModel as BaseModelV1

    class Old(BaseModelV1):
        """An old model."""

        city: str

    (spec,) = bound([Old]).tools
    assert (spec.name, spec.description) == ("Old", "An old model.")
    assert spec.parameters["required"] == ["city"]


@pytest.mark.clause("CONTRACT-1")
def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    for given in (
        {"name": "now"},
        {"name": "now", "parameters": None},
        {"type": "function", "function": {"name": "now"}},
        {"title": "now", "type": "object"},
    ):
        contract = bound([given], strict=True) if "title" not in given else bound([given])
        assert contract.parse(asking("now")).calls == (Call("now", {}),)


@pytest.mark.clause("CONTRACT-1")
def test_injected_arguments_are_not_shown_to_the_model() -> None:
    @tool
    def lookup(key: str, user: Annotated[str, InjectedToolArg]) -> str:
        """Look up."""
        return key + user

    assert set(bound([lookup]).tools[0].parameters["properties"]) == {"key"}


@pytest.mark.clause("CONTRACT-1")
def test_a_simple_tool_takes_its_one_text() -> None:
    contract = bound([Tool(name="ask", description="Ask.", func=str)])
    assert contract.parse(asking("ask", __arg1="hi")).calls == (Call("ask", {"__arg1": "hi"}),)


@pytest.mark.clause("CONTRACT-1")
def test_strict_closes_the_schema() -> None:
    contract = bound([weather_tool], strict=True)
    assert contract.tools[0].parameters["additionalProperties"] is False
    wrong = violation(contract, asking("weather_tool", city="Rome", days=1, unit="C"))
    assert "unit" in wrong.message


@pytest.mark.clause("CONTRACT-1")
def test_strict_also_closes_the_schema_of_an_openai_dict_and_leaves_the_dict_alone() -> None:
    given = {"type": "function", "function": copy.deepcopy(SEARCH)}
    contract = bound([given], strict=True)
    assert contract.tools[0].parameters["additionalProperties"] is False
    assert given["function"] == SEARCH


@pytest.mark.clause("CONTRACT-2")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"type": "web_search_20250305", "name": "web_search"}, "run by its provider"),
        ({"type": "code_interpreter", "container": {"type": "auto"}}, "run by its provider"),
        ({"type": "web_search_preview"}, "run by its provider"),
        ({"name": "", "parameters": {"type": "object"}}, "has no name"),
        ({"name": "f", "parameters": {"type": "array"}}, "must be a JSON Schema of an object"),
        ({"title": "f", "type": "array", "items": {}}, "must be a JSON Schema of an object"),
        ({"name": "f", "parameters": {"type": "object", "required": 1}}, "Invalid JSON Schema"),
        ({"name": "f", "parameters": {"properties": {"a": {"type": "text"}}}}, "properties.a.type"),
        ({"name": "f", "parameters": {"default": {1, 2}}}, "not JSON"),
        ({"name": "f", "parameters": {"default": float("nan")}}, "Out of range"),
    ],
)
def test_a_tool_that_cannot_be_called_is_refused_with_the_reason(given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        bind([given])


@pytest.mark.clause("CONTRACT-2")
def test_a_tool_of_free_text_is_refused() -> None:
    given = Tool(name="run", description="Run.", func=str, metadata={"type": "custom_tool"})
    with pytest.raises(ValueError, match="Give it an argument schema"):
        bind([given])


@pytest.mark.clause("CONTRACT-2")
def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="Several tools are called 'now'"):
        bind([NOW, SEARCH, {**NOW, "description": "Another."}])


@pytest.mark.clause("CONTRACT-2")
def test_the_same_tool_given_twice_counts_once() -> None:
    same = {"type": "function", "function": copy.deepcopy(SEARCH)}
    assert bound([SEARCH, NOW, same, NOW]) == bound([SEARCH, NOW])


@pytest.mark.clause("CONTRACT-1")
def test_titles_are_left_out_but_nothing_that_is_only_called_title() -> None:
    schema = {
        "title": "f",
        "type": "object",
        "properties": {"title": {"title": "Title", "type": "string", "default": {"title": "x"}}},
        "required": ["title"],
        "$defs": {"title": {"title": "T", "const": {"title": "x"}}},
    }
    assert bound([{"name": "f", "parameters": schema}]).tools[0].parameters == {
        "type": "object",
        "properties": {"title": {"type": "string", "default": {"title": "x"}}},
        "required": ["title"],
        "$defs": {"title": {"const": {"title": "x"}}},
    }


@pytest.mark.clause("CONTRACT-2")
@pytest.mark.parametrize(
    "reference", ["https://example.com/s.json", "other.json#/a", "#/$defs/none", "#anchor", "#/a/x"]
)
def test_a_reference_that_leads_nowhere_is_refused(reference: str) -> None:
    schema = {"type": "object", "properties": {"a": {"items": {"$ref": reference}}}}
    with pytest.raises(ValueError, match=re.escape(reference)):
        bind([{"name": "f", "parameters": schema}])


@pytest.mark.clause("CONTRACT-2")
def test_no_reference_is_ever_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a schema reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    # The schema looks as if it stood in a document elsewhere; its own anchors still resolve.
    schema = {
        "$id": "https://example.com/tool.json",
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "tool.json#/$defs/n"}},
        "$defs": {"n": {"type": "integer"}},
    }
    contract = bound([{"name": "f", "parameters": schema}])
    assert contract.parse(asking("f", a=1, b=2)).calls
    assert violation(contract, asking("f", a="1", b=2)).reason == "invalid-arguments"


@pytest.mark.clause("CONTRACT-2")
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_a_reference_is_followed_to_where_no_schema_stands(keyword: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/shared/a"}},
        "shared": {"a": {"items": {keyword: "https://example.com/s.json"}}},
    }
    with pytest.raises(ValueError, match=r"example\.com"):
        bind([{"name": "f", "parameters": schema}])


@pytest.mark.clause("CONTRACT-2")
def test_a_schema_may_refer_to_the_schema_of_schemas() -> None:
    draft = "https://json-schema.org/draft/2020-12/schema"
    schema = {"type": "object", "properties": {"schema": {"$ref": draft}}}
    contract = bound([{"name": "f", "parameters": schema}])
    assert contract.parse(asking("f", schema={"type": "object"})).calls
    wrong = violation(contract, asking("f", schema={"type": "text"}))
    assert "arguments.schema.type" in wrong.message


@pytest.mark.clause("CONTRACT-2")
def test_a_property_may_be_called_like_a_keyword() -> None:
    schema = {
        "type": "object",
        "properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}},
    }
    contract = bound([{"name": "f", "parameters": schema}])
    assert contract.parse(render_calls([Call("f", {"$ref": "x", "pattern": "("})])).calls


# --- Choices --------------------------------------------------------------------------------------


@pytest.mark.clause("CONTRACT-3")
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", None)),
        (False, ("auto", None)),
        ("auto", ("auto", None)),
        ({"type": "auto"}, ("auto", None)),
        (True, ("any", None)),
        ("any", ("any", None)),
        ("required", ("any", None)),
        ({"type": "any"}, ("any", None)),
        ("search", ("tool", "search")),
        ({"type": "function", "function": {"name": "search"}}, ("tool", "search")),
        ({"type": "function", "name": "search"}, ("tool", "search")),
        ({"type": "tool", "name": "search"}, ("tool", "search")),
    ],
)
def test_a_tool_choice_is_understood_in_every_form(choice: Any, expected: Any) -> None:
    contract = bound([NOW, SEARCH], tool_choice=choice)
    assert (contract.choice, contract.forced) == expected
    assert contract.parallel


@pytest.mark.clause("CONTRACT-3")
@pytest.mark.parametrize(
    ("tools", "choice"), [([NOW], "none"), ([NOW], {"type": "none"}), ([], None), ([], "none")]
)
def test_where_nothing_may_be_called_there_is_no_contract(tools: Any, choice: Any) -> None:
    assert bind(tools, tool_choice=choice) is None


@pytest.mark.clause("CONTRACT-3")
def test_a_choice_of_an_unknown_tool_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'later', but the tools are 'now', 'search'"):
        bind([NOW, SEARCH], tool_choice="later")


@pytest.mark.clause("CONTRACT-3")
@pytest.mark.parametrize("choice", [{"type": "sometimes"}, {}, 5, ["now"]])
def test_a_choice_that_is_not_understood_is_refused(choice: Any) -> None:
    with pytest.raises(ValueError, match="is not understood"):
        bind([NOW], tool_choice=choice)


@pytest.mark.clause("CONTRACT-3")
def test_a_call_cannot_be_due_without_tools() -> None:
    with pytest.raises(ValueError, match="no tools are bound"):
        bind([], tool_choice="any")


@pytest.mark.clause("CONTRACT-3")
@pytest.mark.parametrize(
    "kwargs",
    [
        {"parallel_tool_calls": False},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ],
)
def test_parallel_calls_can_be_turned_off(kwargs: Any) -> None:
    contract = bound([NOW], **kwargs)
    assert not contract.parallel
    assert bound([NOW], parallel_tool_calls=True).parallel


@pytest.mark.clause("CONTRACT-1")
def test_a_contract_is_plain_data() -> None:
    contract = bound([NOW, SEARCH], tool_choice="any")
    contract.parse(asking("now"))
    again = pickle.loads(pickle.dumps(contract))
    assert again == contract == copy.deepcopy(contract)
    assert hash(again) == hash(contract)
    assert again != bound([NOW, SEARCH])
    assert again.parse(asking("now")).calls == (Call("now", {}),)
    values = json_contract({"type": "object"})
    assert pickle.loads(pickle.dumps(values)) == values
    frozen: Any = contract
    with pytest.raises(AttributeError):
        frozen.choice = "auto"


@pytest.mark.clause("CONTRACT-16")
def test_a_violation_travels_between_processes() -> None:
    wrong = violation(bound([NOW]), asking("later"))
    again = pickle.loads(pickle.dumps(wrong))
    assert (again.reason, again.message, again.reply) == (wrong.reason, wrong.message, wrong.reply)
    assert str(again) == wrong.message


# --- The text -------------------------------------------------------------------------------------


@pytest.mark.clause("CONTRACT-4")
def test_the_block_states_the_form_and_lists_the_tools() -> None:
    lines = bound([NOW, SEARCH]).render().split("\n")
    assert lines[0] == "<contract>"
    assert lines[-1] == "</contract>"
    assert '{"tool_calls":[{"name":"TOOL","arguments":{"KEY":"VALUE"}}]}' in lines
    listed = [json.loads(line) for line in lines[-3:-1]]
    assert listed == [NOW, SEARCH]


@pytest.mark.clause("CONTRACT-5")
def test_the_same_tools_give_the_same_block() -> None:
    assert bound([NOW, weather_tool]).render() == bound([NOW, weather_tool]).render()


@pytest.mark.clause("CONTRACT-6")
@pytest.mark.parametrize(
    ("choice", "parallel", "count"),
    [
        (None, None, "Calls: none, one or several."),
        (None, False, "Calls: none or one."),
        ("any", None, "Calls: one or several."),
        ("any", False, "Calls: exactly one."),
        ("now", None, "Calls: one or several, all of the one tool below."),
        ("now", False, "Calls: exactly one, of the one tool below."),
    ],
)
def test_the_block_says_how_many_calls_are_due(
    choice: str | None, parallel: bool | None, count: str
) -> None:
    text = bound([NOW, SEARCH], tool_choice=choice, parallel_tool_calls=parallel).render()
    assert count in text.split("\n")
    assert ("Your answer to the user" in text) == (choice is None)
    assert ("Several calls stand in the one list" in text) == (parallel is None)


@pytest.mark.clause("CONTRACT-6")
def test_of_a_forced_tool_alone_the_schema_is_shown() -> None:
    text = bound([NOW, SEARCH], tool_choice="search").render()
    assert "Find pages." in text
    assert "The time." not in text
    assert '{"tool_calls":[{"name":"search","arguments":{"KEY":"VALUE"}}]}' in text


@pytest.mark.clause("CONTRACT-7")
def test_the_block_for_a_value_shows_its_schema() -> None:
    text = json_contract({"type": "array", "description": "</contract>"}).render()
    assert "Your whole reply is one JSON array and nothing else." in text
    assert '{"type":"array","description":"\\u003c/contract>"}' in text.split("\n")
    assert "JSON Schema" not in json_contract().render()


@pytest.mark.clause("CONTRACT-2")
def test_an_invalid_schema_for_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="Invalid JSON Schema"):
        json_contract({"type": "text"})
    with pytest.raises(ValueError, match="leads out of the schema"):
        json_contract({"$ref": "https://example.com/s.json"})


@pytest.mark.clause("CONTRACT-23")
def test_reading_finds_the_last_block_and_nothing_in_other_text() -> None:
    first, last = bound([NOW]), bound([SEARCH], tool_choice="any")
    assert read(f"{first.render()}\n{last.render()}") == last
    assert read("<user>\nHi\n</user>") is None
    assert read("<contract>\nBe kind.\n</contract>") is None
    assert read("<contract>\nnever closed") is None
    for schema in (None, {"type": "array"}, {}):
        assert read(json_contract(schema).render()) == json_contract(schema)


# --- Replies --------------------------------------------------------------------------------------


@pytest.mark.clause("CONTRACT-20")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("search", "search"),
        ("functions.search", "search"),
        ("tools.search", "search"),
        ("Search", "search"),
        ("functions.SEARCH", "search"),
        ("Now", None),  # "now" and "NOW" are both bound
        ("now", "now"),
        ("NOW", "NOW"),
        ("functions.x", "functions.x"),
        ("x", None),
        ("searches", None),
        ("other.search", None),
    ],
)
def test_a_name_means_one_tool_or_none(written: str, meant: str | None) -> None:
    names = ["search", "now", "NOW", "functions.x"]
    assert Contract(tuple(ToolSpec(name) for name in names)).resolve(written) == meant


@pytest.mark.clause("CONTRACT-13")
def test_text_is_shown_at_once_and_held_from_where_a_reply_may_begin() -> None:
    scanner = bound([NOW]).scanner()
    assert scanner.feed("Let me") == "Let me"
    assert scanner.feed(" see.\n\n") == " see."
    assert scanner.feed("```js") == ""
    assert scanner.feed("on\n") == ""
    assert scanner.feed('{"tool_calls": [{"na') == ""
    assert scanner.feed('me": "now"}]}\n```\nDone.') == ""
    assert scanner.finish() == '\n\n```json\n{"tool_calls": [{"name": "now"}]}\n```\nDone.'
    assert scanner.parsed() == Parsed((Call("now", {}),), "Let me see.\n\nDone.")


@pytest.mark.clause("CONTRACT-13")
def test_text_is_shown_as_soon_as_it_is_decided_not_to_be_a_call() -> None:
    scanner = bound([NOW]).scanner()
    assert scanner.feed("See [") == "See"
    assert scanner.feed("1") == " [1"
    assert scanner.feed('] or {"a": ') == "] or"
    assert scanner.feed("[2]") == ""
    assert scanner.feed("}") == ' {"a": [2]}'
    assert scanner.feed(" ```py") == ""
    assert scanner.feed("thon\nx") == " ```python\nx"
    assert scanner.feed(" <tool_") == ""
    assert scanner.feed("box>") == " <tool_box>"
    assert scanner.feed(" `") == ""
    assert scanner.feed("x` {") == " `x`"
    assert scanner.feed("y}") == " {y}"
    assert scanner.finish() == ""


@pytest.mark.clause("CONTRACT-13")
@pytest.mark.parametrize("contract", [bound([NOW], tool_choice="any"), json_contract()])
def test_where_no_answer_is_allowed_everything_is_held(contract: Any) -> None:
    scanner = contract.scanner()
    assert scanner.feed("Well, {hm}. ") == ""
    assert scanner.finish() == "Well, {hm}. "


@pytest.mark.clause("CONTRACT-14")
def test_a_finished_scanner_takes_no_more_text() -> None:
    scanner = ReplyScanner(bound([NOW]))
    scanner.feed("Hi")
    scanner.parsed()
    assert scanner.finish() == ""
    with pytest.raises(RuntimeError, match="finished"):
        scanner.feed("more")


@pytest.mark.clause("CONTRACT-16")
def test_a_correction_says_what_was_wrong_and_what_is_due() -> None:
    contract = bound([NOW, SEARCH])
    told = contract.correction(violation(contract, asking("serach", query="x")))
    assert 'Call 1 ("serach"): there is no such tool.' in told
    assert 'The tools are: "now", "search".' in told
    assert '{"tool_calls":[{"name":"TOOL","arguments":{"KEY":"VALUE"}}]}' in told
    assert "plain text" in told

    forced = bound([NOW, SEARCH], tool_choice="search", parallel_tool_calls=False)
    told = forced.correction(violation(forced, "No."))
    assert '{"tool_calls":[{"name":"search"' in told
    assert "exactly one" in told
    assert "in plain text instead" not in told

    values = json_contract({"type": "object", "required": ["a"]})
    told = values.correction(violation(values, "{}"))
    assert "'a' is a required property" in told
    assert '{"type":"object","required":["a"]}' in told


@pytest.mark.clause("CONTRACT-17")
def test_messages_stay_short_for_long_values() -> None:
    contract = bound([{"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}])
    wrong = violation(contract, asking("f", a="x" * 100_000))
    assert len(wrong.message) < 500
    wrong = violation(contract, asking("f" * 100_000))
    assert len(wrong.message) < 500


@pytest.mark.clause("CONTRACT-24")
def test_an_answer_in_json_is_allowed_beside_calls() -> None:
    answer = json_contract({"type": "object", "required": ["hour"]})
    contract = bound([NOW]).with_answer(answer)

    assert contract.parse(asking("now")) == Parsed((Call("now", {}),), "")
    assert contract.parse('It is {"hour": 12}.') == Parsed((), '{"hour": 12}', {"hour": 12})
    said = '{"tool_calls": [], "content": "{\\"hour\\": 12}"}'
    assert contract.parse(said).value == {"hour": 12}
    for reply, reason in [
        ("It is noon.", "no-json"),
        ('{"minute": 0}', "invalid-value"),
        ('{"hour": 12', "invalid-json"),
        (asking("later"), "unknown-tool"),
        ('{"tool_calls": [', "invalid-json"),
        ('{"tool_calls": []}', "no-json"),
    ]:
        wrong = violation(contract, reply)
        assert (wrong.reason, wrong.reply) == (reason, reply)


@pytest.mark.clause("CONTRACT-24")
def test_an_answer_in_json_is_asked_for_and_held() -> None:
    contract = bound([NOW]).with_answer(json_contract({"type": "array", "items": {}}))
    text = contract.render()
    assert "2. Your answer to the user: one JSON array and nothing else." in text.split("\n")
    assert '{"type":"array","items":{}}' in text.split("\n")
    assert "plain text" not in text
    assert read(text) == contract
    assert read(bound([NOW]).with_answer(json_contract()).render()).answer == json_contract()
    assert contract.scanner().feed("It is ") == ""

    told = contract.correction(violation(contract, "No."))
    assert "one JSON array" in told
    assert "plain text" not in told
    assert pickle.loads(pickle.dumps(contract)) == contract


@pytest.mark.clause("CONTRACT-24")
def test_where_a_call_is_due_there_is_no_answer_in_json_either() -> None:
    contract = bound([NOW], tool_choice="any")
    assert contract.with_answer(json_contract()) == contract


# --- Schemas --------------------------------------------------------------------------------------


def schema_violation(schema: dict[str, Any], value: Any) -> str | None:
    contract = json_contract(schema)
    try:
        contract.parse(json.dumps(value))
    except ContractViolation as wrong:
        return wrong.message
    return None


@pytest.mark.clause("CONTRACT-15")
def test_a_pattern_of_another_language_is_not_checked() -> None:
    letters = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^\p{L}+$"}}}
    assert schema_violation(letters, {"a": "1"}) is None
    assert schema_violation(letters, {"a": 1}) is not None
    keys = {"patternProperties": {r"^\p{L}$": {}}, "additionalProperties": False}
    assert schema_violation({"type": "object", **keys}, {"a": 1}) is None
    keys = {"patternProperties": {r"^\p{L}$": {}}, "unevaluatedProperties": False}
    assert schema_violation({"type": "object", **keys}, {"a": 1}) is None
    python = {"type": "object", "properties": {"a": {"pattern": "^[a-z]+$"}}}
    assert schema_violation(python, {"a": "1"}) is not None
    keys = {"patternProperties": {"^[a-z]$": {}}, "additionalProperties": False}
    assert schema_violation({"type": "object", **keys}, {"a": 1}) is None
    assert schema_violation({"type": "object", **keys}, {"1": 1}) is not None


@pytest.mark.clause("CONTRACT-15")
@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False], True),
        (["1", 1], True),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
        ([[1, 2], [2, 1]], True),
        ([{"a": [1]}, {"a": [1.0]}], False),
        ([{"a": 1}, {"a": 2}], True),
        (["a", "a"], False),
        ([None, None], False),
    ],
)
def test_unique_items_are_compared_as_json_does(items: list[Any], unique: bool) -> None:
    found = schema_violation({"type": "array", "uniqueItems": True}, items)
    assert (found is None) == unique
    assert schema_violation({"type": "array", "uniqueItems": False}, items) is None
    anything: dict[str, Any] = {"uniqueItems": True}
    assert schema_violation({"properties": {"a": anything}}, {"a": "xx"}) is None


@pytest.mark.clause("CONTRACT-15")
def test_the_nearest_alternative_is_named() -> None:
    schema = {
        "type": "object",
        "properties": {
            "e": {
                "anyOf": [
                    {"type": "null"},
                    {"properties": {"op": {"const": "+"}, "n": {"type": "integer"}}},
                    {"properties": {"op": {"const": "*"}, "n": {"type": "string"}}},
                ]
            }
        },
    }
    found = schema_violation(schema, {"e": {"op": "*", "n": True}})
    assert found is not None
    assert "value.e.n: True is not of type 'string'." in found


@pytest.mark.clause("CONTRACT-15")
def test_what_two_references_find_is_named_once() -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}],
        "type": "object",
        "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/i"}}}, "i": {"type": "integer"}},
    }
    found = schema_violation(schema, {"n": "x"})
    assert found is not None
    assert found.split("\n")[1:] == ["value.n: 'x' is not of type 'integer'."]


@pytest.mark.clause("CONTRACT-15")
def test_an_older_draft_is_honoured() -> None:
    draft4 = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 5, "exclusiveMaximum": True}},
    }
    assert schema_violation(draft4, {"a": 5}) is not None
    assert schema_violation(draft4, {"a": 4}) is None


@pytest.mark.clause("CONTRACT-17")
@pytest.mark.parametrize(
    ("schema", "reply"),
    [
        ({"$ref": "#"}, "{}"),
        ({"type": "object", "properties": {"a": {"multipleOf": 0.1}}}, '{"a": 1' + "0" * 400 + "}"),
    ],
)
def test_a_value_that_cannot_be_checked_is_a_violation(schema: Any, reply: str) -> None:
    assert "checked" in violation(json_contract(schema), reply).message


@pytest.mark.clause("CONTRACT-17")
@pytest.mark.parametrize("frames", [0, 300, 600, 900])
def test_a_deep_value_is_checked_or_a_violation_however_little_stack_is_left(frames: int) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    contract = json_contract(schema)
    deep = '{"a": ' * 90 + "{}" + "}" * 90

    def descend(left: int) -> str:
        if left:
            return descend(left - 1)
        try:
            return contract.parse(deep).text
        except ContractViolation as wrong:
            return wrong.message

    try:
        found = descend(max(frames - len(inspect.stack()), 0))
    except RecursionError:
        pytest.fail("the end of the stack came through")
    assert found == deep or "nested too deep" in found


def expression(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = {"op": "*", "l": leaf, "r": 2}
    return leaf


@pytest.mark.clause("CONTRACT-1")
@pytest.mark.parametrize(
    "given",
    [
        {"type": "custom", "name": "f", "input_schema": {"type": "object"}},
        {"type": "custom", "name": "f", "parameters": {"type": "object"}},
        {"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}},
        {"type": "object", "title": "f"},
    ],
)
def test_a_dict_that_defines_a_function_is_a_tool_in_whatever_form(given: Any) -> None:
    (spec,) = bound([given]).tools
    assert (spec.name, spec.description, spec.parameters["type"]) == ("f", "", "object")


@pytest.mark.clause("CONTRACT-1")
def test_a_tool_can_be_written_in_openais_form() -> None:
    given = {"type": "function", "function": SEARCH}
    assert bound([given]).tools[0].as_openai_tool() == given
    assert bound([bound([given]).tools[0].as_openai_tool()]) == bound([SEARCH])


@pytest.mark.clause("CONTRACT-1")
def test_titles_are_left_out_of_schemas_and_nowhere_else() -> None:
    properties = {
        "title": {"title": "Title", "type": "string"},
        "rows": {
            "type": "array",
            "items": {"title": "Row", "type": "object"},
            "default": {"title": "kept"},
        },
    }
    spec = bound([{"name": "f", "parameters": {"type": "object", "properties": properties}}])
    assert spec.tools[0].parameters["properties"] == {
        "title": {"type": "string"},
        "rows": {"type": "array", "items": {"type": "object"}, "default": {"title": "kept"}},
    }


@pytest.mark.clause("CONTRACT-5")
def test_text_stays_readable_and_half_a_character_is_escaped() -> None:
    block = bound([{"name": "f", "description": "Größe \ud83d"}]).render()
    assert r'"description":"Größe \ud83d"' in block
    block.encode()


@pytest.mark.clause("CONTRACT-2")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"type": "web_search_1", "name": "search"},
            "Tool 'search' is run by its provider and cannot be called through a Cursor agent: "
            "{'type': 'web_search_1', 'name': 'search'}. Bind a tool of your own.",
        ),
        (
            {"type": "web_search_1"},
            "Tool 'web_search_1' is run by its provider and cannot be called through a Cursor "
            "agent: {'type': 'web_search_1'}. Bind a tool of your own.",
        ),
        (
            {"name": "", "parameters": {"type": "object"}},
            "This tool has no name: {'name': '', 'parameters': {'type': 'object'}}. Give it one.",
        ),
        (
            {"name": "f", "parameters": {"type": "array"}},
            "The parameters of tool 'f' must be a JSON Schema of an object, not {'type': 'array'}. "
            "Wrap the value in an object with one property.",
        ),
        (
            Tool(name="run", description="Run.", func=str, metadata={"type": "custom_tool"}),
            "Tool 'run' takes free text in another provider's format ('custom'). Give it an "
            "argument schema.",
        ),
    ],
)
def test_a_refusal_names_the_tool_and_what_to_do(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        bind([given])


@pytest.mark.clause("CONTRACT-2")
def test_a_schema_without_a_title_has_no_name() -> None:
    with pytest.raises(ValueError, match="'title'"):
        bind([{"type": "object", "properties": {}}])


@pytest.mark.clause("CONTRACT-15")
def test_a_place_is_written_as_in_code() -> None:
    number = {"type": "integer"}
    schema = {
        "type": "object",
        "properties": {
            "unit price": number,
            "größe in m": number,
            "rows": {"type": "array", "items": number},
        },
    }
    found = schema_violation(schema, {"unit price": "x", "größe in m": "y", "rows": [1, "z"]})
    assert found == (
        "The value does not fit the JSON Schema.\n"
        "value[\"unit price\"]: 'x' is not of type 'integer'.\n"
        "value[\"größe in m\"]: 'y' is not of type 'integer'.\n"
        "value.rows[1]: 'z' is not of type 'integer'."
    )


@pytest.mark.clause("CONTRACT-17")
def test_an_interpreter_with_lower_limits_has_violations_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Where the stack ends inside the standard library depends on the interpreter.
    def at_the_end(text: str, strict: bool) -> None:
        raise RecursionError

    monkeypatch.setattr("langchain_cursor._json_scan.json.loads", at_the_end)
    with pytest.raises(JSONError, match="nested too deep for the stack that is left"):
        decode('{"tool_calls": []}')


@pytest.mark.clause("CONTRACT-17")
@pytest.mark.parametrize(
    ("text", "message", "position"),
    [
        ("{} {}", "more text after the JSON value", 3),
        ('{"a": größe}', 'expected a value, found "größe"', 6),
        (f"[{'x' * 20}]", f'expected a value, found "{"x" * 20}"', 1),
        (f"[{'x' * 21}]", f'expected a value, found "{"x" * 20}..."', 1),
        ('"\\ud83d"', "a string holds half of a surrogate pair", 0),
    ],
)
def test_an_error_in_json_is_told_with_its_place(text: str, message: str, position: int) -> None:
    with pytest.raises(JSONError) as caught:
        decode(text)
    assert (caught.value.message, caught.value.position) == (message, position)


@pytest.mark.clause("CONTRACT-15")
@pytest.mark.parametrize(
    ("arguments", "kind"),
    [("5", "a number"), ("[1]", "a list"), ("true", "a boolean"), (r'"\"text\""', "a string")],
)
def test_arguments_that_are_no_object_are_named_by_their_kind(arguments: str, kind: str) -> None:
    reply = f'{{"tool_calls": [{{"name": "now", "arguments": {arguments}}}]}}'
    wrong = violation(bound([NOW]), reply)
    assert wrong.reason == "invalid-arguments"
    assert f'"arguments" must be an object, not {kind}.' in wrong.message


@pytest.mark.clause("CONTRACT-7")
@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"properties": {"a": {}}}, "object"),
        ({"type": "object"}, "object"),
        ({"type": "array"}, "array"),
        ({"type": "integer"}, "value"),
        ({"type": ["object", "null"]}, "value"),
        ({}, "value"),
        (None, "object"),
    ],
)
def test_the_kind_of_value_that_is_due_is_named(schema: Any, kind: str) -> None:
    assert (
        f"Your whole reply is one JSON {kind} and nothing else." in json_contract(schema).render()
    )


@pytest.mark.clause("CONTRACT-21")
def test_alternatives_that_refer_to_themselves_are_checked_in_linear_time() -> None:
    sides = {"l": {"$ref": "#/$defs/e"}, "r": {"$ref": "#/$defs/e"}}
    definitions = {
        "e": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/sum"}, {"$ref": "#/$defs/product"}]},
        "sum": {"type": "object", "properties": {"op": {"const": "+"}, **sides}},
        "product": {"type": "object", "properties": {"op": {"const": "*"}, **sides}},
    }
    schema = {"type": "object", "properties": {"e": {"$ref": "#/$defs/e"}}, "$defs": definitions}
    assert schema_violation(schema, {"e": expression(40, 1)}) is None
    found = schema_violation(schema, {"e": expression(40, "x")})
    assert found is not None
    assert f"value.e{'.l' * 40}: 'x' is not of type 'integer'" in found


@pytest.mark.clause("PACKAGE-3")
def test_importing_the_contract_loads_neither_langchain_nor_jsonschema() -> None:
    code = (
        "import sys, langchain_cursor.contract as c\n"
        "scanner = c.Contract((c.ToolSpec('now'),)).scanner()\n"
        "scanner.feed('It is noon.'); scanner.parsed()\n"
        "sys.exit(any(name in sys.modules for name in ('jsonschema', 'langchain_core')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.clause("CONTRACT-2")
def test_an_object_that_is_no_tool_is_refused() -> None:
    nothing: Any = object()
    with pytest.raises(ValueError, match="Unsupported function"):
        bind([nothing])
