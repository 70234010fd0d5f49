"""The pytest plugin `langchain_cursor`: the fixture `fake_cursor`.

pytest loads it in every run, so it imports nothing before the fixture is used.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .sdk import FakeCursor

_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)  # the form that every pytest knows
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Note whether a test has passed, for the fixture's end."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call":
        # One that was expected to fail and did not has passed, too, but pytest would count an
        # error at its end as one more expected failure.
        item.stash[_PASSED] = report.passed and not hasattr(report, "wasxfail")


@pytest.fixture
def fake_cursor(request: pytest.FixtureRequest) -> Generator[FakeCursor, None, None]:
    """A `FakeCursor` for one test: hand `fake_cursor.sdk` to ``ChatCursor(sdk_loader=...)``.

    It answers with the default brain until `reply_with` gives it a script. When the test has
    passed, `assert_done` checks that everything went by the script.
    """
    from .sdk import FakeCursor

    fake = FakeCursor()
    yield fake
    if request.node.stash.get(_PASSED, False):
        fake.assert_done()
