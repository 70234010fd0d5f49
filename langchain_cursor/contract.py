"""Tool calling as a contract in the prompt: tools to text, and the reply back to tool calls.

Cursor's agents offer no function calling of the caller's own. So the tools' JSON Schemas and a
rule stand in the prompt, the model replies with one JSON object, and the reply is judged: it
becomes tool calls, a plain answer, or a `ContractViolation` whose correction is sent once.
`bind` makes the contract for tools, `json_contract` the one for structured output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from langchain_cursor._call_shapes import KEY, CallReader, Shape, arguments_of, shape_of
from langchain_cursor._contract_text import Choice, ToolsBlock, ValueBlock, correction, read_block
from langchain_cursor._json_scan import JSONError, decode
from langchain_cursor._reply_scan import SPACE, Broken, Reader, Reading, ReplyScan
from langchain_cursor._tool_schemas import ToolSpec, compact, problems, tool_spec, validator

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool
    from pydantic import BaseModel

__all__ = [
    "Call",
    "Contract",
    "ContractViolation",
    "JsonContract",
    "Parsed",
    "ReplyScanner",
    "ToolSpec",
    "bind",
    "json_contract",
    "read",
    "render_calls",
]

Reason: TypeAlias = Literal[
    "invalid-json",
    "invalid-arguments",
    "invalid-value",
    "malformed-call",
    "no-call",
    "no-json",
    "unknown-tool",
    "wrong-count",
    "wrong-tool",
]
_Problem: TypeAlias = tuple[Reason, str]

_NAME_PREFIX = re.compile(r"(?:functions|tools)[.:/]")
_MAX_PROBLEMS: Final = 8


@dataclass(frozen=True)
class Call:
    """One tool call that the model asked for.

    An id that the model wrote is not kept: models repeat theirs from turn to turn.

    Args:
        name: The tool's name, spelled as it was bound.
        arguments: Valid against the tool's schema.
    """

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Parsed:
    """What a reply says.

    Args:
        calls: The tool calls, in order; empty for a plain answer.
        text: What is for the user: the answer, or the text around the calls. In JSON mode the
            value as JSON, without what stood around it.
        value: In JSON mode the decoded value, else None.
    """

    calls: tuple[Call, ...]
    text: str
    value: Any = None


class ContractViolation(Exception):
    """The reply is neither what the contract asks for nor, where allowed, a plain answer.

    Args:
        reason: One word for programs, such as ``"unknown-tool"``.
        message: What was wrong, exactly, for the model and for people.
        reply: The whole reply.
    """

    def __init__(self, reason: Reason, message: str, reply: str) -> None:
        super().__init__(reason, message, reply)
        self.reason = reason
        self.message = message
        self.reply = reply

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Contract:
    """Tools, and how many calls are due. Made by `bind`.

    Plain data: hashable, picklable, equal for equal tools.

    Args:
        tools: The tools, in the order in which they were bound.
        choice: ``"auto"`` allows a plain answer, ``"any"`` asks for a call, ``"tool"`` for one of
            the tool `forced`.
        forced: The name of the tool that must be called.
        parallel: Whether one reply may hold several calls.
        answer: What a reply without calls must be, if plain text will not do.

    Example:
        >>> contract = Contract((ToolSpec("now"),))
        >>> contract.parse('{"tool_calls": [{"name": "now", "arguments": {}}]}').calls
        (Call(name='now', arguments={}),)
        >>> contract.parse("It is noon.").text
        'It is noon.'
    """

    tools: tuple[ToolSpec, ...]
    choice: Choice = "auto"
    forced: str | None = None
    parallel: bool = True
    answer: JsonContract | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tools, in order."""
        return tuple(tool.name for tool in self.tools)

    def render(self) -> str:
        """Return the ``<contract>`` block that is appended to the prompt.

        Of a forced tool alone the schema is shown, since no other may be called. The same
        contract always gives the same text.
        """
        return self._block.render()

    def scanner(self) -> ReplyScanner:
        """Return a scanner for one reply that arrives in pieces."""
        return ReplyScanner(self)

    def parse(self, reply: str) -> Parsed:
        """Read a whole reply.

        Args:
            reply: The model's text.

        Raises:
            ContractViolation: It asks for calls in a way that cannot be carried out, or asks for
                none where one was due.
        """
        scanner = ReplyScanner(self)
        scanner.feed(reply)
        return scanner.parsed()

    def correction(self, violation: ContractViolation) -> str:
        """Return what to send to the model after a violation: what was wrong, and what is due.

        Args:
            violation: As raised by `parse` of this contract.
        """
        return correction(violation.message, self._block.due())

    def with_answer(self, answer: JsonContract) -> Contract:
        """Return this contract with answers in JSON instead of plain text.

        Where a call is due no answer is allowed, so that there nothing changes.

        Args:
            answer: What a reply without calls must be.

        Example:
            >>> contract = Contract((ToolSpec("now"),)).with_answer(JsonContract())
            >>> contract.parse('{"hour": 12}').value
            {'hour': 12}
        """
        return replace(self, answer=answer) if self.choice == "auto" else self

    @property
    def _block(self) -> ToolsBlock:
        answer = None if self.answer is None else ValueBlock(self.answer.schema_json)
        return ToolsBlock(self.tools, self.choice, self.forced, self.parallel, answer)

    def _reader(self) -> Reader:
        return CallReader(
            lambda name: self.resolve(name) is not None,
            must_call=self.choice != "auto",
            holds_all=self.choice != "auto" or self.answer is not None,
        )

    def _judge(self, scan: ReplyScan) -> Parsed:
        if scan.broken is not None:
            raise _broken(scan.broken, scan.reply)
        readings = [found.reading for found in scan.found if not found.repeated]
        if not readings and self.choice != "auto":
            raise self._no_call(scan)
        calls: list[Call] = []
        wrong: list[_Problem] = []
        entries = [entry for reading in readings for entry in reading.value]
        for number, entry in enumerate(entries, 1):
            call = self._call(entry, number, wrong)
            if call is not None:
                calls.append(call)
            if len(wrong) >= _MAX_PROBLEMS:
                break
        count = len(entries)
        if (count == 0 and self.choice != "auto") or (count > 1 and not self.parallel):
            found = "1 call" if count == 1 else f"{count} calls"
            wrong.append(("wrong-count", f"The reply has {found}; due: {self._block.count()}."))
        if wrong:
            lines = [message for _, message in wrong]
            if any(reason == "unknown-tool" for reason, _ in wrong):
                lines.append(f"The tools are: {', '.join(map(_quoted, self.names))}.")
            raise ContractViolation(wrong[0][0], "\n".join(lines), scan.reply)
        if not calls and self.answer is not None:
            return self._judge_answer(self.answer, scan)
        return Parsed(tuple(calls), scan.outside())

    def _judge_answer(self, answer: JsonContract, scan: ReplyScan) -> Parsed:
        try:
            return answer.parse(scan.outside())
        except ContractViolation as wrong:
            raise ContractViolation(wrong.reason, wrong.message, scan.reply) from None

    def _no_call(self, scan: ReplyScan) -> ContractViolation:
        stray = scan.stray
        if stray is not None and not stray.is_json:
            return _broken(stray, scan.reply)
        if stray is not None:
            message = f'The reply has {stray.message}, but no "{KEY}" list.'
        else:
            what = f'has no "{KEY}" object' if scan.reply.strip(SPACE) else "is empty"
            message = f'The reply {what}, but a "{KEY}" object is due.'
        return ContractViolation("no-call", message, scan.reply)

    def _call(self, entry: object, number: int, wrong: list[_Problem]) -> Call | None:
        """Judge one entry of the list; what is wrong with it is added to `wrong`."""
        shape = shape_of(entry)
        if shape is None:
            problem = 'is not an object with the keys "name" (a string) and "arguments"'
            wrong.append(("malformed-call", f"Call {number} {problem}."))
            return None
        found, call = self._judge_call(shape)
        where = f"Call {number} ({_quoted(shape.name)})"
        wrong.extend((reason, f"{where}: {problem}.") for reason, problem in found)
        return call

    def _judge_call(self, shape: Shape) -> tuple[list[_Problem], Call | None]:
        name = self.resolve(shape.name)
        if name is None:
            return [("unknown-tool", "there is no such tool")], None
        if self.forced not in (None, name):
            due = _quoted(str(self.forced))
            return [("wrong-tool", f"only the tool {due} may be called now")], None
        if shape.foreign and not shape.has_arguments:
            keys = ", ".join(_quoted(key) for key in shape.foreign[:6])
            return [("malformed-call", f'{keys} must stand inside an "arguments" object')], None
        try:
            arguments = arguments_of(shape)
        except JSONError as error:
            problem = f'"arguments" is a string that is not JSON: at character {error.position + 1}'
            return [("invalid-arguments", f"{problem}, {error.message}")], None
        if not isinstance(arguments, dict):
            problem = f'"arguments" must be an object, not {_json_type(arguments)}'
            return [("invalid-arguments", problem)], None
        schema = next(tool.parameters_json for tool in self.tools if tool.name == name)
        found = problems(schema, arguments, "arguments")
        if found:
            return [("invalid-arguments", problem) for problem in found], None
        return [], Call(name, arguments)

    def resolve(self, name: str) -> str | None:
        """Return the bound name that `name` means, or None.

        That is the same name; else the name after ``functions.`` or ``tools.``; else the only
        one that differs in upper and lower case alone.

        Args:
            name: As the model wrote it.

        Example:
            >>> Contract((ToolSpec("get_time"),)).resolve("functions.Get_Time")
            'get_time'
        """
        names = self.names
        if name in names:
            return name
        name = _NAME_PREFIX.sub("", name.strip(), count=1)
        if name in names:
            return name
        alike = [known for known in names if known.casefold() == name.casefold()]
        return alike[0] if len(alike) == 1 else None


