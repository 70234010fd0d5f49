"""Chat in the terminal: the answer comes as Cursor sends it. An empty line or Ctrl-D ends it.

Ctrl-C stops an answer, on Cursor's side too.
"""

from __future__ import annotations

from account import account
from langchain_core.messages import AIMessageChunk, AnyMessage, HumanMessage, SystemMessage

from langchain_cursor import ChatCursor, CursorError


def reply(llm: ChatCursor, history: list[AnyMessage]) -> AIMessageChunk:
    """Print an answer while it comes, and return it whole."""
    answer = AIMessageChunk("")
    for chunk in llm.stream(history):
        print(chunk.text, end="", flush=True)
        answer += chunk
    print()
    return answer


def chat(llm: ChatCursor) -> None:
    """Answer line by line, with all that was said before in mind."""
    history: list[AnyMessage] = [SystemMessage("You are a helpful assistant. Be brief.")]
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            line = ""
        if not line:
            return
        history.append(HumanMessage(line))
        try:
            history.append(reply(llm, history))
        except KeyboardInterrupt:
            print(" (stopped)")
            history.pop()
        except CursorError as error:
            print(f"\n{error}")
            history.pop()


def main() -> None:
    """Chat on your account, or with the stand-in."""
    # The bridge starts while you read and write.
    with account() as arguments, ChatCursor(**arguments, prewarm=True) as llm:
        chat(llm)


if __name__ == "__main__":
    main()
