"""The scratch directory: one temporary root for all that a runtime and its bridges write.

A root is in use as long as its lock file is locked; process ids repeat and prove nothing. A
process that was killed leaves its root behind, and the next start removes it.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path

PREFIX = "langchain-cursor-"
_LOCK = "lock"
# A root without a lock file is being made just now, or somebody else's; old ones are neither.
_GRACE = 3600.0


class Scratch:
    """A temporary root (mode 0700) that exists until `remove` is called.

    Example:
        >>> scratch = Scratch()
        >>> sorted(path.name for path in scratch.root.iterdir())
        ['home', 'lock', 'state', 'tmp', 'workspace']
        >>> scratch.remove()
        >>> scratch.root.exists()
        False
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.root, self._lock = _locked_root()
        for name in ("workspace", "home", "state", "tmp"):
            (self.root / name).mkdir(mode=0o700)

    @property
    def workspace(self) -> Path:
        """The empty directory that agents work in."""
        return self.root / "workspace"

    def clean(self) -> None:
        """Empty what an ended bridge has left: its home, state and temporary files."""
        for name in ("home", "state", "tmp"):
            shutil.rmtree(self.root / name, ignore_errors=True)
            (self.root / name).mkdir(mode=0o700, exist_ok=True)

    def remove(self) -> None:
        """Delete the root, unless it belongs to the process that this one was forked from."""
        if self.owner != os.getpid():
            return
        if sys.platform == "win32":
            self.let_go()  # a file that is open cannot be deleted there
        shutil.rmtree(self.root, ignore_errors=True)
        self.let_go()

    def let_go(self) -> None:
        """Close the lock file. In a forked child the parent's lock stays."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def sweep(directory: str | None = None) -> list[Path]:
    """Remove the roots that killed processes have left.

    Args:
        directory: Where to look; the system's temporary directory by default.

    Returns:
        What was removed. Roots of other users, and any that is in use, stay.
    """
    removed: list[Path] = []
    try:
        entries = list(os.scandir(directory or tempfile.gettempdir()))
    except OSError:
        return removed
    for entry in entries:
        root = Path(entry.path)
        if entry.name.startswith(PREFIX) and _is_ours(entry) and _remove_if_stale(root):
            removed.append(root)
    return removed


def _locked_root() -> tuple[Path, int]:
    while True:
        root = Path(tempfile.mkdtemp(prefix=PREFIX))  # mode 0700, a name nobody could guess
        lock = os.open(root / _LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        if _try_lock(lock):
            return root, lock
        # A sweep came between the two lines above, and deletes the root.
        os.close(lock)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and (sys.platform == "win32" or info.st_uid == os.getuid())


def _remove_if_stale(root: Path) -> bool:
    try:
        lock = os.open(root / _LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return _is_old(root) and _remove(root)
    except OSError:
        return False
    stale = _try_lock(lock)
    if sys.platform == "win32":
        os.close(lock)  # a file that is open cannot be deleted there
        return stale and _remove(root)
    try:
        # Held until the root is gone: its maker may be about to lock it.
        return stale and _remove(root)
    finally:
        os.close(lock)


def _is_old(root: Path) -> bool:
    try:
        return time.time() - root.stat().st_mtime > _GRACE
    except OSError:
        return False


def _remove(root: Path) -> bool:
    shutil.rmtree(root, ignore_errors=True)
    return not root.exists()


def _try_lock(lock: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            # flock, not lockf: it belongs to the open file, so it survives a fork and is not
            # lost when some other descriptor of the file is closed.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
