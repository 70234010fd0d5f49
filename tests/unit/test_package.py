"""What users install and import."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from langchain_core.language_models import BaseChatModel

import langchain_cursor
from langchain_cursor import ChatCursor
from tests.conftest import ROOT


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_every_public_name_is_there() -> None:
    for name in langchain_cursor.__all__:
        assert getattr(langchain_cursor, name).__name__ == name
    assert dir(langchain_cursor) == sorted(langchain_cursor.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Cursor'"):
        langchain_cursor.Cursor  # noqa: B018 # the look-up is what is tested


def test_importing_the_model_imports_neither_the_sdk_nor_the_runtime() -> None:
    loaded = python(
        "import sys; from langchain_cursor import ChatCursor; ChatCursor(); print(*sys.modules)"
    ).split()
    for name in ("cursor_sdk", "jsonschema", "langchain_cursor.runtime"):
        assert name not in loaded


def test_importing_the_package_alone_imports_nothing_else() -> None:
    loaded = python("import sys; import langchain_cursor; print(*sys.modules)").split()
    assert "langchain_core" not in loaded


def test_the_wheel_holds_both_packages_the_extension_and_the_type_marks(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "langchain_cursor/chat_models.py",
        "langchain_cursor/py.typed",
        "langchain_cursor/bridge/extension.mjs",
        "langchain_cursor_fakes/cloud.py",
        "langchain_cursor_fakes/py.typed",
    } <= names
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"langchain_cursor", "langchain_cursor_fakes"}


def test_the_readme_lists_every_parameter_with_its_default() -> None:
    rows = re.findall(
        r"^\| `(\w+)`[^|]*\| `([^`]+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
    )
    listed = {name: eval(default) for name, default in rows}
    own = {
        field.alias or name: field.default
        for name, field in ChatCursor.model_fields.items()
        if name not in BaseChatModel.model_fields
    }
    without_effect = {"temperature", "top_p", "max_tokens", "seed"}
    assert listed == {name: value for name, value in own.items() if name not in without_effect}
