"""The package's cache directory, and whether it can be trusted."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

_NAME = "langchain-cursor"


def cache_directory() -> Path | None:
    """Where the package keeps caches; the directory may not exist yet.

    Returns:
        `LANGCHAIN_CURSOR_CACHE_DIR` if that is set, else the platform's place: `XDG_CACHE_HOME` or
        ``~/.cache`` on Linux, ``~/Library/Caches`` on macOS, `LOCALAPPDATA` on Windows. None where
        there is no home: then nothing is cached.
    """
    own = os.environ.get("LANGCHAIN_CURSOR_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    try:
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA")
            base = Path(local) if local else Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            xdg = os.environ.get("XDG_CACHE_HOME", "")
            # A relative one is to be ignored, by the XDG specification.
            base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / _NAME


def private_directory(name: str) -> Path | None:
    """A subdirectory of the cache that nobody else can write to, made if need be.

    Args:
        name: The subdirectory's name.

    Returns:
        The directory, or None where there is none: it cannot be made, or somebody else could put
        files there, which the bridge would then run.
    """
    base = cache_directory()
    if base is None:
        return None
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        (base / name).mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return base / name if is_private(base) and is_private(base / name) else None


def is_private(path: Path) -> bool:
    """Whether a directory or file is no link, is ours, and can be written by nobody else."""
    try:
        info = path.lstat()
    except OSError:
        return False
    if stat.S_ISLNK(info.st_mode):
        return False
    if sys.platform == "win32":
        return True  # the user's own profile
    return info.st_uid == os.geteuid() and not info.st_mode & 0o022
