"""`make test-wheels`: the wheel and the sdist work where nothing else is, on each Python.

Each is installed into an environment of its own, and used there from outside the checkout. Types
are checked with pyright too, in the last of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
USERS = Path(__file__).resolve().parent
MINORS = range(10, 14)
_SECONDS = 300.0  # for each step
_PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
_UV = shutil.which("uv")
_PYRIGHT = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": True}


def run(*command: object, cwd: Path) -> str:
    """Run a command with an environment that says nothing of this checkout.

    Raises:
        SystemExit: It failed; the message is what it said.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CURSOR_", "PYTHON"))}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**kept, "TMPDIR": str(cwd)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def pythons() -> Iterator[tuple[str, Path]]:
    """The supported Pythons of this machine, in PATH or of pyenv: version and executable."""
    for minor in MINORS:
        name = f"3.{minor}"
        found = [shutil.which(f"python{name}"), *_PYENV.glob(f"versions/{name}.*/bin/python")]
        for python in filter(None, found):
            # pyenv's commands are there for versions that are not in use, and fail.
            code = "import sys, venv; print(*sys.version_info[:2], sep='.')"
            said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
            if said.stdout.strip() == name:
                yield name, Path(python)
                break
        else:
            print(f"Python {name}: not on this machine")


def environment(python: Path, directory: Path, *packages: object) -> Path:
    """Make a new environment with some packages, by uv where it is there, and return its Python."""
    inside = directory / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    make = [_UV, "venv", "--python", python] if _UV else [python, "-m", "venv"]
    run(*make, directory, cwd=directory.parent)
    install(inside, *packages)
    return inside


def install(inside: Path, *packages: object) -> None:
    """Install packages into an environment."""
    pip = [_UV, "pip", "install", "--python", inside] if _UV else [inside, "-m", "pip", "install"]
    run(*pip, *packages, cwd=inside.parent)


def check(python: Path, archive: Path, directory: Path) -> Path:
    """Install an archive alone and use it, then with pytest; return the environment's Python."""
    version = archive.name.removesuffix(".tar.gz").split("-")[1]
    inside = environment(python, directory / "environment", archive)
    for name in ("smoke.py", "typed.py"):
        shutil.copy(USERS / name, directory)
    run(inside, "-W", "error", "smoke.py", version, cwd=directory)
    install(inside, "pytest")
    if "fake_cursor" not in run(inside, "-m", "pytest", "--fixtures", "smoke.py", cwd=directory):
        raise SystemExit(f"{archive.name}: pytest does not find the fixture fake_cursor")
    return inside


def check_types(inside: Path, directory: Path) -> None:
    """Check the types of a user's program with pyright, which brings a Node of its own."""
    checker = environment(inside, directory / "pyright", "pyright[nodejs]")
    (directory / "pyrightconfig.json").write_text(json.dumps(_PYRIGHT), encoding="utf-8")
    run(checker, "-m", "pyright", "--pythonpath", inside, "typed.py", cwd=directory)


def main() -> None:
    """Check every archive on every Python, and print how long each took."""
    with tempfile.TemporaryDirectory(prefix="wheels-") as temporary:
        top = Path(temporary)
        run(sys.executable, "-m", "hatchling", "build", "-d", top / "dist", cwd=ROOT)
        inside, directory = None, top
        for name, python in pythons():
            for archive in sorted((top / "dist").iterdir(), reverse=True):
                started = time.monotonic()
                directory = Path(tempfile.mkdtemp(dir=top))
                inside = check(python, archive, directory)
                print(f"Python {name}: {archive.name} in {time.monotonic() - started:.0f} s")
        if inside is None:
            raise SystemExit("no supported Python on this machine")
        check_types(inside, directory)
        print("pyright: no complaint")


if __name__ == "__main__":
    main()
