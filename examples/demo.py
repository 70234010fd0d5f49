"""Ask Cursor a question: on your account if there is a key, else on the offline stand-in."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

from langchain_cursor import ChatCursor, CursorAuthenticationError, CursorError
from langchain_cursor.credentials import resolve_api_key


def main() -> int:
    """Ask once on a cold bridge and once on a warm one, and say what it took."""
    started = time.perf_counter()
    with ExitStack() as stack:
        try:
            resolve_api_key(None)
        except CursorAuthenticationError as error:
            from langchain_cursor_fakes import CursorCloud

            print(f"{error}\n")
            cloud = stack.enter_context(CursorCloud())
            llm = ChatCursor(api_key="offline", base_url=cloud.url)
            print(f"Talking to: the offline stand-in at {cloud.url}, through the real Cursor SDK")
        else:
            llm = ChatCursor()
            print("Talking to: Cursor, on your account")
        stack.enter_context(llm)
        question = "In one sentence: what is a bridge?"
        print(f"Model:      {llm.model}\nQuestion:   {question}")
        try:
            answer = llm.invoke(question)
            cold = time.perf_counter() - started
            print(f"Answer:     {answer.text}\nUsage:      {answer.usage_metadata}")
            started = time.perf_counter()
            llm.invoke(question)
            warm = time.perf_counter() - started
        except CursorError as error:
            print(f"Failed:     {error}", file=sys.stderr)
            return 1
    print(f"Cold call:  {cold:.2f} s, from nothing: bridge, executor, answer")
    print(f"Warm call:  {warm:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
