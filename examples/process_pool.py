"""Answer many questions in several processes, each with a `ChatCursor` of its own.

A worker makes its model once, when it starts: one bridge and one warm executor for all the
questions that it gets. This pays where one process is not enough, as when your own code between
the calls needs the processor; for waiting alone, `llm.batch` in one process does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from account import account

from langchain_cursor import ChatCursor

WORKERS = 2


def start_worker(arguments: Mapping[str, str]) -> None:
    """Make the model of this worker, and have it warm before the first question."""
    global llm
    llm = ChatCursor(**arguments)
    llm.prewarm()


def ask(question: str) -> tuple[int, str]:
    """Ask in this worker: its process id and the answer."""
    return os.getpid(), llm.invoke(question).text


def ask_all(questions: Sequence[str], arguments: Mapping[str, str]) -> list[tuple[int, str]]:
    """Ask all questions, each in whichever worker is free; the answers in their order."""
    with ProcessPoolExecutor(
        WORKERS,
        mp_context=get_context("spawn"),  # a fork would copy locks that a thread of ours holds
        initializer=start_worker,
        initargs=(arguments,),
    ) as pool:
        return list(pool.map(ask, questions))


def main() -> None:
    """Ask eight questions in two workers."""
    questions = [f"In one word: what is {n} times {n}?" for n in range(1, 9)]
    with account() as arguments:
        answers = ask_all(questions, arguments)
    for question, (worker, answer) in zip(questions, answers, strict=True):
        print(f"{question} (worker {worker}) {answer}")


if __name__ == "__main__":
    main()
