"""Words the contract for the model, reads the block back, and words what was wrong with a reply."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from langchain_cursor._call_shapes import KEY
from langchain_cursor._tool_schemas import ToolSpec, compact

Choice: TypeAlias = Literal["auto", "any", "tool"]

_OPEN: Final = "<contract>"
_CLOSE: Final = "</contract>"
_TOOLS_LINE: Final = "Tools, one JSON object per line:"
_SCHEMA_LINE: Final = "It must be valid against this JSON Schema:"
_VALUE_LINE: Final = "Your whole reply is one JSON "
_ANSWER_LINE: Final = "2. Your answer to the user: one JSON "
_STRICT: Final = "Strict JSON: double quotes, no comments, no trailing commas."
_BARE: Final = "No text before or after it, and no code fence around it."
_COUNTS: Final[dict[tuple[Choice, bool], str]] = {
    ("auto", True): "none, one or several",
    ("auto", False): "none or one",
    ("any", True): "one or several",
    ("any", False): "exactly one",
    ("tool", True): "one or several, all of the one tool below",
    ("tool", False): "exactly one, of the one tool below",
}


@dataclass(frozen=True)
class ValueBlock:
    """What a block for a JSON value says."""

    schema_json: str | None

    @property
    def kind(self) -> str:
        """``"object"``, ``"array"``, or ``"value"`` for anything else that the schema allows."""
        if self.schema_json is None:
            return "object"
        schema = json.loads(self.schema_json)
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind is None and isinstance(schema, dict) and "properties" in schema:
            kind = "object"
        return kind if kind in ("object", "array") else "value"

    def render(self) -> str:
        """Return the block."""
        lines = [
            _OPEN,
            f"{_VALUE_LINE}{self.kind} and nothing else.",
            f"- {_STRICT}",
            f"- {_BARE}",
        ]
        if self.schema_json is not None:
            lines += [_SCHEMA_LINE, self.schema_json]
        return "\n".join([*lines, _CLOSE])

    def due(self) -> str:
        """Return what a reply must be, as the end of the sentence "Reply again with"."""
        due = f"one JSON {self.kind} and nothing else"
        if self.schema_json is None:
            return f"{due}. {_STRICT}"
        return f"{due}, valid against this JSON Schema:\n{self.schema_json}\n{_STRICT}"


@dataclass(frozen=True)
class ToolsBlock:
    """What a block for tools says; the fields are those of `Contract`."""

    tools: tuple[ToolSpec, ...]
    choice: Choice
    forced: str | None
    parallel: bool
    answer: ValueBlock | None = None

    def render(self) -> str:
        """Return the block. Of a forced tool alone the schema is shown."""
        call = compact(self._call)
        lines = [
            _OPEN,
            "You can ask for tool calls. You never run a tool and never write its result: the "
            "calls are made for you, and the results come in the next message.",
        ]
        if self.choice == "auto":
            lines += [
                "Your whole reply is one of these two:",
                "1. A request for calls: one JSON object and nothing else, in this form:",
                self._form,
                *self._answer_lines,
            ]
        else:
            lines += [
                "Your whole reply is a request for calls: one JSON object and nothing else, in "
                "this form:",
                self._form,
            ]
        lines += [
            self._count_line,
            "Rules for a request:",
            '- "name" is the name of a tool below, spelled exactly like that. "arguments" is an '
            'object that is valid against the "parameters" schema of that tool; {} if there is '
            "nothing to give.",
        ]
        if self.parallel:
            lines.append(
                "- Several calls stand in the one list. A call that needs the result of another "
                "waits for the next reply."
            )
        lines += [
            f"- {_STRICT}",
            f"- {_BARE}",
            f"Allowed: {self._form}",
            f'Forbidden: {call} (a call without the list "{KEY}")',
            f"Forbidden: I will look it up. {self._form} (text before the object)",
            f"Forbidden: ```{self._form}``` (a code fence)",
            _TOOLS_LINE,
        ]
        for tool in self.tools:
            if self.forced in (None, tool.name):
                head = compact({"name": tool.name, "description": tool.description})
                lines.append(f'{head[:-1]},"parameters":{tool.parameters_json}}}')
        return "\n".join([*lines, _CLOSE])

    def due(self) -> str:
        """Return what a reply must be, as the end of the sentence "Reply again with"."""
        due = f"one JSON object and nothing else, in this form:\n{self._form}\n"
        if self.choice == "auto" and self.answer is None:
            due += "If no call is needed, reply with your answer in plain text instead.\n"
        elif self.answer is not None:
            due += f"If no call is needed, reply instead with {self.answer.due()}\n"
        return f"{due}{self._count_line} {_STRICT}"

    def count(self) -> str:
        """Return how many calls are due, such as "exactly one"."""
        if self.forced is not None:
            count = "one or several" if self.parallel else "exactly one"
            return f"{count}, of {json.dumps(self.forced, ensure_ascii=False)}"
        return _COUNTS[self.choice, self.parallel]

    @property
    def _answer_lines(self) -> list[str]:
        if self.answer is None:
            return ["2. Your answer to the user: plain text, without such an object."]
        lines = [f"{_ANSWER_LINE}{self.answer.kind} and nothing else."]
        if self.answer.schema_json is not None:
            lines += [_SCHEMA_LINE, self.answer.schema_json]
        return lines

    @property
    def _call(self) -> dict[str, object]:
        name = "TOOL" if self.forced is None else self.forced
        return {"name": name, "arguments": {"KEY": "VALUE"}}

    @property
    def _form(self) -> str:
        return compact({KEY: [self._call]})

    @property
    def _count_line(self) -> str:
        return f"Calls: {_COUNTS[self.choice, self.parallel]}."


def read_block(text: str) -> ToolsBlock | ValueBlock | None:
    """Return what the last block in `text` says, or None if there is none.

    Args:
        text: A prompt.
    """
    start = text.rfind(f"{_OPEN}\n")
    end = text.find(f"\n{_CLOSE}", start)
    if start < 0 or end < 0:
        return None
    lines = text[start:end].split("\n")
    schema = lines[lines.index(_SCHEMA_LINE) + 1] if _SCHEMA_LINE in lines else None
    if any(line.startswith(_VALUE_LINE) for line in lines):
        return ValueBlock(schema)
    for (choice, parallel), count in _COUNTS.items():
        if f"Calls: {count}." in lines and _TOOLS_LINE in lines:
            shown = [json.loads(line) for line in lines[lines.index(_TOOLS_LINE) + 1 :]]
            tools = tuple(
                ToolSpec(tool["name"], tool["description"], compact(tool["parameters"]))
                for tool in shown
            )
            forced = tools[0].name if choice == "tool" else None
            in_json = any(line.startswith(_ANSWER_LINE) for line in lines)
            answer = ValueBlock(schema) if in_json else None
            return ToolsBlock(tools, choice, forced, parallel, answer)
    return None


def correction(message: str, due: str) -> str:
    """Return what to send to a model that broke the contract.

    Args:
        message: What was wrong.
        due: What must come instead, as by `ToolsBlock.due`.
    """
    return (
        "Your last reply broke the contract and was not used. What was wrong:\n"
        f"{message}\nReply again with {due}"
    )