@dataclass(frozen=True)
class JsonContract:
    """A reply that is one JSON value. Made by `json_contract`.

    Args:
        schema_json: The JSON Schema that it must fit, as compact JSON; None for any object.

    Example:
        >>> JsonContract().parse('Here you are: {"a": 1}').value
        {'a': 1}
    """

    schema_json: str | None = None

    def render(self) -> str:
        """Return the ``<contract>`` block that is appended to the prompt."""
        return ValueBlock(self.schema_json).render()

    def scanner(self) -> ReplyScanner:
        """Return a scanner for one reply that arrives in pieces; it holds all of it."""
        return ReplyScanner(self)

    def parse(self, reply: str) -> Parsed:
        """Read a whole reply.

        Of several values the last valid one counts, since it is the model's last word.

        Args:
            reply: The model's text.

        Raises:
            ContractViolation: There is no JSON value, or none that is valid.
        """
        scanner = ReplyScanner(self)
        scanner.feed(reply)
        return scanner.parsed()

    def correction(self, violation: ContractViolation) -> str:
        """Return what to send to the model after a violation: what was wrong, and what is due.

        Args:
            violation: As raised by `parse` of this contract.
        """
        return correction(violation.message, ValueBlock(self.schema_json).due())

    @property
    def _kind(self) -> str:
        return ValueBlock(self.schema_json).kind

    def _reader(self) -> Reader:
        return _ValueReader(takes_lists=self._kind != "object")

    def _judge(self, scan: ReplyScan) -> Parsed:
        values = [found.reading.value for found in scan.found]
        if not values and self._kind == "value":
            values = _alone(scan.reply)
        found: list[str] = []
        for value in reversed(values):
            wrong = problems(self.schema_json, value, "value") if self.schema_json else []
            if not wrong:
                return Parsed((), json.dumps(value, ensure_ascii=False), value)
            found = found or wrong
        if scan.broken is not None:
            raise _broken(scan.broken, scan.reply)
        if found:
            lines = ["The value does not fit the JSON Schema.", *(f"{text}." for text in found)]
            raise ContractViolation("invalid-value", "\n".join(lines), scan.reply)
        if scan.stray is not None and not scan.stray.is_json:
            raise _broken(scan.stray, scan.reply)
        raise ContractViolation("no-json", f"The reply has no JSON {self._kind}.", scan.reply)


