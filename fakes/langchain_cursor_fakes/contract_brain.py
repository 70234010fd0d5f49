"""What a well-behaved model replies to a prompt with a contract, and how models misbehave.

The prompt is read as it was written: the last ``<contract>`` block says what is due, the blocks
before it are the conversation. What the reply is:

| contract | conversation | reply |
|---|---|---|
| none | | None |
| a call or an answer | ends with tool results | an answer that quotes them |
| a call or an answer | the last question fits no tool | None |
| a call or an answer | otherwise | calls of the tools that fit |
| a call is due | | a call of the tool that fits best, else of the first one |
| a JSON value | | a value that fits the schema |
| a call or a JSON value | no tool fits, or it ends with tool results | a value that fits |

A tool fits if the last ``<user>`` block names it, else by the words that its name and description
share with it. Where several are named each is called, in the order in which they are named. The
arguments come from the words, numbers and quoted strings of the question, and fit the schema. A
JSON object without a schema has the question under each word that it has in single quotes, else
under ``answer``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from langchain_cursor.contract import Call, Contract, JsonContract, ToolSpec, read, render_calls

from ._schema_values import ValueMaker, words_of

_OPENING = re.compile(r'^<(user|tool_result|assistant|system)((?: \w+="[^"\n]*")*)>$', re.MULTILINE)
_ATTRIBUTE = re.compile(r'(\w+)="([^"\n]*)"')
_QUOTED_KEY = re.compile(r"(?<!\w)'(\w+)'(?!\w)")
_IMAGE = re.compile(r"<image\b[^<>]*/>")
_COMMON: Final = frozenset(
    words_of(
        "a an and are as at be by can do for from get give has have how i in is it me my of on or "
        "please set tell that the this to use what when where which who will with you your"
    )
)


def contract_reply(prompt_text: str) -> str | None:
    r"""Reply to a prompt as a well-behaved model would.

    Args:
        prompt_text: The conversation in tagged blocks, and the contract.

    Returns:
        The reply, or None where the contract leaves the answer to the model's own mind.

    Example:
        >>> from langchain_cursor.contract import bind
        >>> add = {
        ...     "name": "add",
        ...     "parameters": {
        ...         "type": "object",
        ...         "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        ...         "required": ["a", "b"],
        ...     },
        ... }
        >>> contract_reply("<user>\nPlease add 2 and 3.\n</user>\n\n" + bind([add]).render())
        '{"tool_calls":[{"name":"add","arguments":{"a":2,"b":3}}]}'
    """
    contract = read(prompt_text)
    if contract is None:
        return None
    blocks = _blocks(prompt_text[: prompt_text.rfind("<contract>\n")])
    question = next((block.content for block in reversed(blocks) if block.role == "user"), "")
    question = _IMAGE.sub("", question)
    if isinstance(contract, JsonContract):
        return _value_reply(contract, question)
    if contract.choice == "auto" and blocks and blocks[-1].role == "tool_result":
        if contract.answer is not None:
            return _value_reply(contract.answer, f"{question}\n{_quoted_results(blocks)}")
        return _quoted_results(blocks)
    tools = _fitting(contract, question)
    if not tools:
        return None if contract.answer is None else _value_reply(contract.answer, question)
    return render_calls(Call(tool.name, _arguments(tool, question)) for tool in tools)


@dataclass(frozen=True)
class _Block:
    role: str
    attributes: Mapping[str, str]
    content: str


def _blocks(text: str) -> list[_Block]:
    blocks = []
    at = 0
    while opening := _OPENING.search(text, at):
        role = opening.group(1)
        end = text.find(f"\n</{role}>", opening.end())
        end = len(text) if end < 0 else end
        content = text[opening.end() : end].strip("\n").replace("<\\", "<")
        blocks.append(_Block(role, dict(_ATTRIBUTE.findall(opening.group(2))), content))
        at = end
    return blocks


def _quoted_results(blocks: list[_Block]) -> str:
    results: list[str] = []
    for block in reversed(blocks):
        if block.role != "tool_result":
            break
        name = block.attributes.get("name", "the tool")
        verb = "failed" if block.attributes.get("status") == "error" else "returned"
        results.insert(0, f"{name} {verb}: {block.content}")
    return "\n".join(results)


def _value_reply(contract: JsonContract, question: str) -> str:
    if contract.schema_json is None:
        keys = _QUOTED_KEY.findall(question) or ["answer"]
        return json.dumps(dict.fromkeys(keys, question), ensure_ascii=False)
    schema = json.loads(contract.schema_json)
    root = schema if isinstance(schema, Mapping) else {}
    return json.dumps(ValueMaker(question, root).make(schema), ensure_ascii=False)


def _arguments(tool: ToolSpec, question: str) -> dict[str, Any]:
    schema = tool.parameters
    # The tool's name may hold digits or words that would be taken for arguments.
    said = re.sub(rf"\b{re.escape(tool.name)}\b", " ", question, flags=re.IGNORECASE)
    made: dict[str, Any] = ValueMaker(said, schema).make({"type": "object", **schema})
    return made


def _fitting(contract: Contract, question: str) -> list[ToolSpec]:
    if contract.forced is not None:
        return [tool for tool in contract.tools if tool.name == contract.forced]
    named = [(place, tool) for tool in contract.tools if (place := _place(tool, question)) >= 0]
    if named:
        tools = [tool for _, tool in sorted(named, key=lambda pair: pair[0])]
        return tools if contract.parallel else tools[:1]
    words = set(words_of(question)) - _COMMON
    best = max(contract.tools, key=lambda tool: _likeness(tool, words))
    if contract.choice == "auto" and not _likeness(best, words):
        return []
    return [best]


def _place(tool: ToolSpec, question: str) -> int:
    """Where the question names the tool, as it is written or as words; -1 if it does not."""
    words = r"[\W_]*".join(map(re.escape, words_of(tool.name))) or re.escape(tool.name)
    found = re.search(rf"(?<!\w)(?:{re.escape(tool.name)}|{words})(?!\w)", question, re.IGNORECASE)
    return found.start() if found else -1


def _likeness(tool: ToolSpec, words: set[str]) -> int:
    """Words shared with the question; those of the name count three times."""
    in_name = set(words_of(tool.name)) - _COMMON
    in_description = set(words_of(tool.description)) - _COMMON - in_name
    return 3 * len(in_name & words) + len(in_description & words)


# --- Misbehaviour ---------------------------------------------------------------------------------


def _with_calls(change: Callable[[list[dict[str, Any]]], str]) -> Callable[[str], str]:
    """Change the list of calls of a reply; a reply without calls stays as it is."""

    def misbehave(reply: str) -> str:
        try:
            calls = json.loads(reply)["tool_calls"]
        except (ValueError, LookupError, TypeError):
            return reply
        return change(calls)

    return misbehave


def _calls(calls: list[dict[str, Any]]) -> str:
    return json.dumps({"tool_calls": calls}, ensure_ascii=False)


def _openai(call: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "call_1",
        "type": "function",
        "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
    }


UNDERSTOOD: Final[dict[str, Callable[[str], str]]] = {
    "fenced": lambda reply: f"```json\n{reply}\n```",
    "tagged": lambda reply: f"<tool_calls>\n{reply}\n</tool_calls>",
    "prose_before": lambda reply: f"Let me look that up.\n\n{reply}",
    "prose_around": lambda reply: f"Let me look that up.\n\n{reply}\n\nI will wait for the result.",
    "pretty_printed": lambda reply: json.dumps(json.loads(reply), indent=2, ensure_ascii=False),
    "bare_call": _with_calls(lambda calls: "\n".join(json.dumps(call) for call in calls)),
    "bare_list": _with_calls(json.dumps),
    "arguments_as_string": _with_calls(
        lambda calls: _calls(
            [{"name": call["name"], "arguments": json.dumps(call["arguments"])} for call in calls]
        )
    ),
    "args_for_arguments": _with_calls(
        lambda calls: _calls([{"tool": call["name"], "args": call["arguments"]} for call in calls])
    ),
    "openai_shape": _with_calls(lambda calls: _calls([_openai(call) for call in calls])),
    "namespaced": _with_calls(
        lambda calls: _calls([{**call, "name": f"functions.{call['name']}"} for call in calls])
    ),
    "repeated": lambda reply: reply + reply,
}
"""Misbehaviours that the contract understands all the same, each from a good reply to a bad one."""

MISBEHAVIOURS: Final[dict[str, Callable[[str], str]]] = {
    **UNDERSTOOD,
    "prose": lambda reply: "I would rather explain it in words.",
    "empty": lambda reply: "",
    "truncated": lambda reply: reply[: len(reply) * 2 // 3],
    "broken_json": lambda reply: reply.replace('":', '" ', 1),
    "trailing_comma": lambda reply: f"{reply.rstrip()[:-1]},{reply.rstrip()[-1]}",
    "single_quotes": lambda reply: reply.replace('"', "'"),
    "no_calls": _with_calls(lambda calls: _calls([])),
    "wrong_tool": _with_calls(
        lambda calls: _calls([{**call, "name": f"no_such_{call['name']}"} for call in calls])
    ),
    "wrong_types": _with_calls(
        lambda calls: _calls([{**call, "arguments": list(call["arguments"])} for call in calls])
    ),
    "missing_arguments": _with_calls(
        lambda calls: _calls([{"name": call["name"]} for call in calls])
    ),
    "inlined_arguments": _with_calls(
        lambda calls: _calls([{"name": call["name"], **call["arguments"]} for call in calls])
    ),
    "called_twice": _with_calls(lambda calls: _calls(calls + calls)),
}
"""Every misbehaviour by name: from a good reply, with or without calls, to a bad one."""
