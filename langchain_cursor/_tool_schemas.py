"""Turns everything LangChain takes for a tool into a name, a description and a JSON Schema.

Also checks values against such schemas: `jsonschema` does it, with what a model's reply needs
added. References to other documents are refused and never fetched, patterns that are no Python
regular expressions are not checked (schemas from other languages carry them), and checking takes
linear time for lists of unique items and for schemas that refer to themselves, too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import FrameType

    from jsonschema.protocols import Validator
    from langchain_core.tools import BaseTool
    from pydantic import BaseModel

MAX_PROBLEMS: Final = 3
"""Problems named per value: a model corrects the first ones, and lists of hundreds help nobody."""

_MAX_MESSAGE: Final = 300
_NO_PARAMETERS: Final = '{"type":"object","properties":{}}'
# "<" could close the block that the schema stands in; the others end a line for some readers.
_ESCAPES: Final = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<\x7f\x85\u2028\u2029"})
_SURROGATE = re.compile("[\ud800-\udfff]")
_REFERENCES: ContextVar[dict[tuple[int, int], list[Any]]] = ContextVar("_REFERENCES")
"""What `problems` has found so far: the errors by place in the schema and value."""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it.

    Args:
        name: What the model calls it by.
        description: What it does; may be empty.
        parameters_json: The JSON Schema of its arguments, as compact JSON.

    Example:
        >>> ToolSpec("now", "The time.", '{"type":"object"}').parameters
        {'type': 'object'}
    """

    name: str
    description: str = ""
    parameters_json: str = _NO_PARAMETERS

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, decoded anew each time."""
        schema: dict[str, Any] = json.loads(self.parameters_json)
        return schema

    def as_openai_tool(self) -> dict[str, Any]:
        """The tool as OpenAI's dict, which traces and caches can hold."""
        function = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**function, "parameters": self.parameters}}


def compact(value: object) -> str:
    r"""Write `value` as JSON on one line that no tag and no line break can come out of.

    Args:
        value: Anything that JSON can hold.

    Raises:
        ValueError: JSON cannot hold it.

    Example:
        >>> compact({"a": "</contract>"})
        '{"a":"\\u003c/contract>"}'
    """
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"This is not JSON: {error}") from None
    text = text.translate(_ESCAPES)
    return _SURROGATE.sub(lambda half: f"\\u{ord(half.group()):04x}", text)


def tool_spec(
    tool: Mapping[str, Any] | type[BaseModel] | Callable[..., Any] | BaseTool,
    *,
    strict: bool | None = None,
) -> ToolSpec:
    """Convert a tool in any of LangChain's forms.

    Args:
        tool: A function, `BaseTool`, Pydantic model or `TypedDict` class, or a dict: an OpenAI
            tool, an Anthropic tool (``input_schema``), or a JSON Schema with a ``title``.
        strict: As in LangChain: True closes the schema (no further properties, all required).

    Raises:
        ValueError: The tool has no name, is one that only another provider can run, or its
            schema is not one of an object, not valid, or refers to another document.

    Example:
        >>> tool_spec({"name": "now", "input_schema": {"type": "object"}}).name
        'now'
    """
    function = _openai_function(tool, strict)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"This tool has no name: {_short(repr(tool))}. Give it one.")
    parameters = function.get("parameters") or json.loads(_NO_PARAMETERS)
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ValueError(
            f"The parameters of tool {name!r} must be a JSON Schema of an object, "
            f"not {_short(repr(parameters))}. Wrap the value in an object with one property."
        )
    try:
        parameters_json = compact(_without_titles(parameters))
        validator(parameters_json)
    except ValueError as error:
        raise ValueError(f"The parameters of tool {name!r} cannot be used. {error}") from None
    return ToolSpec(name, str(function.get("description") or ""), parameters_json)


# Keywords whose value maps names to schemas, and those whose value is data.
_NAMED_SCHEMAS: Final = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
_DATA: Final = frozenset(("const", "enum", "default", "examples"))


