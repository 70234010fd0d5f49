"""The suite itself: which behaviour runs on which backends, and what an account is told."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from langchain_cursor_fakes import CursorCloud, ReceivedRun, Reply, answer
from tests.behaviour.backends import NAMES, backends
from tests.behaviour.cassettes import load
from tests.behaviour.collected import Collected
from tests.conftest import API_KEY, ROOT, plain_environment

BECAUSE = "it is so"


@pytest.mark.clause("BEHAVIOUR-1")
def test_a_behaviour_runs_on_every_backend_with_its_mark(collected: Collected) -> None:
    test = "tests/behaviour/test_calls.py::test_invoke_answers"
    found = {one.id: one.backend for one in collected if one.id.startswith(test)}
    assert found == {f"{test}[{name}]": name for name in NAMES}


@pytest.mark.clause("BEHAVIOUR-1")
def test_every_behaviour_runs_on_the_fake_and_on_the_bridge(collected: Collected) -> None:
    on = defaultdict(set)
    for one in collected:
        if match := re.fullmatch(rf"(.*)\[({'|'.join(NAMES)})(-.*)?\]", one.id):
            assert one.backend == match[2]
            on[match[1] + (match[3] or "")].add(one.backend)
    assert len(on) > 50
    assert [test for test, names in on.items() if not names >= {"fake", "bridge"}] == []


@pytest.mark.clause("BEHAVIOUR-2")
def test_an_exception_names_backends_and_gives_a_reason() -> None:
    marked = backends("fake", "bridge", because=BECAUSE)
    assert (marked.args, marked.kwargs) == (("fake", "bridge"), {"because": BECAUSE})
    for names, because in ((("fake",), ""), (("fak",), BECAUSE), (NAMES, BECAUSE)):
        with pytest.raises(ValueError, match="with a reason"):
            backends(*names, because=because)


# --- The live account -----------------------------------------------------------------------------


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def live(tmp_path: Path) -> Run:
    """Runs the suite as a user with an account would; the account is a stand-in's."""

    def run(*flags: str, where: str = "tests/behaviour", **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", where, "-p", "no:cacheprovider", *flags],
            cwd=ROOT,
            env={**plain_environment(), **environment, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def _speak(run: ReceivedRun) -> Reply:
    """Answer as a model does that nobody has scripted: rightly, in words of its own."""
    said = f"{run.system_prompt}\n{run.text}"
    if word := re.search(r"code word is (\w+)\.", said):
        return f"The code word is {word[1].upper()}."
    if "'colour'" in said:
        return 'Certainly: {"colour": "Blue"}'
    if "<contract>" in said:
        return answer(run)
    return f"Sure! {run.text.rpartition('say: ')[2].partition('<')[0]}"


@pytest.fixture
def account() -> Iterator[CursorCloud]:
    with CursorCloud(_speak) as cloud:
        yield cloud


def using(account: CursorCloud) -> dict[str, str]:
    """The environment of the account's owner."""
    return {"CURSOR_API_KEY": API_KEY, "CURSOR_BACKEND_URL": account.url}


@pytest.mark.bridge
@pytest.mark.clause("BEHAVIOUR-3")
@pytest.mark.clause("BEHAVIOUR-4")
def test_behaviours_hold_on_an_account(
    live: Run, account: CursorCloud, collected: Collected
) -> None:
    status, out = live("--live", "-m", "live", **using(account))
    assert status == 0, out
    tests = [one for one in collected if one.backend == "live"]
    announced = re.search(r"^live: (\d+) tests will make up to (\d+) runs, retries", out, re.M)
    assert announced, out
    assert int(announced[1]) == len(tests)
    assert out.index(announced[0]) < out.index("tests/behaviour/test_calls.py .")
    held = re.search(r"^(\d+) of (\d+) held, in (\d+) runs$", out, re.M)
    assert held, out
    assert (int(held[1]), int(held[2])) == (len(tests), len(tests))
    assert int(held[3]) == len(account.runs) <= int(announced[2])
    assert re.search(r"^held +1 runs  .*test_calls.py::test_invoke_answers\[live\]$", out, re.M)
    assert API_KEY not in out


@pytest.mark.bridge
@pytest.mark.clause("BEHAVIOUR-4")
def test_what_does_not_hold_is_told(live: Run, account: CursorCloud) -> None:
    account.brain = lambda run: "No."
    only = ["-k", "test_invoke_answers", "--showlocals"]
    status, out = live("--live", "-m", "live", *only, **using(account))
    assert status == 1
    assert re.search(r"^FAILED +1 runs  .*test_invoke_answers\[live\]$", out, re.M)
    assert "0 of 1 held, in 1 runs" in out
    assert API_KEY not in out


@pytest.mark.clause("BEHAVIOUR-3")
def test_without_a_key_they_are_skipped_with_one_sentence(live: Run, collected: Collected) -> None:
    status, out = live("--live", "-m", "live")
    assert status == 0, out
    count = sum(one.backend == "live" for one in collected)
    assert f"{count} skipped" in out
    assert "a live test needs a Cursor account: set CURSOR_API_KEY to its key" in out
    assert "will make" not in out


@pytest.mark.clause("BEHAVIOUR-3")
@pytest.mark.parametrize("asked", [{}, {"--live": True}, {"--record-mode": "rewrite"}])
def test_an_account_and_a_recording_have_one_process(
    pytestconfig: pytest.Config, asked: dict[str, object]
) -> None:
    plugin = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert plugin is not None
    config = SimpleNamespace(
        args_source=pytest.Config.ArgsSource.TESTPATHS,
        getoption=asked.get,
        option=SimpleNamespace(numprocesses=None, dist="no"),
        pluginmanager=SimpleNamespace(hasplugin=lambda name: name == "xdist"),
    )
    plugin.pytest_cmdline_main(config)
    assert vars(config.option) == (
        {"numprocesses": None, "dist": "no"}
        if asked
        else {"numprocesses": "auto", "dist": "loadfile"}
    )
    config.option.numprocesses = 2
    if not asked:
        plugin.pytest_configure(config)
    else:
        with pytest.raises(pytest.UsageError, match="in one process: leave out -n"):
            plugin.pytest_configure(config)


@pytest.mark.clause("BEHAVIOUR-3")
def test_unasked_they_do_not_run(live: Run) -> None:
    part = "tests/behaviour/test_calls.py"
    status, out = live("-m", "live", where=part, CURSOR_API_KEY=API_KEY)
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED, out
    assert "will make" not in out


@pytest.mark.bridge
@pytest.mark.clause("CASSETTE-8")
def test_cassettes_can_be_recorded_from_an_account(
    live: Run, account: CursorCloud, tmp_path: Path
) -> None:
    where = ["-m", "cassette", "--cassettes", str(tmp_path), "-k", "answers or wrong_value"]
    status, out = live("--live", "--record-mode=rewrite", *where, **using(account))
    assert status == 0, out
    assert "live: 2 tests will make up to 2 runs, retries apart, on the account" in out
    assert "not recorded anew: an account cannot be told what to answer" in out
    recorded = sorted(tmp_path.rglob("*.yaml"))
    assert [path.name for path in recorded] == ["ainvoke_answers.yaml", "invoke_answers.yaml"]
    header, exchanges = load(recorded[0].read_text(encoding="utf-8"))
    assert header.cloud == "account"
    assert "Sure! pong" in str(exchanges)
    assert API_KEY not in "".join(path.read_text(encoding="utf-8") for path in recorded)
    where[-1] = "answers and invoke"
    status, out = live(*where)
    assert status == 0, out
    assert "2 passed" in out
    account.brain = lambda run: "No."
    before = [path.read_bytes() for path in recorded]
    status, out = live("--live", "--record-mode=rewrite", *where, **using(account))
    assert "2 failed" in out
    # What has gone wrong replaces no good cassette.
    assert [path.read_bytes() for path in recorded] == before
    assert sorted(tmp_path.rglob("*.*")) == recorded
