"""What a user's type checker makes of the installed package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT, install

PROGRAM = Path(__file__).parent / "typed.py"


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("users") / "environment")


def mypy(environment: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file="),
            *("--python-executable", str(environment)),
            *("--cache-dir", str(ROOT / ".mypy_cache" / "users")),
            "app.py",
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.skipif(find_spec("mypy") is None, reason="needs mypy, of the extra `lint`")
@pytest.mark.clause("PACKAGE-7")
def test_mypy_knows_the_types_and_finds_what_is_wrong(environment: Path, tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path / "app.py")
    done = mypy(environment, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    # So they were the wheel's types: without its mark there are none.
    for mark in environment.parent.parent.rglob("langchain_cursor*/py.typed"):
        mark.unlink()
    assert "py.typed" in mypy(environment, tmp_path).stdout
