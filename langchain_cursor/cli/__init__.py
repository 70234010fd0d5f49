"""The command `langchain-cursor`; it needs the extra `cli`."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.

    Raises:
        SystemExit: The command has ended by itself, with its exit code.
    """
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"langchain-cursor: the command line needs {' and '.join(missing)}. "
            'Install them with: pip install "langchain-cursor[cli]"',
            file=sys.stderr,
        )
        return 1
    try:
        from langchain_cursor.cli.app import app

        app(prog_name="langchain-cursor")
    except KeyboardInterrupt:  # before a command had begun, or while it was ending
        return 130
    return 0
