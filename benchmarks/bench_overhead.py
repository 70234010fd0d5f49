"""One call, against the bare SDK on the same instant cloud.

Bare is what the SDK itself offers for one answer: create an agent, send, wait, close, on a bridge
of its own with the default store, where another open agent keeps the executor warm.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.bare import KEY, MODEL, Bare
from benchmarks.cloud import serve
from benchmarks.measure import Ratio, compare
from benchmarks.surroundings import event_loop, neutral
from langchain_cursor import ChatCursor


def run() -> Iterator[Ratio]:
    """Answers of 10 and 1,000 deltas through `invoke` and `ainvoke`, and one of 4,000."""
    with (
        neutral() as home,
        event_loop() as loop,
        serve() as cloud,
        Bare(cloud.url, home) as bare,
        bare.async_client(loop) as client,
        ChatCursor(model=MODEL, api_key=KEY, base_url=cloud.url) as llm,
    ):

        def invoke(n: int) -> None:
            _check(llm.invoke(f"count to {n}").text, n)

        def ainvoke(n: int) -> None:
            _check(loop.run_until_complete(llm.ainvoke(f"count to {n}")).text, n)

        def ask(n: int) -> None:
            _check(bare.ask(f"count to {n}"), n)

        async def aask(n: int) -> None:
            async with bare.arun(client, f"count to {n}") as run:
                _check((await run.wait()).result, n)

        def alone(n: int) -> None:
            loop.run_until_complete(aask(n))

        bare.begin("say: warm")
        for n, pairs in ((10, 40), (1000, 10)):
            for ours, theirs in ((invoke, ask), (ainvoke, alone)):
                yield compare(
                    f"{ours.__name__}, {n} deltas, against the bare SDK",
                    partial(ours, n),
                    partial(theirs, n),
                    limit=0.9,
                    pairs=pairs,
                )
        yield compare(
            "invoke, 4,000 deltas, against invoke, 1,000 deltas",
            partial(invoke, 4000),
            partial(invoke, 1000),
            limit=5.0,
            pairs=7,
        )


def _check(text: str, n: int) -> None:
    if len(text.split()) != n:
        raise AssertionError(f"{len(text.split())} numbers instead of {n}: {text[:80]!r}")
