"""What users install and import."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from langchain_core.language_models import BaseChatModel

import langchain_cursor
from langchain_cursor import ChatCursor
from tests.conftest import ROOT, install
from tests.lower_bounds import lower_bounds


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.clause("PACKAGE-1")
def test_every_public_name_is_there() -> None:
    for name in langchain_cursor.__all__:
        assert getattr(langchain_cursor, name).__name__ == name
    assert dir(langchain_cursor) == sorted(langchain_cursor.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Cursor'"):
        langchain_cursor.Cursor  # noqa: B018 # the look-up is what is tested


@pytest.mark.clause("PACKAGE-2")
def test_importing_the_model_imports_neither_the_sdk_nor_the_runtime() -> None:
    loaded = run(
        "import sys; from langchain_cursor import ChatCursor; ChatCursor(); print(*sys.modules)"
    ).split()
    for name in ("cursor_sdk", "jsonschema", "langchain_cursor.runtime"):
        assert name not in loaded


@pytest.mark.clause("PACKAGE-2")
def test_importing_the_package_alone_imports_nothing_else() -> None:
    loaded = run("import sys; import langchain_cursor; print(*sys.modules)").split()
    assert "langchain_core" not in loaded


@pytest.mark.clause("PACKAGE-4")
def test_the_wheel_holds_both_packages_the_extension_and_the_type_marks(wheel: Path) -> None:
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


@pytest.mark.clause("PACKAGE-4")
def test_the_sdist_holds_what_its_tests_need(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = [path for path in ROOT.iterdir() if path.suffix in (".py", ".toml", ".md")]
    for folder in ("tests", "spec", "cassettes", "examples", "benchmarks", "fakes"):
        wanted += [path for path in (ROOT / folder).rglob("*.*") if path.is_file()]
    assert {
        path.relative_to(ROOT).as_posix() for path in wanted if "__pycache__" not in path.parts
    } <= names


# What is not on the page: where the package and the plugin came from.
CHECK = """

def test_all_of_it_comes_from_the_wheel(pytestconfig):
    import importlib.metadata
    import sys

    import langchain_cursor_fakes

    for module in (sys.modules["langchain_cursor"], langchain_cursor_fakes):
        assert module.__file__.startswith(sys.prefix)
    installed = importlib.metadata.distribution("langchain-cursor")
    assert str(installed.locate_file("")).startswith(sys.prefix)
    assert [point.name for point in installed.entry_points.select(group="pytest11")] == [
        "langchain_cursor"
    ]
    plugin = pytestconfig.pluginmanager.get_plugin("langchain_cursor")
    assert plugin.__file__.startswith(sys.prefix)
"""


@pytest.mark.clause("PACKAGE-4")
@pytest.mark.clause("FAKE-14")
def test_a_test_written_after_the_page_passes_in_a_new_project(wheel: Path, tmp_path: Path) -> None:
    python, project = install(wheel, tmp_path / "environment"), tmp_path / "project"
    page = (ROOT / "spec" / "fake_cursor.md").read_text(encoding="utf-8")
    first_steps, _, _ = page.partition("## A LangGraph agent under test")
    examples = re.findall(r"^```python\n(.*?)^```$", first_steps, re.MULTILINE | re.DOTALL)
    project.mkdir()
    (project / "test_app.py").write_text("\n".join([*examples, CHECK]), encoding="utf-8")

    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env={"PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.clause("PACKAGE-5")
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


@pytest.mark.clause("PACKAGE-8")
def test_each_requirement_has_one_lower_bound() -> None:
    pins = lower_bounds(["a>=1.2,!=1.3,<2", 'b>=3; extra == "cli"', 'c; extra == "test"'])
    assert pins == ["a==1.2", "b==3"]
    for wrong in ("a", "a<2", "a>=1,>=2"):
        with pytest.raises(ValueError, match="lower bounds"):
            lower_bounds([wrong])
    named = {pin.partition("==")[0] for pin in lower_bounds(requires("langchain-cursor") or [])}
    assert {"cursor-sdk", "langchain-core", "httpx", "typer"} <= named
