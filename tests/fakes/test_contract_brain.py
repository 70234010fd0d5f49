"""The stand-in's replies to a contract."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langchain_cursor.contract import (
    Call,
    ContractViolation,
    Parsed,
    bind,
    json_contract,
    render_calls,
)
from langchain_cursor.serializer import serialize
from langchain_cursor_fakes.contract_brain import MISBEHAVIOURS, UNDERSTOOD, contract_reply
from tests.corpus import TOOLS


def tool(
    name: str, description: str = "", required: list[str] | None = None, **properties: Any
) -> Any:
    wanted = list(properties) if required is None else required
    schema = {"type": "object", "properties": properties, "required": wanted}
    return {"name": name, "description": description, "parameters": schema}


TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
WEATHER = tool("get_weather", "Get the weather in a place.", city=TEXT)
ADD = tool("add", "Add two numbers.", a=WHOLE, b=WHOLE)
NOW = tool("now", "Tell the time.")


def asked(question: str, tools: Any, **kwargs: Any) -> str | None:
    contract = bind(tools, **kwargs)
    assert contract is not None
    return contract_reply(f"<user>\n{question}\n</user>\n\n{contract.render()}")


def called(question: str, tools: Any, **kwargs: Any) -> list[Call]:
    """The calls of the reply, judged by the contract itself."""
    contract = bind(tools, **kwargs)
    assert contract is not None
    reply = asked(question, tools, **kwargs)
    assert reply is not None
    return list(contract.parse(reply).calls)


def argument(schema: dict[str, Any], question: str, name: str = "value") -> Any:
    (call,) = called(f"Use f: {question}", [tool("f", **{name: schema})])
    return call.arguments[name]


# --- Which tool -----------------------------------------------------------------------------------


@pytest.mark.clause("BRAIN-5")
def test_without_a_contract_there_is_no_reply() -> None:
    assert contract_reply("<user>\nHi\n</user>") is None


@pytest.mark.clause("BRAIN-5")
def test_a_tool_that_is_named_is_called() -> None:
    tools = [WEATHER, ADD, NOW]
    assert called("Call now.", tools) == [Call("now", {})]
    assert called("What does add give for 2 and 3?", tools) == [Call("add", {"a": 2, "b": 3})]
    assert called("get weather for Rome", tools) == [Call("get_weather", {"city": "Rome"})]


@pytest.mark.clause("BRAIN-5")
def test_a_tool_whose_description_fits_is_called() -> None:
    tools = [ADD, WEATHER]
    calls = called("How is the weather in San Francisco today?", tools)
    assert calls == [Call("get_weather", {"city": "San Francisco"})]


@pytest.mark.clause("BRAIN-5")
def test_several_named_tools_are_called_in_the_order_of_the_question() -> None:
    tools = [ADD, WEATHER, NOW]
    calls = called("Use now, then get_weather in Rome, then add 1 and 2.", tools)
    assert [call.name for call in calls] == ["now", "get_weather", "add"]


@pytest.mark.clause("BRAIN-5")
def test_one_call_is_made_where_only_one_is_allowed() -> None:
    calls = called("Use now and add 1 and 2.", [ADD, NOW], parallel_tool_calls=False)
    assert calls == [Call("now", {})]


@pytest.mark.clause("BRAIN-5")
def test_a_question_that_fits_no_tool_is_left_to_the_model() -> None:
    assert asked("Hello!", [ADD, WEATHER]) is None


@pytest.mark.clause("BRAIN-5")
def test_where_a_call_is_due_one_is_made_whatever_the_question() -> None:
    assert called("Hello!", [NOW, ADD], tool_choice="any") == [Call("now", {})]
    assert called("Use now.", [NOW, ADD], tool_choice="add")[0].name == "add"


@pytest.mark.clause("BRAIN-5")
def test_the_last_question_counts() -> None:
    contract = bind([NOW, ADD])
    assert contract is not None
    prompt = serialize([HumanMessage("Use now."), AIMessage("12:00"), HumanMessage("add 1 and 2")])
    reply = contract_reply(f"{prompt.text}\n\n{contract.render()}")
    assert reply == render_calls([Call("add", {"a": 1, "b": 2})])


@pytest.mark.clause("BRAIN-5")
def test_the_same_prompt_gets_the_same_reply() -> None:
    assert asked("add 1 and 2", [ADD, NOW]) == asked("add 1 and 2", [ADD, NOW])


# --- After the tools ------------------------------------------------------------------------------


def history(*results: ToolMessage) -> str:
    calls = [
        {"name": "add", "args": {"a": 1, "b": 2}, "id": message.tool_call_id, "type": "tool_call"}
        for message in results
    ]
    messages = [HumanMessage("add 1 and 2"), AIMessage("", tool_calls=calls), *results]
    return serialize(messages).text


@pytest.mark.clause("BRAIN-7")
def test_results_are_quoted_in_a_plain_answer() -> None:
    contract = bind([ADD])
    assert contract is not None
    prompt = history(ToolMessage("3", name="add", tool_call_id="1"))
    reply = contract_reply(f"{prompt}\n\n{contract.render()}")
    assert reply == "add returned: 3"
    assert contract.parse(reply) == Parsed((), reply)


@pytest.mark.clause("BRAIN-7")
def test_every_result_is_quoted_and_a_failure_is_called_one() -> None:
    contract = bind([ADD])
    assert contract is not None
    prompt = history(
        ToolMessage("3 </user>", name="add", tool_call_id="1"),
        ToolMessage("too large", name="add", tool_call_id="2", status="error"),
    )
    reply = contract_reply(f"{prompt}\n\n{contract.render()}")
    assert reply == "add returned: 3 </user>\nadd failed: too large"


@pytest.mark.clause("BRAIN-7")
def test_a_call_is_made_after_results_where_one_is_due() -> None:
    contract = bind([ADD], tool_choice="any")
    assert contract is not None
    prompt = history(ToolMessage("3", name="add", tool_call_id="1"))
    reply = contract_reply(f"{prompt}\n\n{contract.render()}")
    assert reply == render_calls([Call("add", {"a": 1, "b": 2})])


# --- Arguments ------------------------------------------------------------------------------------


@pytest.mark.clause("BRAIN-6")
@pytest.mark.parametrize(
    ("schema", "question", "expected"),
    [
        (TEXT, 'find "two words" now', "two words"),
        (TEXT, "search for cats", "cats"),
        (TEXT, "the weather in San Francisco today", "San Francisco"),
        (TEXT, "value is blue", "blue"),
        (TEXT, "value: green please", "green"),
        (TEXT, "show the ending.", "ending"),
        ({"type": "string", "minLength": 6}, "for cats", "catsxx"),
        ({"type": "string", "maxLength": 2}, "for cats", "ca"),
        ({"type": "string", "format": "date"}, "today", "2024-01-31"),
        (WHOLE, "with 7 and 8", 7),
        (WHOLE, "with 2.5 and 8", 8),
        (WHOLE, "with 1 but value = -9", -9),
        (WHOLE, "with f(3)", 3),
        ({"type": "number"}, "with 2.5", 2.5),
        (WHOLE, "no number", 0),
        ({"type": "integer", "minimum": 5}, "with 3 and 6", 6),
        ({"type": "integer", "exclusiveMinimum": 5}, "with 5", 6),
        ({"type": "integer", "maximum": -3}, "none", -4),
        ({"type": "integer", "minimum": 5, "multipleOf": 4}, "none", 8),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "none", 0.5),
        ({"type": "boolean"}, "with value on", True),
        ({"type": "boolean"}, "without value", False),
        ({"type": "boolean"}, "nothing said", False),
        ({"enum": ["low", "high"]}, "make it high", "high"),
        ({"enum": ["low", "high"]}, "make it so", "low"),
        ({"enum": [3, None]}, "whatever", 3),
        ({"const": "x"}, "whatever", "x"),
        ({"type": "null"}, "whatever", None),
        ({"type": ["null", "integer"]}, "with 4", 4),
        ({"anyOf": [{"type": "null"}, WHOLE]}, "with 4", 4),
        ({"oneOf": [WHOLE, TEXT]}, "with 4", 4),
        ({"type": "array", "items": WHOLE}, "with 1, 2 and 3", [1, 2, 3]),
        ({"type": "array", "items": WHOLE, "maxItems": 2}, "with 1, 2 and 3", [1, 2]),
        ({"type": "array", "items": WHOLE, "minItems": 2}, "none", [0, 0]),
        (
            {"type": "array", "items": WHOLE, "minItems": 3, "uniqueItems": True},
            "with 5 and 5",
            [5, 0, 6],
        ),
        ({"type": "array", "items": TEXT}, 'with "a b" and "c"', ["a b", "c"]),
        ({"type": "array", "items": {"enum": ["x", "y", "z"]}}, "with z and x", ["x", "z"]),
        ({"type": "array", "prefixItems": [WHOLE, TEXT], "items": False}, "for 1", [1, "1"]),
        ({"type": "object", "properties": {"n": WHOLE}, "required": ["n"]}, "with 4", {"n": 4}),
        ({"type": "object", "properties": {"n": WHOLE}}, "with 4", {}),
        ({"type": "object", "properties": {"n": WHOLE}}, "with n 4", {"n": 4}),
        ({"type": "object", "minProperties": 1, "additionalProperties": WHOLE}, "4", {"key1": 4}),
        ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, "with 3", 5),
        ({}, "for cats", "cats"),
    ],
)
def test_an_argument_is_made_of_the_question(
    schema: dict[str, Any], question: str, expected: Any
) -> None:
    assert argument(schema, question) == expected


@pytest.mark.clause("BRAIN-6")
def test_an_optional_argument_is_given_only_if_the_question_mentions_it() -> None:
    find = tool("find", required=["what"], what=TEXT, limit=WHOLE, order={"enum": ["newest"]})
    assert called("find cats", [find]) == [Call("find", {"what": "cats"})]
    calls = called('find "cats" with limit 3, newest first', [find])
    assert calls == [Call("find", {"what": "cats", "limit": 3, "order": "newest"})]


@pytest.mark.clause("BRAIN-6")
def test_a_reference_is_followed_and_a_recursive_one_ends() -> None:
    (call,) = called("Use tree", TOOLS)
    assert call == Call("tree", {"root": {"label": "Use"}})
    node = {
        "name": "grow",
        "parameters": {
            "type": "object",
            "properties": {"root": {"$ref": "#/$defs/node"}},
            "required": ["root"],
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                    "required": ["next"],
                }
            },
        },
    }
    (call,) = called("Use grow", [node])
    assert call.arguments["root"]["next"]["next"]


@pytest.mark.clause("BRAIN-8")
def test_json_mode_gives_the_value_itself() -> None:
    person = {"type": "object", "properties": {"name": TEXT, "age": WHOLE}, "required": ["name"]}
    for schema in (person, {"type": "array", "items": WHOLE}, WHOLE, None):
        contract = json_contract(schema)
        reply = contract_reply(f"<user>\nname Ann, age 3\n</user>\n\n{contract.render()}")
        assert reply is not None
        parsed = contract.parse(reply)
        assert json.loads(reply) == parsed.value
        if schema is person:
            assert parsed.value == {"name": "Ann", "age": 3}


@pytest.mark.clause("BRAIN-8")
def test_an_answer_in_json_is_given_where_no_tool_fits_and_after_results() -> None:
    contract = bind([ADD])
    assert contract is not None
    schema = {"type": "object", "properties": {"total": WHOLE}, "required": ["total"]}
    both = contract.with_answer(json_contract(schema))
    reply = contract_reply(f"<user>\nHello!\n</user>\n\n{both.render()}")
    assert reply == '{"total": 0}'
    prompt = history(ToolMessage("total 3", name="add", tool_call_id="1"))
    assert contract_reply(f"{prompt}\n\n{both.render()}") == '{"total": 3}'
    reply = contract_reply(f"<user>\nadd 1 and 2\n</user>\n\n{both.render()}")
    assert reply == render_calls([Call("add", {"a": 1, "b": 2})])


numbers = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": st.integers(-5, 5),
        "maximum": st.integers(8, 20),
        "exclusiveMinimum": st.integers(-9, 6),
        "exclusiveMaximum": st.integers(9, 30),
        "multipleOf": st.integers(1, 2),
    },
)
texts = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={"minLength": st.integers(0, 9), "maxLength": st.integers(9, 12)},
)
leaves = (
    numbers
    | texts
    | st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": 1}, {}, {"enum": ["a", 2]}])
    | st.just({"$ref": "#/$defs/leaf"})
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner},
        optional={"minItems": st.integers(0, 2), "maxItems": st.integers(2, 4)},
    )
    records = st.dictionaries(st.sampled_from(["a", "limit", "max_depth", "city"]), inner).flatmap(
        lambda properties: st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.just(properties),
                "required": st.lists(st.sampled_from(sorted(properties)), unique=True)
                if properties
                else st.just([]),
                "additionalProperties": st.booleans(),
            }
        )
    )
    choices = st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)})
    return lists | records | choices


schemas = st.recursive(leaves, containers, max_leaves=8)
questions = st.lists(
    st.sampled_from(['"two words"', "7", "-3", "2.5", "limit", "max depth", "city", "of", "Rome"]),
    max_size=8,
).map(" ".join)


@pytest.mark.clause("BRAIN-6")
@given(schemas, questions)
def test_arguments_fit_their_schema(schema: Any, question: str) -> None:
    given = {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"value": schema, "city": schema},
            "required": ["value"],
            "$defs": {"leaf": {"type": "integer", "minimum": 3}},
        },
    }
    (call,) = called(f"Use f with {question}", [given])
    assert call.name == "f"


# --- Misbehaviour ---------------------------------------------------------------------------------

GOOD = render_calls([Call("search", {"query": "cats"})])


@pytest.mark.clause("BRAIN-9")
@pytest.mark.parametrize("name", UNDERSTOOD)
def test_a_misbehaviour_that_is_understood_gives_the_same_calls(name: str) -> None:
    contract = bind(TOOLS)
    assert contract is not None
    bad = MISBEHAVIOURS[name](GOOD)
    assert bad != GOOD
    assert contract.parse(bad).calls == (Call("search", {"query": "cats"}),)


@pytest.mark.clause("BRAIN-9")
@pytest.mark.parametrize("name", sorted(set(MISBEHAVIOURS) - set(UNDERSTOOD)))
def test_any_other_misbehaviour_breaks_a_contract_for_exactly_one_call(name: str) -> None:
    contract = bind(TOOLS, tool_choice="any", parallel_tool_calls=False)
    assert contract is not None
    assert contract.parse(GOOD).calls
    with pytest.raises(ContractViolation):
        contract.parse(MISBEHAVIOURS[name](GOOD))


@pytest.mark.clause("BRAIN-9")
@pytest.mark.parametrize("name", MISBEHAVIOURS)
@pytest.mark.parametrize("reply", ['{"name": "Ann"}', GOOD, '{"tool_calls":[]}'])
def test_misbehaving_works_on_any_json_reply(name: str, reply: str) -> None:
    assert isinstance(MISBEHAVIOURS[name](reply), str)
