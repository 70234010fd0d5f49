"""What importing the package costs, against importing LangChain's own chat models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from benchmarks.measure import Ratio, compare


def run() -> list[Ratio]:
    """Time whole interpreters; both import LangChain's chat models."""
    base = "import langchain_core.language_models.chat_models"
    return [
        compare(
            f"import: {statement}",
            _python(statement),
            _python(base),
            limit=1.15,
            pairs=15,
        )
        for statement in ("import langchain_cursor", "from langchain_cursor import ChatCursor")
    ]


def _python(statement: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", statement], check=True)