def _without_titles(schema: Any) -> Any:
    """Leave out titles: they repeat the names, and only cost tokens."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {}
    for key, value in schema.items():
        if key in _NAMED_SCHEMAS and isinstance(value, Mapping):
            kept[key] = {name: _without_titles(part) for name, part in value.items()}
        elif key in _DATA:
            kept[key] = value
        elif key != "title" or not isinstance(value, str):
            kept[key] = _without_titles(value)
    return kept


def _openai_function(tool: Any, strict: bool | None) -> Mapping[str, Any]:
    from langchain_core.utils.function_calling import (
        convert_to_openai_function,
        convert_to_openai_tool,
    )

    if isinstance(tool, Mapping):
        tool = dict(tool)
        if isinstance(tool.get("function"), Mapping):
            tool = dict(tool["function"])
        elif not _defines_a_function(tool):
            raise ValueError(
                f"Tool {tool.get('name', tool.get('type'))!r} is run by its provider and cannot be "
                f"called through a Cursor agent: {_short(repr(tool))}. Bind a tool of your own."
            )
        if "name" in tool and not tool.get("parameters") and "input_schema" not in tool:
            tool["parameters"] = json.loads(_NO_PARAMETERS)
        if "name" not in tool and tool.get("type", "object") != "object":
            tool = {"name": tool.get("title"), "parameters": tool}  # refused by its type, below
        return convert_to_openai_function(tool, strict=strict)
    converted = convert_to_openai_tool(tool, strict=strict)
    function = converted.get("function")
    if not isinstance(function, Mapping):
        raise ValueError(
            f"Tool {converted.get('name')!r} takes free text in another provider's format "
            f"({converted.get('type')!r}). Give it an argument schema."
        )
    return function


def _defines_a_function(tool: Mapping[str, Any]) -> bool:
    if "input_schema" in tool or "parameters" in tool or "title" in tool or "toolSpec" in tool:
        return True
    return tool.get("type", "function") in ("function", "object")


@lru_cache(maxsize=512)
def validator(schema_json: str) -> Validator:
    """Return the validator of a schema; the same one for the same text.

    Args:
        schema_json: A JSON Schema, Draft 2020-12 unless its ``$schema`` says otherwise.

    Raises:
        ValueError: The schema is not valid, or refers to something outside of itself.
    """
    import jsonschema
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # has no stubs
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, specification_with

    library: Any = jsonschema.validators  # its stubs leave out what is used here
    schema = json.loads(schema_json)
    base = library.validator_for(schema, default=library.Draft202012Validator)
    try:
        # Patterns may be in another language's syntax: formats are not checked.
        base.check_schema(schema, format_checker=jsonschema.FormatChecker(formats=()))
    except jsonschema.SchemaError as error:
        raise ValueError(
            f"Invalid JSON Schema at {path_of('schema', error.absolute_path)}: "
            f"{_short(error.message)}"
        ) from None
    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    specification = specification_with(dialect, default=DRAFT202012) if dialect else DRAFT202012
    resource = specification.create_resource(schema)
    pending = [(resource, REGISTRY.resolver_with_root(resource))]
    seen: set[int] = set()
    while pending:
        current, resolver = pending.pop()
        contents: Any = current.contents
        if id(contents) in seen or not isinstance(contents, dict):
            continue
        seen.add(id(contents))
        pending.extend((sub, resolver.in_subresource(sub)) for sub in current.subresources())
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(contents.get(keyword), str):
                try:
                    target = resolver.lookup(contents[keyword])
                except (Unresolvable, LookupError, TypeError, ValueError):
                    raise ValueError(
                        f'The reference "{keyword}": {json.dumps(contents[keyword])} leads out of '
                        "the schema, and nothing is fetched. Put what it names under $defs."
                    ) from None
                pending.append((specification.create_resource(target.contents), target.resolver))
        _drop_foreign_patterns(contents)
    keywords = {"uniqueItems": _unique_items, "$ref": _once(base.VALIDATORS["$ref"])}
    checked: type[Validator] = library.extend(base, keywords)
    return checked(schema, registry=REGISTRY)


def problems(schema_json: str, value: Any, root: str) -> list[str]:
    """Name what is wrong with `value`, at most `MAX_PROBLEMS` things.

    Args:
        schema_json: The JSON Schema that it must fit.
        value: A decoded JSON value.
        root: What to call the value in messages.

    Returns:
        Messages such as ``arguments.count: 'x' is not of type 'integer'``; empty if it fits.

    Example:
        >>> problems('{"properties":{"n":{"type":"integer"}}}', {"n": "x"}, "arguments")
        ["arguments.n: 'x' is not of type 'integer'"]
    """
    from referencing.exceptions import Unresolvable

    messages: list[str] = []
    token = _REFERENCES.set({})
    try:
        _check_stack()
        for error in islice(validator(schema_json).iter_errors(value), MAX_PROBLEMS):
            path, message = _nearest(error)
            message = f"{path_of(root, path)}: {_short(message)}"
            if message not in messages:
                messages.append(message)
    except RecursionError:
        messages.append(f"{root}: nested too deep to be checked against the schema")
    except (ArithmeticError, Unresolvable) as error:
        messages.append(f"{root}: cannot be checked against the schema ({_short(str(error))})")
    finally:
        _REFERENCES.reset(token)
    return messages


def path_of(root: str, path: Iterable[str | int]) -> str:
    """Write a path into a JSON value as it is written in code.

    Example:
        >>> path_of("arguments", ["rows", 2, "unit price"])
        'arguments.rows[2]["unit price"]'
    """
    parts = [root]
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif str(step).isidentifier():
            parts.append(f".{step}")
        else:
            parts.append(f"[{json.dumps(_short(str(step)), ensure_ascii=False)}]")
    return _short("".join(parts))


def _short(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}..."


def _nearest(error: Any) -> tuple[list[str | int], str]:
    """Return where and what the mistake is, in that alternative of an anyOf that comes nearest."""
    path: list[str | int] = list(error.relative_path)
    while error.context:
        alternatives: dict[Any, list[Any]] = {}
        for other in error.context:
            alternatives.setdefault(other.relative_schema_path[0], []).append(other)
        nearest = min(alternatives.values(), key=_distance)
        if _distance(nearest)[0]:
            messages = dict.fromkeys(_short(other.message) for other in error.context[:4])
            return path, ", and ".join(messages)
        error = nearest[0]
        path += error.relative_path
    return path, error.message


def _distance(errors: list[Any]) -> tuple[bool, int]:
    """Being of another kind altogether is further off than any number of mistakes inside."""
    return any(not error.relative_path for error in errors), len(errors)


def _drop_foreign_patterns(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("pattern"), str) and not _is_python_pattern(schema["pattern"]):
        del schema["pattern"]
    by_pattern = schema.get("patternProperties")
    if isinstance(by_pattern, dict):
        foreign = [pattern for pattern in by_pattern if not _is_python_pattern(pattern)]
        for pattern in foreign:
            del by_pattern[pattern]
        if foreign:  # which properties are additional can no longer be told
            schema.pop("additionalProperties", None)
            schema.pop("unevaluatedProperties", None)


def _is_python_pattern(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _once(check: Callable[..., Iterable[Any]]) -> Callable[..., Iterator[Any]]:
    """Let the keyword ``$ref`` judge each value only once at each place in the schema.

    Alternatives that lead to the same schema again would otherwise double the work at every
    level of a nested value: sums of sums of products take 2 to the power of their depth.
    """

    def check_once(validator: Any, reference: Any, value: Any, schema: Any) -> Iterator[Any]:
        key = (id(schema), id(value))
        known = _REFERENCES.get()
        if key not in known:
            _check_stack()
            # The caller changes the errors that it gets, so they are kept as copies.
            found = islice(check(validator, reference, value, schema), MAX_PROBLEMS)
            known[key] = [error.create_from(error) for error in found]
        for error in known[key]:
            yield error.create_from(error)

    return check_once


def _check_stack() -> None:
    """Stop while there is stack left, for references are looked up by code in another language.

    Where the stack ends inside of that, the process gets a panic that is no `Exception`.

    Raises:
        RecursionError: Two thirds of what the interpreter allows are used up.
    """
    frame: FrameType | None = sys._getframe()
    left = sys.getrecursionlimit() * 2 // 3
    while frame is not None:
        frame, left = frame.f_back, left - 1
    if left < 0:
        raise RecursionError


def _unique_items(_validator: Any, wanted: Any, value: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if not wanted or not isinstance(value, list):
        return
    seen: set[Hashable] = set()
    for index, item in enumerate(value):
        key = _hashable(item)
        if key in seen:
            yield ValidationError(f"the item at index {index} is there twice")
            return
        seen.add(key)


def _hashable(value: Any) -> Hashable:
    """Equal exactly for values that are equal in JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return ("list", *(_hashable(item) for item in value))
    if isinstance(value, dict):
        return ("dict", frozenset((key, _hashable(item)) for key, item in value.items()))
    return value if isinstance(value, str) else ("number", value)