class ReplyScanner(ReplyScan):
    """Reads one reply while it streams in, and says what may be shown at once.

    Text goes out as soon as it is certain not to be part of a reply in JSON. It is held from a
    ``{``, a ``[``, a code fence or a tag such as ``<tool_calls>`` on, with the white space before
    it, until that is decided; after the first call, to the end. Where no plain answer is allowed
    everything is held.

    Args:
        contract: What the reply is judged by.

    Example:
        >>> scanner = ReplyScanner(Contract((ToolSpec("now"),)))
        >>> scanner.feed("Let me see. ")
        'Let me see.'
        >>> scanner.feed('{"tool_calls": [{"name": "now"}]}')
        ''
        >>> scanner.parsed()
        Parsed(calls=(Call(name='now', arguments={}),), text='Let me see.', value=None)
    """

    def __init__(self, contract: Contract | JsonContract) -> None:
        super().__init__(contract._reader())
        self._contract = contract

    def parsed(self) -> Parsed:
        """Judge the reply, which is complete.

        The `text` of what is returned begins with the text that has been shown.

        Raises:
            ContractViolation: As by `Contract.parse`.
        """
        self.finish()
        return self._contract._judge(self)


def bind(
    tools: Sequence[Mapping[str, Any] | type[BaseModel] | Callable[..., Any] | BaseTool],
    tool_choice: str | bool | Mapping[str, Any] | None = None,
    parallel_tool_calls: bool | None = None,
    strict: bool | None = None,
) -> Contract | None:
    """Make the contract for `tools`.

    Args:
        tools: Functions, `BaseTool`, Pydantic models, `TypedDict` classes, OpenAI or Anthropic
            tool dicts, JSON Schemas with a ``title``.
        tool_choice: ``"auto"``, None or False: a call or a plain answer. ``"any"``,
            ``"required"`` or True: at least one call. A tool's name, or the dicts of OpenAI and
            Anthropic for it: that tool. ``"none"``: no tools.
        parallel_tool_calls: False: at most one call in a reply.
        strict: As in LangChain: True closes the schemas (no further properties, all required).

    Returns:
        The contract, or None if there is nothing to bind: ``"none"``, or no tools.

    Raises:
        ValueError: A tool cannot be used, two have one name, or `tool_choice` names none of them.

    Example:
        >>> def now(zone: str) -> str:
        ...     "The time in a zone."
        >>> contract = bind([now], tool_choice="now")
        >>> contract.forced, contract.tools[0].parameters["required"]
        ('now', ['zone'])
    """
    # The same tool given twice, say as a class and as its schema, counts once.
    specs = tuple(dict.fromkeys(tool_spec(tool, strict=strict) for tool in tools))
    names = [spec.name for spec in specs]
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise ValueError(
            f"Several tools are called {', '.join(map(repr, doubles))}. A call could not tell them "
            "apart: give each tool a name of its own."
        )
    kind, name = _choice(tool_choice)
    if isinstance(tool_choice, Mapping) and tool_choice.get("disable_parallel_tool_use"):
        parallel_tool_calls = False
    if kind == "none" or (kind == "auto" and not specs):
        return None
    if not specs:
        raise ValueError(f"tool_choice={tool_choice!r} asks for a call, but no tools are bound.")
    if kind == "tool" and name not in names:
        raise ValueError(
            f"tool_choice names {name!r}, but the tools are {', '.join(map(repr, names))}."
        )
    return Contract(specs, cast("Choice", kind), name, parallel_tool_calls is not False)


