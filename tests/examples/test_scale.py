"""The examples that run `ChatCursor` in several workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from langchain_cursor_fakes import CursorCloud
from tests.conftest import ROOT, Scripts, until

pytestmark = pytest.mark.bridge

EXAMPLES = ROOT / "examples"
LINE = re.compile(r"(In one word: what is (\d) times \2\?) \(worker (\d+)\) (.*)")


def workers_of(out: str) -> Counter[str]:
    """Which worker gave how many of the eight answers, all of which are right."""
    lines = [match for line in out.splitlines() if (match := LINE.fullmatch(line))]
    assert sorted(match[2] for match in lines) == list("12345678")
    for match in lines:
        assert match[4] == f"Hello from Cursor. You said: {match[1]}"
    return Counter(match[3] for match in lines)


def is_warm_for_all(cloud: CursorCloud, workers: int) -> bool:
    """Whether each worker has built one executor, and none of them a second one."""
    cloud.wait_for(lambda c: c.executor_builds >= workers)
    return cloud.executor_builds == workers and len(cloud.runs) == 8


@pytest.mark.clause("SCALE-1")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_a_process_pool_has_one_bridge_and_one_build_a_worker(
    scripts: Scripts, cloud: CursorCloud
) -> None:
    ran = scripts.run(
        f"""
        import sys
        sys.path.insert(0, {str(EXAMPLES)!r})
        import process_pool
        process_pool.main()
        """
    )
    assert (ran.err, ran.status) == ("", 0)
    assert len(workers_of(ran.out)) <= 2
    assert is_warm_for_all(cloud, workers=2)
    assert ran.processes() == {}
    assert ran.files() == []


@pytest.mark.clause("SCALE-3")
def test_an_example_without_a_key_asks_the_stand_in(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "process_pool.py")],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert "There is no key" in done.stdout.splitlines()[0]
    assert workers_of(done.stdout)
    assert list(temporary.iterdir()) == []


@pytest.fixture
def ray_directory() -> Iterator[str]:
    # Ray puts sockets there, and their names must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:
        yield directory


@pytest.mark.ray
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: `make test-ray`")
@pytest.mark.clause("SCALE-2")
@pytest.mark.since("cursor-sdk", "1.0.40", because="the bridge tells when it builds an executor")
def test_ray_has_one_bridge_and_one_build_an_actor(
    scripts: Scripts, cloud: CursorCloud, ray_directory: str
) -> None:
    ran = scripts.run(
        f"""
        import runpy
        import sys
        import ray
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            _temp_dir={ray_directory!r},
        )
        sys.path.insert(0, {str(EXAMPLES)!r})
        # As the main module, whose classes Ray sends to its actors.
        runpy.run_path({str(EXAMPLES / "ray_batches.py")!r}, run_name="__main__")
        """,
        *("-W", "default"),  # Ray's own warnings
        timeout=150,
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # else it serves on more than the loopback address
    )
    assert ran.status == 0, ran.err
    assert len(workers_of(ran.out)) <= 2
    assert is_warm_for_all(cloud, workers=2)
    # What Ray starts it ends in the background.
    assert until(lambda: ran.processes() == {}, 20), ran.processes()
    assert until(lambda: ran.files() == []), ran.files()
