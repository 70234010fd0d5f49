"""The specification and the tests name each other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import ROOT


def clauses() -> set[str]:
    """Every clause that a page of the specification states, outside its examples."""
    found = set()
    for page in (ROOT / "spec").glob("*.md"):
        fence = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"`{3,}", line):
                fence = "" if line.strip() == fence else fence or match[0]
            elif not fence and (match := re.match(r"(?:\*\*|#+ |\| )([A-Z]+-\d+)\b", line)):
                found.add(match[1])
    return found


def proved() -> set[str]:
    """Every clause that a test names, in a mark or in a table that marks are made from."""
    found = set()
    for path in Path(ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r'"([A-Z]+-\d+)"', path.read_text(encoding="utf-8")))
    return found


def test_every_clause_has_a_test() -> None:
    assert sorted(clauses() - proved()) == []


def test_every_test_names_a_clause_that_exists() -> None:
    assert sorted(proved() - clauses()) == []