def json_contract(schema: Mapping[str, Any] | None = None) -> JsonContract:
    """Make the contract for a reply that is JSON itself.

    Args:
        schema: The JSON Schema that the value must fit, of an object or of anything else; None
            for any JSON object.

    Raises:
        ValueError: The schema is not valid, or refers to another document.

    Example:
        >>> contract = json_contract({"type": "array", "items": {"type": "integer"}})
        >>> contract.parse("[1, 2]").value
        [1, 2]
    """
    if schema is None:
        return JsonContract()
    schema_json = compact(schema)
    validator(schema_json)
    return JsonContract(schema_json)


def render_calls(calls: Iterable[Call]) -> str:
    """Write calls as the reply that the contract asks for.

    Args:
        calls: The calls, in order.

    Raises:
        ValueError: The arguments are not JSON.

    Example:
        >>> render_calls([Call("add", {"a": 1})])
        '{"tool_calls":[{"name":"add","arguments":{"a":1}}]}'
    """
    entries = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return json.dumps({KEY: entries}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def read(text: str) -> Contract | JsonContract | None:
    r"""Read the last contract in a prompt back, as rendered; for stand-ins of a model.

    Args:
        text: The prompt.

    Returns:
        The contract, with only the forced tool if one is forced; None if there is none.

    Example:
        >>> contract = Contract((ToolSpec("now"),), parallel=False)
        >>> read("<user>\nHi\n</user>\n" + contract.render()) == contract
        True
    """
    block = read_block(text)
    if isinstance(block, ToolsBlock):
        answer = None if block.answer is None else JsonContract(block.answer.schema_json)
        return Contract(block.tools, block.choice, block.forced, block.parallel, answer)
    return None if block is None else JsonContract(block.schema_json)


def _choice(wanted: str | bool | Mapping[str, Any] | None) -> tuple[str, str | None]:
    if isinstance(wanted, Mapping):
        function = wanted.get("function")
        name = wanted.get("name", function.get("name") if isinstance(function, Mapping) else None)
        if isinstance(name, str):
            return "tool", name
        keyword = wanted.get("type")
        wanted = keyword if keyword in ("auto", "any", "required", "none") else wanted
    if wanted in (None, False, "auto"):
        return "auto", None
    if wanted in (True, "any", "required"):
        return "any", None
    if wanted == "none":
        return "none", None
    if isinstance(wanted, str):
        return "tool", wanted
    raise ValueError(
        f"tool_choice={wanted!r} is not understood. Give 'auto', 'any', 'none', a tool's name, "
        "{'type': 'function', 'function': {'name': ...}} or {'type': 'tool', 'name': ...}."
    )


class _ValueReader:
    """Takes every JSON value for the reply."""

    holds_all: Final = True
    watch: Final = frozenset[str]()

    def __init__(self, *, takes_lists: bool) -> None:
        self.takes_lists = takes_lists

    def read(self, value: object) -> Reading | None:
        if isinstance(value, list) and not self.takes_lists:
            return None
        return Reading(value, full=False)

    def tried(self, seen: Mapping[str, str], *, has_parts: bool) -> bool:
        return has_parts


def _alone(reply: str) -> list[Any]:
    """Return the value, such as a number, that a reply consists of."""
    text = reply.strip(SPACE)
    fenced = re.fullmatch(r"```[^\n`]*\n(.*)\n```", text, re.DOTALL)
    try:
        return [decode(fenced.group(1) if fenced else text)]
    except JSONError:
        return []


def _broken(broken: Broken, reply: str) -> ContractViolation:
    line = reply.count("\n", 0, broken.position) + 1
    column = broken.position - (reply.rfind("\n", 0, broken.position) + 1) + 1
    place = f"line {line}, column {column}"
    if broken.is_json:
        return ContractViolation("malformed-call", f"At {place}, {broken.message}.", reply)
    message = f"The JSON is broken at {place}: {broken.message}."
    return ContractViolation("invalid-json", message, reply)


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= 80 else f"{text[:80]}...", ensure_ascii=False)


def _json_type(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a string"
    return "a boolean" if isinstance(value, bool) else "a number"
