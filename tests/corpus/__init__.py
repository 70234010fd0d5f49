"""The corpus of model replies, and the tools that they are judged by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from langchain_cursor.contract import Contract, JsonContract, bind, json_contract

_STRING = {"type": "string"}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "search",
        "description": "Find pages.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": _STRING,
                "limit": {"type": "integer", "minimum": 1, "maximum": 50},
                "tags": {"type": "array", "items": _STRING},
                "since": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "required": ["query"],
        },
    },
    {"name": "now", "description": "The time.", "parameters": {"type": "object"}},
    {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
    {
        "name": "send_mail",
        "description": "Send a mail.",
        "parameters": {
            "type": "object",
            "properties": {
                "to": _STRING,
                "body": _STRING,
                "priority": {"enum": ["low", "high"]},
            },
            "required": ["to", "body"],
            "additionalProperties": False,
        },
    },
    {
        "name": "tree",
        "description": "Keep a tree.",
        "parameters": {
            "type": "object",
            "properties": {"root": {"$ref": "#/$defs/node"}},
            "required": ["root"],
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {
                        "label": _STRING,
                        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                    },
                    "required": ["label"],
                }
            },
        },
    },
    {"name": "echo", "description": "Give back.", "parameters": {"type": "object"}},
]

SCHEMAS: dict[str, dict[str, Any] | None] = {
    "any": None,
    "person": {
        "type": "object",
        "properties": {"name": _STRING, "age": {"type": "integer"}},
        "required": ["name", "age"],
    },
    "numbers": {"type": "array", "items": {"type": "integer"}},
    "integer": {"type": "integer"},
}


@dataclass(frozen=True)
class Case:
    """One reply and what it is judged by."""

    id: str
    reply: str
    choice: str | None = None
    parallel: bool | None = None
    schema: str | None = None

    def contract(self) -> Contract | JsonContract:
        """The contract of this case."""
        if self.schema is not None:
            return json_contract(SCHEMAS[self.schema])
        contract = bind(TOOLS, tool_choice=self.choice, parallel_tool_calls=self.parallel)
        assert contract is not None
        return contract


def load() -> list[Case]:
    """All cases, in the order of their files; an id is made of the file's name and the case's."""
    cases = []
    for path in sorted((Path(__file__).parent / "replies").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        for entry in yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            parts = entry.get("parts", [[entry.get("reply"), 1]])
            case = Case(
                id=f"{path.stem}/{entry['id']}",
                reply="".join(text * times for text, times in parts),
                choice=entry.get("choice"),
                parallel=entry.get("parallel"),
                schema=entry.get("json"),
            )
            cases.append(case)
    return cases
