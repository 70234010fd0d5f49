"""The specification and the tests name each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from langchain_cursor.bridge import launch
from tests.conftest import COLLECTED, ROOT
from tests.spec_matrix import Test as Named
from tests.spec_matrix import (
    as_test,
    clauses,
    complaints,
    example_complaints,
    matrix,
    pages,
    without_example,
)

clause = pytest.mark.clause


@clause("SPEC-1")
@clause("SPEC-2")
@clause("SPEC-3")
def test_the_specification_and_the_tests_agree(request: pytest.FixtureRequest) -> None:
    items = request.config.stash[COLLECTED]
    if {item.path for item in items} >= set((ROOT / "tests").rglob("test_*.py")):
        assert complaints(pages(), map(as_test, items)) == []
        return
    # Only some of the tests are run now: look at all of them.
    done = subprocess.run(
        [sys.executable, "-m", "tests.spec_matrix"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "  SPEC-1 " in done.stdout


@clause("SPEC-1")
def test_a_clause_is_a_heading_a_bold_word_or_a_row_and_never_in_an_example() -> None:
    page = """\
# A page about A-0

## A-1: a heading

**A-2** Text that mentions A-9.

| A-3 | a row |

````python
'''
```
## A-4: in a fence within a fence
```
'''
````

**A-5** After it.
"""
    assert list(clauses(page)) == ["A-1", "A-2", "A-3", "A-5"]


@clause("SPEC-1")
def test_every_page_but_none_without_clauses_is_read(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text("## ONE-1: a clause", encoding="utf-8")
    (tmp_path / "none.md").write_text("Only prose.", encoding="utf-8")
    assert pages(tmp_path) == {"one.md": ["ONE-1"]}


@clause("SPEC-8")
def test_every_clause_has_an_example() -> None:
    assert example_complaints() == []


@clause("SPEC-8")
def test_neighbours_share_an_example_and_a_heading_ends_it(tmp_path: Path) -> None:
    page = """\
## A-1: shown

**A-2** And this.

```python
pass  # **A-8** is none
```

**A-3** Not shown.

```console
$ ls
```

# A heading

| A-4 | shown |

```python
```

| A-5 | not shown |
"""
    assert without_example(page) == ["A-3", "A-5"]
    (tmp_path / "one.md").write_text(page, encoding="utf-8")
    said = example_complaints(tmp_path)
    assert said[:2] == ["A-3 has no example", "A-5 has no example"]
    assert "CLI-3 has an example, see `TESTS_ALONE`" in said  # its page is not there


@clause("SPEC-7")
def test_every_page_stands_on_the_map() -> None:
    directory = ROOT / "spec"
    rows = re.findall(
        r"^\| \[(\w+)\]\(\1\.md\) \|", (directory / "README.md").read_text(encoding="utf-8"), re.M
    )
    assert sorted(rows) == sorted(page.stem for page in directory.glob("[!R]*.md"))


@clause("SPEC-6")
@pytest.mark.parametrize("marks", [set(), {"fake"}, {"bridge"}, {"live"}])
def test_a_run_without_tests_of_the_bridge_cannot_start_it(
    marks: set[str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks: Any = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    item: Any = SimpleNamespace(get_closest_marker=lambda name: name in marks)
    node = Path("node").joinpath
    monkeypatch.setattr(launch, "node", node)
    hooks.pytest_collection_finish(SimpleNamespace(items=[item], config=request.config))
    if marks & {"bridge", "live"}:
        assert launch.node == node
    else:
        with pytest.raises(AssertionError, match="must be marked `bridge`"):
            launch.node(Path())


PAGES = {"a.md": ["A-1", "A-2"], "b.md": ["B-1"]}
TESTS = [Named("t1", "pure", ("A-1", "B-1")), Named("t2", "bridge", ("A-1", "A-2"))]


@clause("SPEC-1")
@clause("SPEC-2")
def test_whatever_does_not_fit_is_complained_of() -> None:
    assert complaints(PAGES, TESTS) == []
    assert complaints(PAGES, TESTS[:1]) == ["A-2 has no test"]
    assert complaints({**PAGES, "c.md": ["A-2"]}, TESTS) == ["A-2 is stated 2 times"]
    assert complaints(PAGES, [*TESTS, Named("t3", "fake", ())]) == ["t3 names no clause"]
    assert complaints(PAGES, [*TESTS, Named("t3", "live", ("A-3",))]) == [
        "t3 names A-3, which no page states"
    ]


@clause("SPEC-3")
def test_the_matrix_counts_tests_by_clause_and_backend() -> None:
    rows = [line.split() for line in matrix(PAGES, TESTS).splitlines()]
    assert rows == [
        ["pure", "fake", "cassette", "bridge", "live"],
        [],
        ["spec/a.md"],
        ["A-1", "1", ".", ".", "1", "."],
        ["A-2", ".", ".", ".", "1", "."],
        [],
        ["spec/b.md"],
        ["B-1", "1", ".", ".", ".", "."],
    ]
