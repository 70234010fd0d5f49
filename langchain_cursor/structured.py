"""Structured output: the chain that binds a schema to a model and reads its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import (
    JsonOutputKeyToolsParser,
    PydanticToolsParser,
)
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from langchain_cursor.errors import CursorContractError

if TYPE_CHECKING:
    from langchain_core.language_models.base import LanguageModelInput
    from pydantic import BaseModel

    from langchain_cursor.chat_models import ChatCursor

Method = Literal["function_calling", "json_schema", "json_mode"]


def structured_output(
    llm: ChatCursor,
    schema: dict[str, Any] | type | None,
    method: Method,
    *,
    include_raw: bool,
    strict: bool | None,
) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
    """Make the chain behind `ChatCursor.with_structured_output`, which documents the arguments."""
    if method not in ("function_calling", "json_schema", "json_mode"):
        raise ValueError(
            f"There is no method {method!r}: use 'function_calling', 'json_schema' or 'json_mode'."
        )
    if schema is None and method != "json_mode":
        raise ValueError(f"method={method!r} needs a schema.")
    traced = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
    bound: Runnable[LanguageModelInput, AIMessage]
    if method == "function_calling":
        assert schema is not None
        name = convert_to_openai_tool(schema)["function"]["name"]
        bound = llm.bind_tools(
            [schema],
            tool_choice=name,
            parallel_tool_calls=False,
            strict=strict,
            ls_structured_output_format=traced,
        )
    else:
        bound = llm.bind(
            response_format=_response_format(schema, method, strict),
            ls_structured_output_format=traced,
        )
    parser = _parser(schema, method)
    return _with_raw(bound, parser) if include_raw else bound | parser


def response_schema(wanted: Any) -> dict[str, Any] | None:
    """Read the JSON Schema off a `response_format`.

    Args:
        wanted: OpenAI's ``{"type": "json_schema", "json_schema": {"schema": ...}}``, its
            ``{"type": "json_object"}``, a JSON Schema, or a type that LangChain makes one of.

    Returns:
        The schema; None for any JSON object.

    Raises:
        ValueError: It is none of these.

    Example:
        >>> response_schema({"type": "json_object"}) is None
        True
        >>> response_schema({"type": "array", "items": {"type": "string"}})
        {'type': 'array', 'items': {'type': 'string'}}
    """
    if not isinstance(wanted, Mapping):
        return convert_to_json_schema(wanted)
    kind = wanted.get("type")
    if kind == "json_object":
        return None
    if kind == "json_schema":
        named = wanted.get("json_schema")
        schema = named.get("schema") if isinstance(named, Mapping) else None
        if not isinstance(schema, Mapping):
            raise ValueError("A response_format of type 'json_schema' needs json_schema.schema.")
        return dict(schema)
    if kind == "text":
        raise ValueError("A response_format of type 'text' is what happens without one.")
    return _json_schema(dict(wanted), None)


def _response_format(
    schema: dict[str, Any] | type | None, method: Method, strict: bool | None
) -> dict[str, Any]:
    if schema is None or method == "json_mode":
        return {"type": "json_object"}
    wanted = _json_schema(schema, strict)
    named = {"name": wanted.get("title", "answer"), "schema": wanted, "strict": strict}
    return {"type": "json_schema", "json_schema": named}


def _json_schema(schema: dict[str, Any] | type, strict: bool | None) -> dict[str, Any]:
    # A tool dict is converted; a dict that is a JSON Schema may be of any type, so it is kept.
    is_tool = isinstance(schema, dict) and {"function", "parameters", "input_schema"} & set(schema)
    if isinstance(schema, dict) and not is_tool and not (strict and "title" in schema):
        return schema
    return convert_to_json_schema(schema, strict=strict)


def _parser(schema: dict[str, Any] | type | None, method: Method) -> Runnable[AIMessage, Any]:
    pydantic_class: Any = (
        schema if isinstance(schema, type) and is_basemodel_subclass(schema) else None
    )
    if method != "function_calling":
        if pydantic_class is not None:
            return PydanticOutputParser(pydantic_object=pydantic_class)
        return JsonOutputParser()
    assert schema is not None
    if pydantic_class is not None:
        return PydanticToolsParser(tools=[pydantic_class], first_tool_only=True)
    name = convert_to_openai_tool(schema)["function"]["name"]
    return JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)


def _with_raw(
    bound: Runnable[LanguageModelInput, AIMessage], parser: Runnable[AIMessage, Any]
) -> Runnable[Any, Any]:
    """Return the message beside what was read off it, and what went wrong as data."""

    def call(given: Any, config: RunnableConfig) -> dict[str, Any]:
        try:
            return {"raw": bound.invoke(given, config)}
        except CursorContractError as error:
            return _unread(error)

    async def acall(given: Any, config: RunnableConfig) -> dict[str, Any]:
        try:
            return {"raw": await bound.ainvoke(given, config)}
        except CursorContractError as error:
            return _unread(error)

    def read(found: dict[str, Any]) -> dict[str, Any]:
        found = {"parsed": None, "parsing_error": None, **found}
        if found["parsing_error"] is None:
            try:
                found["parsed"] = parser.invoke(found["raw"])
            except ValueError as error:  # what parsers and Pydantic raise
                found["parsing_error"] = error
        return found

    return RunnableLambda(call, afunc=acall) | read


def _unread(error: CursorContractError) -> dict[str, Any]:
    usage: Any = error.usage
    raw = AIMessage(error.llm_output or "", usage_metadata=usage)
    return {"raw": raw, "parsing_error": error}
