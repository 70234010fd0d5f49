"""Structured output: what is asked of the model, and what is made of its answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from langchain_cursor import ChatCursor, CursorContractError
from langchain_cursor.contract import read
from langchain_cursor.structured import response_schema
from langchain_cursor_fakes import Error, FakeCursor, Text, Usage, tool_call

pytestmark = pytest.mark.fake
clause = pytest.mark.clause


class City(BaseModel):
    """A city."""

    name: str
    people: int = Field(gt=0)


class CityDict(TypedDict):
    """A city."""

    name: str


LIST = {"type": "array", "items": {"type": "integer"}}
TITLED = {"title": "Total", "type": "object", "properties": {"total": {"type": "integer"}}}
TOOL = {"name": "Total", "description": "The total.", "parameters": TITLED}
CLAUDES = {"name": "Total", "description": "The total.", "input_schema": TITLED}


@contextmanager
def structured(
    replies: list[Any], schema: Any = None, *, max_retries: int = 0, **arguments: Any
) -> Iterator[tuple[Any, FakeCursor]]:
    fake = FakeCursor(replies)
    with ChatCursor(sdk_loader=fake.sdk, max_retries=max_retries) as llm:
        yield llm.with_structured_output(schema, **arguments), fake
    fake.assert_done()


@clause("STRUCTURED-1")
@pytest.mark.parametrize(
    ("schema", "method", "reply", "data"),
    [
        (City, "function_calling", tool_call("City", {"name": "Bern", "people": 5}),
         City(name="Bern", people=5)),
        (City, "json_schema", '{"name": "Bern", "people": 5}', City(name="Bern", people=5)),
        (City, "json_mode", '{"name": "Bern", "people": 5}', City(name="Bern", people=5)),
        (CityDict, "function_calling", tool_call("CityDict", {"name": "Bern"}), {"name": "Bern"}),
        (CityDict, "json_schema", '{"name": "Bern"}', {"name": "Bern"}),
        (TITLED, "function_calling", tool_call("Total", {"total": 3}), {"total": 3}),
        (TITLED, "json_schema", '{"total": 3}', {"total": 3}),
        (TOOL, "function_calling", tool_call("Total", {"total": 3}), {"total": 3}),
        (TOOL, "json_schema", '{"total": 3}', {"total": 3}),
        (CLAUDES, "function_calling", tool_call("Total", {"total": 3}), {"total": 3}),
        (CLAUDES, "json_schema", '{"total": 3}', {"total": 3}),
        (LIST, "json_schema", "[1, 2]", [1, 2]),
        (None, "json_mode", '{"a": [1]}', {"a": [1]}),
    ],
)  # fmt: skip
def test_a_schema_of_any_kind_gives_its_data(
    schema: Any, method: str, reply: str, data: Any
) -> None:
    with structured([reply, reply], schema, method=method) as (chain, fake):
        assert chain.invoke("Which?") == data
        assert list(chain.stream("Which?"))[-1] == data
        assert "<contract>" in fake.runs[0].text


@clause("STRUCTURED-1")
def test_as_a_tool_the_schema_is_the_one_call_that_is_due() -> None:
    with structured([tool_call("City", {"name": "Bern", "people": 5})], City) as (chain, fake):
        chain.invoke("Which?")
        contract: Any = read(fake.runs[0].text)
    assert (contract.names, contract.forced, contract.parallel) == (("City",), "City", False)


@clause("STRUCTURED-1")
@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
@pytest.mark.parametrize("schema", [City, TITLED], ids=["pydantic", "dict"])
def test_strict_allows_no_other_keys(schema: Any, method: str) -> None:
    with structured([], schema, method=method, strict=True) as (chain, fake):
        fake.reply_with(lambda run: Error("internal", "enough"))
        with pytest.raises(Exception, match="enough"):
            chain.invoke("Which?")
        contract: Any = read(fake.runs[0].text)
        fake.reply_with(None)
    asked = contract.tools[0].parameters if method == "function_calling" else contract.schema_json
    assert "additionalProperties" in str(asked)


@clause("STRUCTURED-1")
def test_a_json_schema_is_asked_for_as_it_is() -> None:
    with structured(["[1]"], LIST, method="json_schema") as (chain, fake):
        chain.invoke("Which?")
        assert '{"type":"array","items":{"type":"integer"}}' in fake.runs[0].text


@clause("STRUCTURED-1")
def test_the_response_format_is_openais() -> None:
    llm = ChatCursor(sdk_loader=FakeCursor().sdk)

    def bound(schema: Any, **arguments: Any) -> Any:
        chain: Any = llm.with_structured_output(schema, **arguments)
        return chain.first.kwargs["response_format"]

    assert bound(TITLED, method="json_schema") == {
        "type": "json_schema",
        "json_schema": {"name": "Total", "schema": TITLED, "strict": None},
    }
    assert bound(LIST, method="json_schema", strict=True) == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": LIST, "strict": True},
    }
    assert bound(None, method="json_mode") == {"type": "json_object"}


@clause("STRUCTURED-1")
@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_a_trace_says_what_was_asked_for(method: str) -> None:
    seen: list[Any] = []

    class Tracer(BaseCallbackHandler):
        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            seen.append(kwargs["options"]["ls_structured_output_format"])

    reply = '{"name": "Bern", "people": 5}'
    replies = [tool_call("City", {"name": "Bern", "people": 5}) if "call" in method else reply]
    with structured(replies, City, method=method, strict=True) as (chain, _):
        chain.invoke("Which?", {"callbacks": [Tracer()]})
    assert seen[0]["kwargs"] == {"method": method, "strict": True}
    assert seen[0]["schema"]["title"] == "City"


@clause("STRUCTURED-3")
async def test_raw_messages_come_with_the_data() -> None:
    reply = tool_call("City", {"name": "Bern", "people": 5})
    with structured([reply] * 2, City, include_raw=True) as (chain, _):
        for found in (chain.invoke("Which?"), await chain.ainvoke("Which?")):
            assert set(found) == {"raw", "parsed", "parsing_error"}
            assert found["parsed"] == City(name="Bern", people=5)
            assert found["parsing_error"] is None
            assert found["raw"].tool_calls[0]["name"] == "City"


@clause("STRUCTURED-3")
@clause("STRUCTURED-4")
async def test_what_is_still_wrong_the_second_time_is_data_beside_the_raw_reply() -> None:
    wrong = [Text("no JSON today"), Usage(input_tokens=7, output_tokens=3)]
    with structured([wrong] * 4, City, include_raw=True) as (chain, fake):
        for found in (chain.invoke("Which?"), await chain.ainvoke("Which?")):
            assert found["parsed"] is None
            assert isinstance(found["parsing_error"], CursorContractError)
            assert isinstance(found["raw"], AIMessage)
            assert found["raw"].content == "no JSON today"
            assert found["raw"].usage_metadata["output_tokens"] == 6
        assert len(fake.runs) == 4


@clause("STRUCTURED-3")
def test_an_answer_of_nothing_is_told_as_it_is() -> None:
    with structured(["", ""], City, include_raw=True) as (chain, _):
        assert chain.invoke("Which?")["raw"].content == ""


@clause("STRUCTURED-3")
def test_what_the_class_refuses_is_data_too() -> None:
    # JSON mode has no schema that the contract could judge by: Pydantic does, afterwards.
    wrong = '{"name": 5}'
    with structured([wrong], City, method="json_mode", include_raw=True) as (chain, _):
        found = chain.invoke("Which?")
        assert isinstance(found["parsing_error"], OutputParserException)
        assert (found["parsed"], found["raw"].content) == (None, wrong)
    with (
        structured([wrong], City, method="json_mode") as (chain, _),
        pytest.raises(OutputParserException),
    ):
        chain.invoke("Which?")


@clause("STRUCTURED-3")
async def test_other_failures_are_raised_as_ever() -> None:
    failure = Error("resource_exhausted", "slow down")
    with structured([failure] * 2, City, include_raw=True) as (chain, _):
        with pytest.raises(Exception, match="slow down"):
            chain.invoke("Which?")
        with pytest.raises(Exception, match="slow down"):
            await chain.ainvoke("Which?")


@clause("STRUCTURED-6")
@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"type": "json_schema"}, "needs json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "needs json_schema.schema"),
        ({"type": "json_schema", "json_schema": 5}, "needs json_schema.schema"),
        ({"type": "text"}, "what happens without one"),
    ],
)
def test_a_response_format_that_asks_for_nothing_is_refused(wanted: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        response_schema(wanted)


@clause("STRUCTURED-1")
def test_a_response_format_is_read_in_every_form() -> None:
    assert response_schema({"type": "json_object"}) is None
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": LIST}}
    assert response_schema(named) == response_schema(LIST) == LIST
    city = response_schema(City)
    assert city is not None
    assert set(city["properties"]) == {"name", "people"}
    tool = response_schema(TOOL)
    assert tool is not None
    assert tool["properties"] == {"total": {"type": "integer"}}


@clause("STRUCTURED-6")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic", "schema": City}, "no method 'magic': use 'function_calling'"),
        ({"method": "function_calling"}, "method='function_calling' needs a schema"),
        ({"method": "json_schema"}, "method='json_schema' needs a schema"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(arguments: Any, message: str) -> None:
    llm = ChatCursor(sdk_loader=FakeCursor().sdk)
    with pytest.raises(ValueError, match=message):
        llm.with_structured_output(**{"schema": None, **arguments})
