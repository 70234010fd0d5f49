"""The cache directory, and whether it can be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from langchain_cursor.cache import cache_directory, is_private, private_directory


@pytest.mark.clause("BRIDGE-10")
def test_the_place_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LANGCHAIN_CURSOR_CACHE_DIR", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"


@pytest.mark.clause("BRIDGE-10")
def test_else_it_is_the_platforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LANGCHAIN_CURSOR_CACHE_DIR")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "langchain-cursor"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "langchain-cursor"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_directory() == tmp_path / "Library" / "Caches" / "langchain-cursor"


@pytest.mark.clause("BRIDGE-10")
def test_without_a_home_nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("LANGCHAIN_CURSOR_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert cache_directory() is None
    assert private_directory("node") is None


@pytest.mark.clause("BRIDGE-10")
def test_a_directory_is_made_for_us_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LANGCHAIN_CURSOR_CACHE_DIR", str(tmp_path / "a" / "b"))
    made = private_directory("node")
    assert made == tmp_path / "a" / "b" / "node"
    assert made.stat().st_mode & 0o777 == 0o700
    assert private_directory("node") == made


@pytest.mark.clause("BRIDGE-10")
@pytest.mark.clause("SECURITY-13")
def test_where_others_could_write_nothing_is_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LANGCHAIN_CURSOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    assert private_directory("shared") is None
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    assert private_directory("link") is None
    (tmp_path / "file").write_text("")
    assert private_directory("file") is None
    assert not is_private(tmp_path / "missing")
