"""What becomes of every reply in the corpus, whole and in pieces."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from langchain_cursor.contract import ContractViolation, Parsed, ReplyScanner
from tests.corpus import Case, load

CASES = load()
CLAUSES = {
    "form": "CONTRACT-8",
    "wrapped": "CONTRACT-10",
    "shapes": "CONTRACT-11",
    "plain": "CONTRACT-12",
    "judged": "CONTRACT-15",
    "text": "CONTRACT-17",
    "several": "CONTRACT-18",
    "broken": "CONTRACT-19",
    "json_mode": "CONTRACT-22",
}
each_case = pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])


def short(value: Any) -> Any:
    """The value itself, or of a long text its ends, length and digest."""
    if isinstance(value, str) and len(value) > 1_000:
        digest = hashlib.sha256(value.encode()).hexdigest()[:12]
        return f"{value[:60]} ... {value[-40:]} ({len(value)} characters, {digest})"
    if isinstance(value, int) and value > 10**40:
        return f"an integer of {len(str(value))} digits"
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    if isinstance(value, list):
        return short_list(value)
    return value


def short_list(items: list[Any]) -> Any:
    if len(items) > 20:
        return f"{items[0]!r} ... {items[-1]!r} ({len(items)} items)"
    depth, inner = 0, items
    while len(inner) == 1 and isinstance(inner[0], list):
        depth, inner = depth + 1, inner[0]
    if depth > 10:
        return f"{depth} more lists inside each other"
    return [short(item) for item in items]


def outcome(scanner: ReplyScanner) -> Parsed | tuple[str, str]:
    try:
        return scanner.parsed()
    except ContractViolation as violation:
        return violation.reason, violation.message


def described(case: Case) -> dict[str, Any]:
    scanner = case.contract().scanner()
    shown = scanner.feed(case.reply)
    result = outcome(scanner)
    description: dict[str, Any] = {"shown at once": short(shown)}
    if isinstance(result, tuple):
        return description | {"violation": result[0], "message": short(result[1])}
    if case.schema is not None:
        return description | {"value": short(result.value), "text": short(result.text)}
    if not result.calls:
        same = result.text == case.reply
        return description | {"answer": "the reply as it is" if same else short(result.text)}
    calls = [{call.name: short(call.arguments)} for call in result.calls]
    return description | {"calls": short_list(calls), "text": short(result.text)}


def violation_of(case: Case) -> ContractViolation | None:
    try:
        case.contract().parse(case.reply)
    except ContractViolation as violation:
        return violation
    return None


def pieces_of(reply: str, seed: int) -> list[str]:
    choose = random.Random(seed)
    longest = choose.choice([1, 3, 17, 500]) if len(reply) < 5_000 else 500
    pieces, at = [], 0
    while at < len(reply):
        size = choose.randint(1, longest)
        pieces.append(reply[at : at + size])
        at += size
    return pieces


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.id, marks=pytest.mark.clause(CLAUSES[case.id.split("/")[0]]))
        for case in CASES
    ],
)
def test_a_reply_is_understood_as_a_careful_reader_would(
    case: Case, snapshot: SnapshotAssertion
) -> None:
    assert described(case) == snapshot


@pytest.mark.clause("CONTRACT-14")
@each_case
def test_a_reply_in_pieces_means_the_same_as_the_whole(case: Case) -> None:
    whole = case.contract().scanner()
    shown_of_whole = whole.feed(case.reply)
    for seed in range(6):
        scanner = case.contract().scanner()
        shown = "".join(map(scanner.feed, pieces_of(case.reply, seed)))
        rest = scanner.finish()

        assert shown + rest == case.reply
        assert shown == shown_of_whole
        result = outcome(scanner)
        assert result == outcome(whole)
        if isinstance(result, Parsed):
            assert result.text.startswith(shown)


@pytest.mark.clause("CONTRACT-16")
@each_case
def test_a_violation_can_be_told_to_the_model(case: Case) -> None:
    violation = violation_of(case)
    if violation is not None:
        told = case.contract().correction(violation)
        assert violation.message in told
        assert violation.reply == case.reply
        assert len(told) < 5_000


@pytest.mark.clause("SPEC-4")
def test_the_corpus_has_no_two_cases_with_one_name_or_one_reply() -> None:
    assert len(CASES) >= 150
    assert max(Counter(case.id for case in CASES).values()) == 1
    keys = Counter((case.reply, case.choice, case.parallel, case.schema) for case in CASES)
    assert max(keys.values()) == 1
