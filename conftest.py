"""Runs the examples of the README, the specification and the docstrings, on an offline Cursor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from doctest import ELLIPSIS

import pytest
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

from langchain_cursor_fakes import CursorCloud, Delays, answer

pages = Sybil(
    parsers=[PythonCodeBlockParser(), DocTestParser(optionflags=ELLIPSIS)],
    patterns=["README.md", "spec/*.md"],
    fixtures=["offline"],
)
docstrings = Sybil(
    parsers=[DocTestParser(optionflags=ELLIPSIS)],
    patterns=["langchain_cursor/**/*.py", "langchain_cursor/*.py", "langchain_cursor_fakes/*.py"],
    fixtures=["offline"],
    document_types={".py": PythonDocStringDocument},
)
pytest_collect_file = (pages + docstrings).pytest()


@pytest.fixture(scope="session")
def session_cloud() -> Iterator[CursorCloud]:
    """One stand-in for Cursor's cloud for the whole run."""
    with CursorCloud() as cloud:
        yield cloud


def as_new(cloud: CursorCloud) -> CursorCloud:
    """The stand-in with nothing changed and nothing recorded."""
    cloud.brain, cloud.delays = answer, Delays()
    cloud.refused_keys, cloud.refuse_all_keys = frozenset(), False
    cloud.system_prompt_allowed = True
    cloud.clear()
    return cloud


@pytest.fixture
def cloud(session_cloud: CursorCloud) -> CursorCloud:
    """The stand-in, as new for each test."""
    return as_new(session_cloud)


@pytest.fixture
def offline(session_cloud: CursorCloud) -> Iterator[None]:
    """An environment in which `ChatCursor()` talks to the stand-in."""
    # Not by the fixture `cloud`: its name would hide the examples' own.
    cloud = as_new(session_cloud)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("CURSOR_"):
                patch.delenv(name)
        patch.setenv("CURSOR_BACKEND_URL", cloud.url)
        patch.setenv("CURSOR_API_KEY", "crsr_example_0123456789")
        yield
