"""`make spec`: which clause of spec/ is proved by how many tests, on which backend.

It fails if a clause has no test or no example, or if a test names none, or one that does not exist.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What a test needs, by its marks: the most that it needs comes last.
BACKENDS = ("pure", "fake", "cassette", "bridge", "live")
_CLAUSE = re.compile(r"(?:\*\*|#+ |\| )([A-Z]+-\d+)\b")
_FENCE = re.compile(r"`{3,}")
# Clauses that take a process, a terminal or an attacker to show: their tests are the example.
TESTS_ALONE = frozenset(
    f"{name}-{number}"
    for name, numbers in {
        "BEHAVIOUR": (1, 3, 4),
        "BRIDGE": range(1, 13),
        "CASSETTE": (1, 5, 6, 8, 9),
        "CLI": (*range(3, 8), *range(9, 13), *range(14, 21)),
        "EXAMPLES": range(1, 7),
        "PACKAGE": range(3, 9),
        "RUNTIME": (23,),
        "SCALE": range(1, 4),
        "SECURITY": (*range(3, 7), *range(13, 18)),
        "SPEC": range(1, 9),
    }.items()
    for number in numbers
)


@dataclass(frozen=True)
class Test:
    """A collected test: where it stands, what it needs, and what it proves."""

    id: str
    backend: str
    clauses: tuple[str, ...]


def clauses(page: str) -> Iterator[str]:
    """The clauses that a page states, outside its examples."""
    fence = ""
    for line in page.splitlines():
        if match := _FENCE.match(line):
            fence = "" if line.strip() == fence else fence or match[0]
        elif not fence and (match := _CLAUSE.match(line)):
            yield match[1]


def without_example(page: str) -> list[str]:
    """The clauses that no example follows before the next heading: neighbours may share one."""
    waiting: list[str] = []
    found: list[str] = []
    fence = ""
    for line in page.splitlines():
        if match := _FENCE.match(line):
            if not fence and line.strip() == "```python":
                waiting.clear()
            fence = "" if line.strip() == fence else fence or match[0]
        elif not fence:
            if line.startswith("#"):
                found += waiting
                waiting.clear()
            if match := _CLAUSE.match(line):
                waiting.append(match[1])
    return found + waiting


def example_complaints(directory: Path = ROOT / "spec") -> list[str]:
    """Which clauses should have an example and have none, or have one that nobody knows of."""
    bare = {
        clause
        for path in directory.glob("*.md")
        for clause in without_example(path.read_text(encoding="utf-8"))
    }
    return [
        *(f"{clause} has no example" for clause in sorted(bare - TESTS_ALONE)),
        *(f"{clause} has an example, see `TESTS_ALONE`" for clause in sorted(TESTS_ALONE - bare)),
    ]


def pages(directory: Path = ROOT / "spec") -> dict[str, list[str]]:
    """The clauses of each page that states some."""
    found = {
        path.name: list(clauses(path.read_text(encoding="utf-8")))
        for path in sorted(directory.glob("*.md"))
    }
    return {name: stated for name, stated in found.items() if stated}


def collected(*arguments: str) -> list[Test]:
    """The tests that pytest finds.

    Raises:
        RuntimeError: It cannot collect them all; the message is what it says.
    """
    items: list[pytest.Item] = []

    class Collector:
        # Every item, also one that an option deselects; its marks are complete afterwards.
        def pytest_itemcollected(self, item: pytest.Item) -> None:
            items.append(item)

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = pytest.main(["--collect-only", "-qq", *arguments], plugins=[Collector()])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest cannot collect the tests:\n{said.getvalue()}")
    return list(map(as_test, items))


def as_test(item: pytest.Item) -> Test:
    """What an item says by its marks."""
    named = tuple(dict.fromkeys(str(mark.args[0]) for mark in item.iter_markers("clause")))
    needed = [name for name in BACKENDS[1:] if item.get_closest_marker(name)]
    return Test(item.nodeid, needed[-1] if needed else "pure", named)


def complaints(stated: Mapping[str, Iterable[str]], tests: Iterable[Test]) -> list[str]:
    """What is wrong between the specification and the tests; nothing if all is well."""
    known = Counter(clause for page in stated.values() for clause in page)
    tests = list(tests)
    proved = {clause for test in tests for clause in test.clauses}
    return [
        *(f"{clause} is stated {times} times" for clause, times in known.items() if times > 1),
        *(f"{clause} has no test" for clause in known if clause not in proved),
        *(f"{test.id} names no clause" for test in tests if not test.clauses),
        *(
            f"{test.id} names {clause}, which no page states"
            for test in tests
            for clause in test.clauses
            if clause not in known
        ),
    ]


def matrix(stated: Mapping[str, Iterable[str]], tests: Iterable[Test]) -> str:
    """The table of clauses and backends, with the numbers of tests."""
    counts = Counter((clause, test.backend) for test in tests for clause in test.clauses)
    head = f"{'':18}" + "".join(f"{name:>10}" for name in BACKENDS)
    lines = [head]
    for page, page_clauses in stated.items():
        lines += ["", f"spec/{page}"]
        for clause in page_clauses:
            cells = (counts[clause, backend] or "." for backend in BACKENDS)
            lines.append(f"  {clause:16}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    """Print the matrix and what is wrong; 0 if nothing is."""
    stated, tests = pages(), collected("tests")
    print(matrix(stated, tests))
    totals = Counter(test.backend for test in tests)
    print(f"\n  {'tests':16}" + "".join(f"{totals[backend]:>10}" for backend in BACKENDS))
    wrong = [*complaints(stated, tests), *example_complaints()]
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
