"""What must work wherever the package is installed: `python smoke.py VERSION`."""

from __future__ import annotations

import sys
from importlib.metadata import version

import langchain_cursor
import langchain_cursor_fakes
from langchain_cursor import ChatCursor
from langchain_cursor_fakes import CursorCloud, FakeCursor


def main() -> None:
    """Answer on FakeCursor, and through the real bridge on the stand-in."""
    for package in (langchain_cursor, langchain_cursor_fakes):
        assert str(package.__file__).startswith(sys.prefix), package.__file__
    assert version("langchain-cursor") == sys.argv[1]
    assert ChatCursor(sdk_loader=FakeCursor(["Hello"]).sdk).invoke("Hi").text == "Hello"
    with CursorCloud() as cloud, ChatCursor(api_key="any", base_url=cloud.url) as llm:
        assert llm.invoke("Hi").text == "Hello from Cursor. You said: Hi"


if __name__ == "__main__":
    main()
