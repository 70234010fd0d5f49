"""A scratch root goes with its process, however that ends, and nothing else is ever deleted."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langchain_cursor import scratch as module
from langchain_cursor.errors import CursorStartupError
from langchain_cursor.scratch import PREFIX, Scratch, sweep

REPOSITORY = Path(module.__file__).resolve().parent.parent
LOCK = "langchain-cursor.lock"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the test's own."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    made = Scratch()
    yield made
    made.remove()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def make_dead(directory: Path, name: str = "aaaaaaaa") -> Path:
    """What a killed process leaves."""
    root = directory / f"{PREFIX}{name}"
    for part in ("workspace", "home", "state", "tmp"):
        (root / part).mkdir(parents=True)
    (root / "state" / "token").write_text("secret")
    (root / LOCK).touch()
    return root


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def start(code: str, directory: Path) -> subprocess.Popen[str]:
    """Run a script that has its own temporary directory."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "TMPDIR": str(directory), "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def holder(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds a root until its stdin ends."""
    process = start(
        """
        import sys
        from langchain_cursor.scratch import Scratch
        scratch = Scratch()
        print(scratch.root, flush=True)
        sys.stdin.read()
        """,
        temporary,
    )
    with process:
        yield process
        process.kill()


# --- making and removing ---


@pytest.mark.clause("SCRATCH-1")
@pytest.mark.clause("SECURITY-13")
def test_a_root_is_for_its_owner_alone(scratch: Scratch, temporary: Path) -> None:
    assert scratch.root.parent == temporary
    assert scratch.root.name.startswith(PREFIX)
    for path in (scratch.root, *(path for path in scratch.root.iterdir() if path.is_dir())):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((scratch.root / LOCK).stat().st_mode) == 0o600


@pytest.mark.clause("SCRATCH-1")
@pytest.mark.clause("SECURITY-13")
def test_a_liberal_umask_opens_nothing(temporary: Path) -> None:
    old = os.umask(0)
    try:
        scratch = Scratch()
    finally:
        os.umask(old)
    assert stat.S_IMODE(scratch.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(scratch.workspace.stat().st_mode) == 0o700
    scratch.remove()


@pytest.mark.clause("SCRATCH-1")
def test_the_workspace_is_empty_and_absolute(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    assert names(scratch.workspace) == []
    monkeypatch.chdir(temporary.parent)
    monkeypatch.setattr(tempfile, "tempdir", "tmp")
    relative = Scratch()
    assert relative.workspace.is_absolute()
    relative.remove()


@pytest.mark.clause("SCRATCH-2")
def test_removing_leaves_no_file_and_no_descriptor(temporary: Path) -> None:
    before = open_files()
    scratch = Scratch()
    (scratch.root / "state" / "deep" / "er").mkdir(parents=True)
    (scratch.root / "state" / "deep" / "file").write_text("x")
    (scratch.root / "link").symlink_to(temporary.parent)
    (scratch.root / "file").touch()
    scratch.remove()
    assert names(temporary) == []
    assert temporary.parent.exists()
    assert open_files() == before


@pytest.mark.clause("SCRATCH-2")
def test_removing_twice_does_nothing_more(temporary: Path) -> None:
    scratch = Scratch()
    scratch.remove()
    other = os.open(temporary, os.O_RDONLY)  # takes the number of the closed descriptor
    scratch.remove()
    scratch.let_go()
    os.close(other)  # it was not closed by those


@pytest.mark.clause("SCRATCH-3")
def test_cleaning_empties_all_but_the_workspace(scratch: Scratch) -> None:
    for name in ("home", "state", "tmp", "workspace"):
        (scratch.root / name / "file").touch()
    root = scratch.root
    scratch.clean()
    assert scratch.root == root
    assert names(root) == ["home", LOCK, "state", "tmp", "workspace"]
    assert [names(root / name) for name in ("home", "state", "tmp")] == [[], [], []]
    assert names(scratch.workspace) == ["file"]
    assert sweep() == []


@pytest.mark.clause("SCRATCH-3")
@pytest.mark.parametrize("left", ["nothing", "all but the lock"])
def test_cleaning_makes_a_root_anew_that_somebody_deleted(left: str, temporary: Path) -> None:
    before = open_files()
    scratch = Scratch()
    first = scratch.root
    (first / LOCK).unlink()
    if left == "nothing":
        module._remove(first)
    scratch.clean()
    assert names(temporary) == [scratch.root.name]
    assert scratch.root != first
    assert names(scratch.root) == ["home", LOCK, "state", "tmp", "workspace"]
    assert sweep() == []  # it is locked
    scratch.remove()
    assert open_files() == before


# --- temporary directories that do not serve ---


@pytest.mark.clause("SCRATCH-4")
def test_a_missing_temporary_directory_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "none"))
    with pytest.raises(CursorStartupError) as caught:
        Scratch()
    message = str(caught.value)
    assert f"cannot make a temporary directory in {temporary / 'none'}: No such file" in message
    assert "TMPDIR" in message
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.clause("SCRATCH-4")
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_a_directory_that_cannot_be_written_to_is_named_with_the_reason(
    number: int, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    def refuse(path: Any, mode: int = 0o777) -> None:
        raise OSError(number, os.strerror(number), path)

    before = open_files()
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(CursorStartupError) as caught:
        Scratch()
    assert f"{temporary}: {os.strerror(number)}." in str(caught.value)
    assert "TMPDIR" in str(caught.value)
    assert open_files() == before


@pytest.mark.clause("SCRATCH-4")
def test_no_temporary_directory_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/a']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(CursorStartupError, match=r"No usable temporary directory.*TMPDIR"):
        Scratch()
    assert sweep() == []


@pytest.mark.clause("SCRATCH-4")
def test_a_disk_that_is_full_halfway_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    real = Path.mkdir

    def full(self: Path, *args: Any, **kwargs: Any) -> None:
        if self.name == "state":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, *args, **kwargs)

    before = open_files()
    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(CursorStartupError, match=f"{temporary}: No space left"):
        Scratch()
    assert names(temporary) == []
    assert open_files() == before


@pytest.mark.clause("SCRATCH-4")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_a_lock_file_that_cannot_be_made_leaves_nothing(
    number: int, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    real = os.open

    def refuse(path: Any, *args: Any, **kwargs: Any) -> int:
        if Path(os.fspath(path)).name == LOCK:
            raise OSError(number, os.strerror(number))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CursorStartupError, match=os.strerror(number)):
        Scratch()
    assert names(temporary) == []


@pytest.mark.clause("SCRATCH-4")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused_and_never_swept(
    number: int, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    def no_locks(lock: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    dead = make_dead(temporary)
    before = open_files()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(CursorStartupError, match=f"{temporary}: .*TMPDIR"):
        Scratch()
    assert sweep() == []
    assert names(temporary) == [dead.name]
    assert open_files() == before


# --- sweeping ---


@pytest.mark.clause("SCRATCH-5")
def test_the_root_of_a_living_process_stays(holder: subprocess.Popen[str]) -> None:
    root = Path(line_of(holder))
    age(root, 1e6)
    assert sweep() == []
    assert names(root) == ["home", LOCK, "state", "tmp", "workspace"]


@pytest.mark.clause("SCRATCH-5")
def test_the_root_of_a_killed_process_is_removed_at_once(
    holder: subprocess.Popen[str], temporary: Path
) -> None:
    root = Path(line_of(holder))
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert root.exists()
    assert sweep() == [root]
    assert names(temporary) == []


@pytest.mark.clause("SCRATCH-5")
def test_the_own_root_stays(scratch: Scratch) -> None:
    age(scratch.root, 1e6)
    assert sweep() == []
    assert scratch.workspace.exists()


@pytest.mark.clause("SCRATCH-5")
def test_another_directory_can_be_swept(tmp_path: Path, temporary: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    dead, here = make_dead(elsewhere), make_dead(temporary)
    assert sweep(str(elsewhere)) == [dead]
    assert here.exists()


@pytest.mark.clause("SCRATCH-5")
def test_a_directory_that_does_not_exist_is_swept_in_vain(tmp_path: Path) -> None:
    assert sweep(str(tmp_path / "none")) == []


@pytest.mark.clause("SCRATCH-6")
def test_a_root_of_another_user_is_never_touched(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    dead = make_dead(temporary)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert sweep() == []
    assert (dead / "state" / "token").exists()


@pytest.mark.clause("SCRATCH-6")
@pytest.mark.clause("SECURITY-13")
def test_links_and_files_that_are_named_like_a_root_are_never_touched(
    tmp_path: Path, temporary: Path
) -> None:
    target = make_dead(tmp_path)
    (temporary / f"{PREFIX}linklink").symlink_to(target)
    (temporary / f"{PREFIX}filefile").touch()
    os.mkfifo(temporary / f"{PREFIX}fifofifo")
    for path in temporary.iterdir():
        if not path.is_symlink():
            age(path, 1e6)
    age(target, 1e6)
    assert sweep() == []
    assert len(names(temporary)) == 3
    assert (target / "state" / "token").exists()


@pytest.mark.clause("SCRATCH-6")
@pytest.mark.parametrize(
    "name", ["main", "examples", "0.1.0", "benchmarks-old", "aaaaaaaaa", "AAAAAAAA"]
)
@pytest.mark.parametrize("file", ["README.md", "lock", "workspace"])
def test_an_old_directory_of_the_user_is_never_touched(
    name: str, file: str, temporary: Path
) -> None:
    # An unpacked archive of the project, say.
    mine = temporary / f"{PREFIX}{name}"
    mine.mkdir()
    (mine / file).write_text("precious")
    age(mine, 1e6)
    assert sweep() == []
    assert (mine / file).read_text() == "precious"


@pytest.mark.clause("SCRATCH-6")
def test_a_root_without_a_lock_file_is_removed_only_when_it_is_empty_and_old(
    temporary: Path,
) -> None:
    for name, seconds, content in (
        ("newempty", 3500, None),
        ("oldempty", 3700, None),
        ("oldfull_", 1e6, "home"),
    ):
        root = temporary / f"{PREFIX}{name}"
        root.mkdir()
        if content:
            (root / content).mkdir()
        age(root, seconds)
    assert [path.name for path in sweep()] == [f"{PREFIX}oldempty"]
    assert names(temporary) == [f"{PREFIX}newempty", f"{PREFIX}oldfull_"]


@pytest.mark.clause("SCRATCH-6")
@pytest.mark.parametrize("kind", ["directory", "link"])
def test_a_lock_that_is_no_file_protects_the_root(
    kind: str, tmp_path: Path, temporary: Path
) -> None:
    root = make_dead(temporary)
    (root / LOCK).unlink()
    if kind == "directory":
        (root / LOCK).mkdir()
    else:
        (root / LOCK).symlink_to(tmp_path / "target")
        (tmp_path / "target").touch()
    age(root, 1e6)
    assert sweep() == []
    assert (root / "state" / "token").exists()


@pytest.mark.clause("SCRATCH-5")
def test_what_cannot_be_deleted_is_tried_again_by_the_next_sweep(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    dead = make_dead(temporary)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
        assert sweep() == []
    assert (dead / LOCK).exists()
    assert sweep() == [dead]


@pytest.mark.clause("SCRATCH-5")
def test_sweeps_at_once_remove_each_root_once(temporary: Path) -> None:
    dead = {make_dead(temporary, f"dead{number:04}") for number in range(50)}
    barrier = threading.Barrier(8)
    found: list[list[Path]] = []

    def run() -> None:
        barrier.wait()
        found.append(sweep())

    before = open_files()
    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert sorted(root for roots in found for root in roots) == sorted(dead)
    assert names(temporary) == []
    assert open_files() == before


# --- races, by acting at the right moment ---


class Before:
    """Does something once, just before the next attempt to lock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
        self.real = module._try_lock
        self.act = act
        monkeypatch.setattr(module, "_try_lock", self)

    def __call__(self, lock: int) -> bool:
        act, self.act = self.act, None
        if act is not None:
            act()
        return self.real(lock)


@pytest.mark.clause("SCRATCH-7")
def test_a_sweep_that_has_come_and_gone_before_the_lock_is_noticed(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    before = open_files()
    swept: list[Path] = []
    Before(monkeypatch, lambda: swept.extend(sweep()))
    scratch = Scratch()
    assert len(swept) == 1
    assert scratch.root not in swept
    assert names(temporary) == [scratch.root.name]
    assert sweep() == []
    assert names(scratch.workspace) == []
    scratch.remove()
    assert open_files() == before


@pytest.mark.clause("SCRATCH-7")
def test_a_root_that_a_sweep_is_just_removing_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    taken: list[int] = []

    def lock_it() -> None:
        (root,) = temporary.iterdir()
        taken.append(os.open(root / LOCK, os.O_RDWR))
        fcntl.flock(taken[0], fcntl.LOCK_EX | fcntl.LOCK_NB)

    Before(monkeypatch, lock_it)
    scratch = Scratch()
    assert len(names(temporary)) == 2
    os.close(taken[0])
    assert [root == scratch.root for root in sweep()] == [False]
    scratch.remove()


@pytest.mark.clause("SCRATCH-7")
def test_a_root_that_is_swept_before_its_lock_file_is_made_is_made_again(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    real = os.open
    done: list[Any] = []

    def late(path: Any, *args: Any, **kwargs: Any) -> int:
        if Path(os.fspath(path)).name == LOCK and not done:
            done.append(path)
            Path(path).parent.rmdir()
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", late)
    scratch = Scratch()
    assert names(temporary) == [scratch.root.name]
    scratch.remove()


@pytest.mark.clause("SCRATCH-7")
def test_a_maker_that_locks_before_the_sweep_keeps_its_root(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    dead = make_dead(temporary)
    taken: list[int] = []

    def lock_it() -> None:
        taken.append(os.open(dead / LOCK, os.O_RDWR))
        fcntl.flock(taken[0], fcntl.LOCK_EX | fcntl.LOCK_NB)

    Before(monkeypatch, lock_it)
    assert sweep() == []
    assert (dead / "state" / "token").exists()
    os.close(taken[0])


@pytest.mark.clause("SCRATCH-7")
def test_a_sweep_that_comes_second_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    dead = make_dead(temporary)
    first: list[Path] = []
    Before(monkeypatch, lambda: first.extend(sweep()))
    assert sweep() == []
    assert first == [dead]


@pytest.mark.clause("SCRATCH-7")
def test_a_root_that_is_always_taken_ends_in_an_error(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setattr(module, "_try_lock", lambda lock: False)
    before = open_files()
    with pytest.raises(CursorStartupError, match=str(temporary)):
        Scratch()
    assert open_files() == before


# --- forks ---


def forked(code: str, temporary: Path) -> list[str]:
    """What a script prints that forks: `child()` runs in the child, `parent(child_pid)` beside."""
    process = start(
        """
        import os, signal, sys, time
        from langchain_cursor.scratch import Scratch, sweep
        scratch = Scratch()
        def say(*words):
            print(*words, flush=True)
        """
        + code,
        temporary,
    )
    out, _ = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGKILL)
    return out.splitlines()


@pytest.mark.clause("SCRATCH-8")
def test_a_forked_child_removes_nothing(temporary: Path) -> None:
    said = forked(
        """
        if os.fork() == 0:
            scratch.remove()
            say("child", scratch.workspace.exists())
            os._exit(0)
        os.wait()
        say("parent", scratch.workspace.exists(), sweep())
        scratch.remove()
        say("end", scratch.root.exists())
        """,
        temporary,
    )
    assert said == ["child True", "parent True []", "end False"]


@pytest.mark.clause("SCRATCH-8")
def test_a_forked_child_that_lets_go_leaves_the_parents_lock(temporary: Path) -> None:
    said = forked(
        """
        if os.fork() == 0:
            scratch.let_go()
            scratch.let_go()
            say("child", sweep())
            os._exit(0)
        os.wait()
        say("parent", sweep(), scratch.workspace.exists())
        scratch.remove()
        """,
        temporary,
    )
    assert said == ["child []", "parent [] True"]
    assert names(temporary) == []


@pytest.mark.clause("SCRATCH-8")
@pytest.mark.parametrize("lets_go", [True, False])
def test_a_killed_parents_root_is_swept_once_no_child_holds_the_lock(
    lets_go: bool, temporary: Path
) -> None:
    said = forked(
        f"""
        main = os.getpid()
        ready, go = os.pipe()
        if os.fork() == 0:
            if {lets_go}:
                scratch.let_go()
            os.kill(main, signal.SIGKILL)
            while os.getppid() == main:
                time.sleep(0.01)
            say(len(sweep()))
            os._exit(0)
        time.sleep(60)
        """,
        temporary,
    )
    assert said == ["1" if lets_go else "0"]
    assert len(sweep()) == (0 if lets_go else 1)


@pytest.mark.clause("SCRATCH-8")
def test_a_started_program_does_not_inherit_the_lock(temporary: Path) -> None:
    holder = start(
        """
        import os, subprocess, sys
        from langchain_cursor.scratch import Scratch
        scratch = Scratch()
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
        print(child.pid, scratch.root, flush=True)
        sys.stdin.read()
        """,
        temporary,
    )
    with holder:
        pid, root = line_of(holder).split()
        holder.kill()
        holder.wait()
        assert sweep() == [Path(root)]
        os.kill(int(pid), signal.SIGKILL)
