"""Shows that reading a reply takes linear time: twice the text, at most 2.5 times the time.

Times are processor time of this process for replies of 1 and 0.5 MB, the best of several runs. The
replies are ones that a reader that starts again at every bracket, or copies what it has at every
delta, takes minutes for. Run with pytest, each ratio is a test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import process_time

import pytest

from benchmarks.measure import HEADER, Ratio
from langchain_cursor.contract import (
    Contract,
    ContractViolation,
    JsonContract,
    ToolSpec,
    json_contract,
)

SIZE = 1_000_000
LIMIT = 2.5
TRIES = 4
DELTA = 4

_EXPRESSION = {
    "type": "object",
    "properties": {"e": {"$ref": "#/$defs/e"}},
    "$defs": {
        "e": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/sum"}, {"$ref": "#/$defs/list"}]},
        "sum": {"type": "object", "properties": {"l": {"$ref": "#/$defs/e"}}},
        "list": {"type": "array", "items": {"$ref": "#/$defs/e"}, "uniqueItems": True},
    },
}
_TOOLS = (
    ToolSpec("search", "Find.", '{"type":"object","properties":{"query":{"type":"string"}}}'),
    ToolSpec("now"),
    ToolSpec("sum", "", json.dumps(_EXPRESSION)),
)
AUTO = Contract(_TOOLS)
ANY = Contract(_TOOLS, "any")
OBJECT = json_contract()
LIST = json_contract({"type": "array"})

REPEATED = [
    "{",
    "[",
    '{"',
    '["{',
    '{"a":',
    '{"tool_calls":',
    '{":{"',
    '"\\"',
    "\\",
    "`",
    "```",
    "```json\n",
    "```json\n{",
    "<",
    "<tool_calls>",
    "{'tool_calls",
    "{t",
    " ",
    "{ ",
    "9",
    '[{"a":1},',
    "[1,",
    '{"name":"now"}\n',
    '{"tool_calls":[{"name":"now"}]} ',
    "Plain prose, word by word. ",
]


def _around(before: str, middle: str, after: str) -> Callable[[int], str]:
    return lambda size: before + _filled(middle, size - len(before) - len(after)) + after


def _filled(text: str, size: int) -> str:
    return text * max(size // len(text), 1)


_CALL = '{"tool_calls": [{"name": "search", "arguments": {"query": "'
WHOLE: dict[str, Callable[[int], str]] = {
    "one long string": _around(_CALL, "some words ", '"}}]}'),
    "one long escaped string": _around(_CALL, '\\"\\n', '"}}]}'),
    "one string never closed": _around(_CALL, "some words ", ""),
    "many calls": _around('{"tool_calls": [', '{"name": "now"}, ', '{"name": "now"}]}'),
    "many unknown calls": _around('{"tool_calls": [', '{"name": "no"}, ', '{"name": "no"}]}'),
    "many arguments": lambda size: json.dumps(
        {"tool_calls": [{"name": "sum", "arguments": {"e": [{"l": n} for n in range(size // 12)]}}]}
    ),
    "prose before a call": _around("", "Thinking. ", '{"tool_calls": [{"name": "now"}]}'),
    "white space before a call": _around("", "\n", '{"tool_calls": [{"name": "now"}]}'),
}


@dataclass(frozen=True)
class Case:
    """A reply of any size, and how it is read."""

    id: str
    make: Callable[[int], str]
    contract: Contract | JsonContract
    delta: int | None = None

    def seconds(self, size: int) -> float:
        """Processor time to read a reply of `size` characters."""
        reply = self.make(size)
        scanner = self.contract.scanner()
        start = process_time()
        step = self.delta or len(reply)
        for at in range(0, len(reply), step):
            scanner.feed(reply[at : at + step])
        with suppress(ContractViolation):
            scanner.parsed()
        return process_time() - start

    def measure(self) -> Ratio:
        """Compare the best time of a whole reply with that of half of it."""
        half = whole = float("inf")
        for _ in range(TRIES):
            half = min(half, self.seconds(SIZE // 2))
            whole = min(whole, self.seconds(SIZE))
            if whole / half < LIMIT * 0.9:
                break
        return Ratio(f"contract, 1 MB against half: {self.id}", whole, half, LIMIT)


CASES = [
    *(Case(f"auto {text!r}", _around("", text, ""), AUTO) for text in REPEATED),
    *(Case(f"any {text!r}", _around("", text, ""), ANY) for text in REPEATED[:8]),
    *(Case(f"object {text!r}", _around("", text, ""), OBJECT) for text in REPEATED[:8]),
    *(Case(f"list {text!r}", _around("", text, ""), LIST) for text in REPEATED[:8]),
    *(Case(f"auto {name}", make, AUTO) for name, make in WHOLE.items()),
    *(Case(f"deltas {text!r}", _around("", text, ""), AUTO, DELTA) for text in REPEATED[:12]),
    *(Case(f"deltas {name}", make, AUTO, DELTA) for name, make in WHOLE.items()),
]


def run() -> Iterator[Ratio]:
    """Measure every case."""
    for case in CASES:
        yield case.measure()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_twice_the_reply_takes_at_most_two_and_a_half_times_as_long(case: Case) -> None:
    ratio = case.measure()
    assert ratio.holds, str(ratio)


def main() -> int:
    """Print every ratio; the exit code says whether all are within the limit."""
    print(HEADER)
    failed = 0
    for ratio in run():
        print(ratio, flush=True)
        failed += not ratio.holds
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
