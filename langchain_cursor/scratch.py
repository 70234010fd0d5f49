"""The scratch directory: one temporary root for all that a runtime and its bridges write.

A root is in use as long as its lock file is locked; process ids repeat and prove nothing. A
process that was killed leaves its root behind, and the next start removes it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path

from langchain_cursor.errors import CursorStartupError

PREFIX = "langchain-cursor-"
# Prefix and lock file together are the signature: a directory of somebody else has not both.
_NAME = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")  # what `tempfile.mkdtemp` makes
_LOCK = "langchain-cursor.lock"
_WRITTEN = ("home", "state", "tmp")
# An empty root without a lock file is being made just now, or was left by a process that was
# killed in that moment. Seconds after which it is the latter.
_GRACE = 3600.0
# Each attempt fails only if a sweep comes in the microseconds between making and locking a root.
_ATTEMPTS = 100


class Scratch:
    """A temporary root (mode 0700) that exists until `remove` is called.

    Raises:
        CursorStartupError: The temporary directory cannot be written to, or its file system has
            no locks.

    Example:
        >>> scratch = Scratch()
        >>> sorted(path.name for path in scratch.root.iterdir())
        ['home', 'langchain-cursor.lock', 'state', 'tmp', 'workspace']
        >>> scratch.remove()
        >>> scratch.root.exists()
        False
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.root, self._lock = _locked_root()
        self._make_directories()

    @property
    def workspace(self) -> Path:
        """The empty directory that agents work in."""
        return self.root / "workspace"

    def clean(self) -> None:
        """Empty what an ended bridge has left: its home, state and temporary files.

        Cleaners of the temporary directory may have deleted the root of a long-lived process;
        then it is made anew, under another name.

        Raises:
            CursorStartupError: As for a new one.
        """
        if not _is_lock_of(self._lock, self.root):
            self.remove()
            self.root, self._lock = _locked_root()
        for name in _WRITTEN:
            shutil.rmtree(self.root / name, ignore_errors=True)
        self._make_directories()

    def remove(self) -> None:
        """Delete the root, unless it belongs to the process that this one was forked from."""
        if self.owner != os.getpid():
            return
        if sys.platform == "win32":
            self.let_go()  # a file that is open cannot be deleted there
        _remove(self.root)
        self.let_go()

    def let_go(self) -> None:
        """Close the lock file. In a forked child the parent's lock stays."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _make_directories(self) -> None:
        try:
            for name in ("workspace", *_WRITTEN):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            self.remove()
            raise _refusal(f" in {self.root.parent}", error) from error


def sweep(directory: str | None = None) -> list[Path]:
    """Remove the roots that killed processes have left.

    Args:
        directory: Where to look; the system's temporary directory by default.

    Returns:
        What was removed. Roots of other users, and any that is in use, stay.
    """
    try:
        with os.scandir(directory or tempfile.gettempdir()) as entries:
            roots = [
                Path(entry.path)
                for entry in entries
                if _NAME.fullmatch(entry.name) and _is_ours(entry)
            ]
    except OSError:
        return []
    return [root for root in roots if _remove_if_stale(root)]


def _locked_root() -> tuple[Path, int]:
    where = ""
    try:
        directory = os.path.abspath(tempfile.gettempdir())
        where = f" in {directory}"
        for _ in range(_ATTEMPTS):
            # Mode 0700, a name that nobody could guess.
            root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=directory))
            lock = _new_lock(root)
            if lock is not None:
                return root, lock
        raise OSError(errno.EAGAIN, "other processes remove each one at once")
    except OSError as error:
        raise _refusal(where, error) from error


def _new_lock(root: Path) -> int | None:
    """Lock a new root; None if a sweep took it for a dead one, and deletes it."""
    try:
        lock = os.open(root / _LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileNotFoundError:
        return None
    except OSError:
        _remove_empty(root)
        raise
    try:
        # The sweep may have come and gone: then this locks a file that is deleted.
        if _try_lock(lock) and _is_lock_of(lock, root):
            return lock
    except OSError:
        os.close(lock)
        _remove(root)
        raise
    os.close(lock)
    return None


def _is_lock_of(lock: int, root: Path) -> bool:
    """Whether an open file is the lock file that stands in a root now."""
    try:
        return os.path.samestat(os.fstat(lock), os.lstat(root / _LOCK))
    except OSError:
        return False


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and (sys.platform == "win32" or info.st_uid == os.geteuid())


def _remove_if_stale(root: Path) -> bool:
    try:
        lock = os.open(root / _LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return _is_old(root) and _remove_empty(root)
    except OSError:
        return False
    try:
        stale = _try_lock(lock) and _is_lock_of(lock, root)
    except OSError:  # no locks here: nothing is known
        stale = False
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
    """Delete a root; what cannot be deleted keeps its lock file, for a later sweep."""
    try:
        for path in list(root.iterdir()):
            if path.name == _LOCK:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        if all(path.name == _LOCK for path in root.iterdir()):
            (root / _LOCK).unlink(missing_ok=True)
    except OSError:
        return False
    return _remove_empty(root)


def _remove_empty(root: Path) -> bool:
    try:
        root.rmdir()
    except OSError:
        return False
    return True


def _try_lock(lock: int) -> bool:
    """Lock an open file, unless somebody else has.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            # flock, not lockf: it belongs to the open file, so it survives a fork and is not
            # lost when some other descriptor of the file is closed.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise
    return True


def _refusal(where: str, error: OSError) -> CursorStartupError:
    return CursorStartupError(
        f"ChatCursor cannot make a temporary directory{where}: {error.strerror or error}. Make "
        "room or grant access there, or set the environment variable TMPDIR to another directory."
    )
