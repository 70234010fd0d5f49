"""One call, against the bare SDK on the same instant cloud.

Bare is what the SDK itself offers for one answer: create an agent, send, wait, close, on a bridge
of its own with the default store, where another open agent keeps the executor warm. ChatCursor
closes its agents behind the caller's back: so each side makes five calls in a row, where it waits
for what its own calls have left to do, and then leaves the other one a quiet machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.account import chat
from benchmarks.bare import Bare
from benchmarks.cloud import serve
from benchmarks.measure import Ratio, compare_seconds, timed
from benchmarks.surroundings import event_loop, neutral

_ROW = 5
# Seconds before each row: what the other one's last call has left to do is done by then.
_PAUSE = 0.1


def run() -> list[Ratio]:
    """Answers of 10 and 1,000 deltas through `invoke` and `ainvoke`, and one of 4,000."""
    return list(_compared())


def _compared() -> Iterator[Ratio]:
    with (
        neutral() as home,
        event_loop() as loop,
        serve() as cloud,
        Bare(cloud.url, home) as bare,
        bare.async_client(loop) as client,
        chat(cloud.url) as llm,
    ):

        def invoke(n: int) -> None:
            _check(llm.invoke(f"count to {n}").text, n)

        def ainvoke(n: int) -> None:
            _check(loop.run_until_complete(llm.ainvoke(f"count to {n}")).text, n)

        def ask(n: int) -> None:
            _check(bare.ask(f"count to {n}"), n)

        async def answer(n: int) -> str:
            async with bare.arun(client, f"count to {n}") as run:
                text: str = (await run.wait()).result
                return text

        def aask(n: int) -> None:
            _check(loop.run_until_complete(answer(n)), n)

        bare.begin("say: warm")
        for n, pairs in ((10, 20), (1000, 6)):
            for ours, theirs in ((invoke, ask), (ainvoke, aask)):
                yield compare_seconds(
                    f"{ours.__name__}, {n} deltas, against the bare SDK",
                    _of_a_row(ours, n),
                    _of_a_row(theirs, n),
                    limit=0.9,
                    pairs=pairs,
                    pause=_PAUSE,
                )
        yield compare_seconds(
            "invoke, 4,000 deltas, against invoke, 1,000 deltas",
            timed(lambda: invoke(4000)),
            timed(lambda: invoke(1000)),
            limit=5.0,
            pairs=7,
            pause=_PAUSE,
        )


def _of_a_row(call: Callable[[int], None], n: int) -> Callable[[], float]:
    def row() -> None:
        for _ in range(_ROW):
            call(n)

    seconds = timed(row)
    return lambda: seconds() / _ROW


def _check(text: str, n: int) -> None:
    if len(text.split()) != n:
        raise AssertionError(f"{len(text.split())} numbers instead of {n}: {text[:80]!r}")
