"""What pytest collects of this suite, whatever the run at hand has selected."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from tests.conftest import ROOT


@dataclass(frozen=True)
class One:
    """A test of the suite: its id, and the backend that it runs on, or what else it needs."""

    id: str
    backend: str


Collected: TypeAlias = tuple[One, ...]

_CODE = """
import json
from tests.spec_matrix import collected
print(json.dumps([[test.id, test.backend] for test in collected("tests/behaviour")]))
"""


@cache
def collect() -> Collected:
    """Collect it, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return tuple(One(*each) for each in json.loads(done.stdout))
