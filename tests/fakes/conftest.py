"""Fixtures of the tests of the fakes: a cloud of each test's own, and a client for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from langchain_cursor_fakes import CursorCloud
from tests.fakes.wire_client import WireClient


@pytest.fixture
def cloud() -> Iterator[CursorCloud]:
    with CursorCloud() as cloud:
        yield cloud


@pytest.fixture
def wire(cloud: CursorCloud) -> Iterator[WireClient]:
    with WireClient(cloud) as client:
        yield client
