"""Answer a Ray dataset of questions, each actor with a `ChatCursor` of its own.

An actor makes its model once, when it starts: one bridge and one warm executor for all the batches
that it gets. Within a batch the questions are asked at the same time. On a cluster every node needs
`langchain-cursor` and `CURSOR_API_KEY`. Needs `pip install 'langchain-cursor[ray]'`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray
import ray.data
from account import account

from langchain_cursor import ChatCursor

ACTORS = 2


class Answers:
    """What an actor keeps from batch to batch."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        self.llm = ChatCursor(**arguments)
        self.llm.prewarm()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the answers to a batch of questions, and who gave them."""
        answers = [message.text for message in self.llm.batch(list(batch["question"]))]
        return {**batch, "answer": answers, "worker": [os.getpid()] * len(answers)}


def main() -> None:
    """Ask eight questions in two actors."""
    questions = [{"question": f"In one word: what is {n} times {n}?"} for n in range(1, 9)]
    with account() as arguments:
        answered = ray.data.from_items(questions).map_batches(
            Answers,
            fn_constructor_args=(arguments,),
            batch_size=2,
            compute=ray.data.ActorPoolStrategy(size=ACTORS),
        )
        for row in answered.take_all():  # in any order
            print(f"{row['question']} (worker {row['worker']}) {row['answer']}")
        ray.shutdown()


if __name__ == "__main__":
    main()
