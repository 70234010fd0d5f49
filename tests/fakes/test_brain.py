"""The default brain."""

from __future__ import annotations

import time

import pytest

from langchain_cursor_fakes import (
    Error,
    ReceivedImage,
    ReceivedRun,
    Text,
    Thinking,
    ThinkingDone,
    answer,
)


def text_of(run: ReceivedRun) -> str:
    return "".join(step.delta for step in answer(run) if isinstance(step, Text))


def ask(prompt: str, **fields: object) -> str:
    return text_of(ReceivedRun(prompt, **fields))


@pytest.mark.clause("BRAIN-1")
def test_the_question_is_the_last_user_block() -> None:
    prompt = (
        "Intro.\n\n<user>\nfirst\n</user>\n\n<assistant>\nyes\n</assistant>\n\n"
        "<user>\nsecond\n</user>"
    )
    assert ask(prompt) == "Hello from Cursor. You said: second"


@pytest.mark.clause("BRAIN-1")
def test_a_user_block_with_attributes_counts() -> None:
    assert ask('<user name="bob">\nI am Bob\n</user>') == "Hello from Cursor. You said: I am Bob"


@pytest.mark.clause("BRAIN-1")
def test_what_comes_after_the_last_user_block_is_not_part_of_the_question() -> None:
    prompt = (
        '<user>\nadd\n</user>\n\n<tool_result name="add">\n3\n</tool_result>\n\n'
        "<contract>\nReply with JSON.\n</contract>"
    )
    assert ask(prompt) == "Hello from Cursor. You said: add"


@pytest.mark.clause("BRAIN-1")
def test_a_prompt_without_blocks_is_the_question_as_a_whole() -> None:
    assert ask("plain words") == "Hello from Cursor. You said: plain words"


@pytest.mark.clause("BRAIN-1")
@pytest.mark.parametrize("prompt", ["see <user> there", "<username>\nx\n</username>", "<users>"])
def test_a_tag_inside_a_line_or_of_another_name_begins_no_block(prompt: str) -> None:
    assert ask(prompt) == f"Hello from Cursor. You said: {' '.join(prompt.split())}"


@pytest.mark.clause("BRAIN-1")
def test_a_block_that_is_not_closed_ends_with_the_prompt() -> None:
    assert ask("<user>\nsay: cut off") == "cut off"


@pytest.mark.clause("BRAIN-1")
def test_image_placeholders_are_not_part_of_the_question() -> None:
    assert ask('<user>\n<image id="1"/>\nsay: seen\n</user>') == "seen"


@pytest.mark.clause("BRAIN-2")
def test_a_question_is_quoted_on_one_line_and_cut_to_200_characters() -> None:
    assert ask("one\ntwo   three") == "Hello from Cursor. You said: one two three"
    assert ask("x" * 300) == "Hello from Cursor. You said: " + "x" * 200


@pytest.mark.clause("BRAIN-2")
def test_images_are_counted_by_attachment() -> None:
    images = (ReceivedImage(b"1", "image/png"), ReceivedImage(b"2", "image/png"))
    assert ask("look", images=images) == "Hello from Cursor. You said: look I see 2 image(s)."


@pytest.mark.clause("BRAIN-3")
def test_each_delta_is_a_word_with_the_space_after_it() -> None:
    assert answer(ReceivedRun("say: one  two\nthree")) == [
        Text("one  "),
        Text("two\n"),
        Text("three"),
    ]


@pytest.mark.clause("BRAIN-4")
def test_say_gives_exactly_its_text() -> None:
    assert ask('say: {"a": [1,\n 2]}\n\nend.') == '{"a": [1,\n 2]}\n\nend.'


@pytest.mark.clause("BRAIN-4")
def test_think_gives_its_text_as_thinking_and_then_as_text() -> None:
    assert answer(ReceivedRun("think: deep thought")) == [
        Thinking("deep thought"),
        ThinkingDone(100),
        Text("deep "),
        Text("thought"),
    ]


@pytest.mark.clause("BRAIN-4")
def test_count_gives_one_delta_a_number() -> None:
    steps = answer(ReceivedRun("count to 100000"))
    assert len(steps) == 100_000
    assert steps[:2] == [Text("1 "), Text("2 ")]
    assert steps[-1] == Text("100000")
    assert ask("count to 1") == "1"


@pytest.mark.clause("BRAIN-4")
@pytest.mark.parametrize("question", ["count to 0", "count to 100001", "count to ten"])
def test_a_count_out_of_range_is_an_ordinary_question(question: str) -> None:
    assert ask(question) == f"Hello from Cursor. You said: {question}"


@pytest.mark.clause("BRAIN-4")
def test_system_tells_the_native_system_prompt_first() -> None:
    inline = (
        "<system>\nBe brief.\n</system>\n\n<system>\nBe kind.\n</system>\n\n"
        "<user>\nsystem?\n</user>"
    )
    assert ask(inline, system_prompt="Native.") == "Native."
    assert ask(inline) == "Be brief.\n\nBe kind."
    assert ask("system?") == "none"


@pytest.mark.clause("BRAIN-4")
def test_model_tells_the_models_id() -> None:
    assert ask("model?", model="composer-2.5") == "composer-2.5"


@pytest.mark.clause("BRAIN-4")
def test_fail_fails_with_code_and_message() -> None:
    assert answer(ReceivedRun("fail: resource_exhausted Slow down, please")) == [
        Error("resource_exhausted", "Slow down, please")
    ]


@pytest.mark.clause("BRAIN-1")
@pytest.mark.parametrize(
    "prompt",
    [
        "<user>\n" * 200_000,
        "<user " * 200_000,
        "<system>\n" * 200_000 + "<user>\nsystem?",
        "<image " * 200_000,
        "say: " + " " * 1_000_000 + "x",
        "fail: a" + " " * 1_000_000,
    ],
)
def test_a_hostile_prompt_takes_linear_time(prompt: str) -> None:
    before = time.perf_counter()
    answer(ReceivedRun(prompt))
    assert time.perf_counter() - before < 2
