"""The default brain: answers plain questions by fixed rules that a test can predict.

The *question* is the content of the last `<user>` block of the prompt, or the whole prompt where
there is no such block, without image placeholders. A block begins with its tag at the start of a
line. What the answer is:

| question | answer |
|---|---|
| a prompt with a contract, where `contract_brain` knows a reply | that reply |
| `say: TEXT` | TEXT |
| `think: TEXT` | TEXT as thinking, then TEXT |
| `count to N`, N from 1 to 100000 | `1 2 3 ... N`, one delta a number |
| `system?` | the native system prompt, else the `<system>` blocks of the prompt, else `none` |
| `model?` | the model's id |
| `fail: CODE MESSAGE` | the run fails with CODE and MESSAGE |
| anything else | `Hello from Cursor. You said: QUESTION` and, with images, ` I see N image(s).` |

A quoted question is put on one line and cut to 200 characters.

Texts come in one delta a word, each with the space after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .contract_brain import MISBEHAVIOURS, contract_reply
from .runs import Brain, Error, ReceivedRun, Step, Text, Thinking, ThinkingDone

Rule = Callable[[ReceivedRun, str], list[Step] | None]
"""From a run and its question to the answer; None where the rule does not apply."""

THINKING_MS = 100
"""How long the default brain says it thought, in milliseconds."""

_MAX_COUNT = 100_000
_MAX_QUOTED = 200

_IMAGE_PLACEHOLDER = re.compile(r"<image\b[^<>]*/>")
_WORD = re.compile(r"\S+\s*|\s+")
_SAY = re.compile(r"say:\s?(.*)", re.DOTALL)
_THINK = re.compile(r"think:\s?(.*)", re.DOTALL)
_COUNT = re.compile(r"count to (\d{1,6})")
_FAIL = re.compile(r"fail:\s*([a-z_]+)\s*(.*)", re.DOTALL)


def answer(run: ReceivedRun) -> list[Step]:
    r"""The default answer to a run, by the rules above.

    >>> answer(ReceivedRun("<user>\nsay: Good day\n</user>"))
    [Text(delta='Good '), Text(delta='day')]
    """
    question = find_question(run.text)
    for rule in _RULES:
        steps = rule(run, question)
        if steps is not None:
            return steps
    return _greet(run, question)


def find_question(prompt: str) -> str:
    r"""What the user asked last, without image placeholders and surrounding white space.

    >>> find_question("<user>\nHi\n</user>\n<assistant>\nHi.\n</assistant>")
    'Hi'
    """
    blocks = _find_blocks(prompt, "user")
    return _IMAGE_PLACEHOLDER.sub("", blocks[-1] if blocks else prompt).strip()


def split_words(text: str) -> list[Step]:
    """The text as one delta a word; joined, the deltas are the text.

    >>> split_words("one two")
    [Text(delta='one '), Text(delta='two')]
    """
    return [Text(word) for word in _WORD.findall(text)]


def _find_blocks(prompt: str, tag: str) -> list[str]:
    opening = re.compile(rf"^<{tag}(?:\s[^<>]*)?>", re.MULTILINE)
    blocks = []
    at = 0
    while match := opening.search(prompt, at):
        at = prompt.find(f"</{tag}>", match.end())
        if at < 0:
            at = len(prompt)
        blocks.append(prompt[match.end() : at].strip("\n"))
    return blocks


def misbehave(*kinds: str) -> Brain:
    r"""Make a brain that answers as the default one, but breaks the tool contract at first.

    Args:
        kinds: Names from `contract_brain.MISBEHAVIOURS`. The first reply of each agent is bad in
            the first way, its next one in the second, and so on; then they are good.

    Raises:
        ValueError: There is no such misbehaviour.

    Example:
        >>> from langchain_cursor.contract import Contract, ToolSpec
        >>> prompt = "<user>\nnow\n</user>\n" + Contract((ToolSpec("now"),)).render()
        >>> brain = misbehave("wrong_tool")
        >>> "".join(step.delta for step in brain(ReceivedRun(prompt, agent_id="a")))
        '{"tool_calls": [{"name": "no_such_now", "arguments": {}}]}'
        >>> "".join(step.delta for step in brain(ReceivedRun("Again!", agent_id="a", turn=2)))
        '{"tool_calls":[{"name":"now","arguments":{}}]}'
    """
    unknown = sorted(set(kinds) - set(MISBEHAVIOURS))
    if unknown:
        raise ValueError(f"There is no misbehaviour {unknown}. There are: {sorted(MISBEHAVIOURS)}.")
    good: dict[str, str] = {}  # by agent: a correction repeats neither the tools nor the question

    def brain(run: ReceivedRun) -> list[Step]:
        reply = contract_reply(run.text)
        if reply is not None:
            good[run.agent_id] = reply
        elif run.turn > 1:
            reply = good.get(run.agent_id)
        if reply is None:
            return answer(run)
        if run.turn <= len(kinds):
            reply = MISBEHAVIOURS[kinds[run.turn - 1]](reply)
        return split_words(reply)

    return brain


def _obey_contract(run: ReceivedRun, question: str) -> list[Step] | None:
    reply = contract_reply(run.text)
    return None if reply is None else split_words(reply)


def _say(run: ReceivedRun, question: str) -> list[Step] | None:
    match = _SAY.fullmatch(question)
    return split_words(match[1]) if match else None


def _think(run: ReceivedRun, question: str) -> list[Step] | None:
    match = _THINK.fullmatch(question)
    if not match:
        return None
    return [Thinking(match[1]), ThinkingDone(THINKING_MS), *split_words(match[1])]


def _count(run: ReceivedRun, question: str) -> list[Step] | None:
    match = _COUNT.fullmatch(question)
    if not match or not 1 <= int(match[1]) <= _MAX_COUNT:
        return None
    last = int(match[1])
    return [*(Text(f"{number} ") for number in range(1, last)), Text(str(last))]


def _tell_system_prompt(run: ReceivedRun, question: str) -> list[Step] | None:
    if question != "system?":
        return None
    inline = "\n\n".join(_find_blocks(run.text, "system"))
    native = run.system_prompt
    return split_words(native if native is not None else inline or "none")


def _tell_model(run: ReceivedRun, question: str) -> list[Step] | None:
    return [Text(run.model)] if question == "model?" else None


def _fail(run: ReceivedRun, question: str) -> list[Step] | None:
    match = _FAIL.fullmatch(question)
    return [Error(match[1], match[2])] if match else None


def _greet(run: ReceivedRun, question: str) -> list[Step]:
    quoted = " ".join(question.split())[:_MAX_QUOTED]
    seen = f" I see {len(run.images)} image(s)." if run.images else ""
    return split_words(f"Hello from Cursor. You said: {quoted}{seen}")


_RULES: tuple[Rule, ...] = (
    _obey_contract,
    _say,
    _think,
    _count,
    _tell_system_prompt,
    _tell_model,
    _fail,
)
