"""What holds for every history, however hostile: it is read back exactly as it went in."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from langchain_cursor.serializer import (
    Call,
    Image,
    ImageRef,
    Role,
    Turn,
    escape_tags,
    parse,
    serialize,
    unescape_tags,
)

clause = pytest.mark.clause

NAMES = ["system", "user", "assistant", "tool_result", "image", "contract"]

KNOWN_ROLES = ["system", "developer", "user", "human", "assistant", "ai"]

FRAGMENTS = [
    *NAMES,
    *["<", ">", "/", "\\", "</", "/>", "<\\", '"', "'", "&", "&lt;", "&#10;", "\\u003c", "\\n"],
    *["\n", "\n\n", "\r", "\r\n", "\t", " ", "\x00", "\x0b", "\x1c", "\x85", "\u2028", "\u2029"],
    *["\u00a0", "\u200b", "\u2060", "\ufeff", "ſ", "ı", "é", "😀", "{", "}", "[", "]", ":", ","],
    *["\n</user>", "\n</assistant>\n\n", "<user>\n", '<user name="a">\n', "<USER >", "< /User\n>"],
    *['<image id="1"/>', '<image id="2"/>', "<\\image/>", "</tool_result>", "<contract>\n"],
    *['<assistant tool_calls="1">\n', '{"tool_calls": [', '"arguments": {}}]}', "\n{}", "null"],
    *["<users>", "<user@example.com>", "<b>", "&amp;", "a", "0", "name=", 'id="', "%", "="],
]

texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=8).map("".join)
names = st.none() | texts.filter(bool)
ids = st.none() | texts
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(texts, json_values, max_size=3)
images = st.builds(
    lambda data, kind: Image(base64.b64encode(data).decode(), f"image/{kind}"),
    st.binary(min_size=1, max_size=9),
    st.sampled_from(["png", "jpeg", "svg+xml"]),
)

IMAGE_SHAPES: list[Callable[[Image], dict[str, Any]]] = [
    lambda i: {"type": "image", "base64": i.data, "mime_type": i.mime_type},
    lambda i: {"type": "image_url", "image_url": f"data:{i.mime_type};base64,{i.data}"},
    lambda i: {"type": "image_url", "image_url": {"url": f"data:{i.mime_type};base64,{i.data}"}},
    lambda i: {
        "type": "image",
        "source_type": "base64",
        "data": i.data,
        "mime_type": i.mime_type,
    },
    lambda i: {
        "type": "image",
        "source": {"type": "base64", "media_type": i.mime_type, "data": i.data},
    },
]
TEXT_SHAPES: list[Callable[[str], Any]] = [
    lambda text: text,
    lambda text: {"type": "text", "text": text},
    lambda text: {"type": "text-plain", "text": text},
]


@dataclass
class Case:
    """Messages, and what must come out of them."""

    messages: list[BaseMessage] = field(default_factory=list)
    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    tool_names: dict[str, str] = field(default_factory=dict)


def expected_content(items: Sequence[str | ImageRef], separator: str) -> tuple[Any, ...]:
    content: list[Any] = []
    said = [item for item in items if item != ""]
    for place, item in enumerate(said):
        for part in ([separator] if place else []) + [item]:
            if isinstance(part, str) and content and isinstance(content[-1], str):
                content[-1] += part
            elif part != "":
                content.append(part)
    return tuple(content)


@st.composite
def contents(draw: st.DrawFn, case: Case, separator: str, with_images: bool = True) -> Any:
    """Content in one of its shapes, and what it must become."""
    if draw(st.booleans()):
        text = draw(texts)
        return text, expected_content([text], separator)
    blocks: list[Any] = []
    items: list[str | ImageRef] = []
    for item in draw(st.lists(texts | images if with_images else texts, max_size=4)):
        if isinstance(item, Image):
            case.images.append(item)
            blocks.append(draw(st.sampled_from(IMAGE_SHAPES))(item))
            items.append(ImageRef(len(case.images)))
        else:
            blocks.append(draw(st.sampled_from(TEXT_SHAPES))(item))
            items.append(item)
    return blocks, expected_content(items, separator)


def add_user(draw: st.DrawFn, case: Case) -> None:
    content, expected = draw(contents(case, "\n"))
    name = draw(names)
    if draw(st.booleans()):
        case.messages.append(HumanMessage(content, name=name))
        case.turns.append(Turn("user", expected, name=name))
    else:
        role = draw(texts.filter(lambda text: text.lower() not in KNOWN_ROLES))
        case.messages.append(ChatMessage(content=content, role=role, name=name))
        case.turns.append(Turn("user", expected, name=name, speaker=role))


def add_system(draw: st.DrawFn, case: Case) -> None:
    content, expected = draw(contents(case, "\n", with_images=False))
    # In mid-conversation; or with a name, which keeps it out of the native system text.
    name = draw(names if case.turns else texts.filter(bool))
    case.messages.append(SystemMessage(content, name=name))
    if "".join(expected).strip():
        case.turns.append(Turn("system", expected, name=name))


def add_assistant(draw: st.DrawFn, case: Case) -> None:
    content, expected = draw(contents(case, ""))
    name = draw(names)
    calls = draw(st.lists(st.builds(Call, ids, texts, arguments), max_size=3))
    invalid = draw(st.lists(st.builds(Call, ids, names, ids, ids), max_size=2))
    declared = [{"id": c.id, "name": c.name, "args": c.arguments} for c in calls]
    extra: list[Call] = []
    if isinstance(content, list):
        for call in calls:
            block = {"id": call.id, "name": call.name}
            shape = draw(st.sampled_from(["absent", "tool_call", "tool_use"]))
            if shape == "tool_call":
                content.append({**block, "type": shape, "args": call.arguments})
            elif shape == "tool_use":
                content.append({**block, "type": shape, "input": call.arguments})
        if draw(st.booleans()):
            known = {call.id for call in [*calls, *invalid]}
            fresh = draw(texts.filter(lambda text: text not in known))
            extra = [Call(fresh, draw(texts), draw(arguments))]
            content.append(
                {
                    "type": "tool_use",
                    "id": fresh,
                    "name": extra[0].name,
                    "input": extra[0].arguments,
                }
            )
        content.insert(0, {"type": "thinking", "thinking": draw(texts)})
    case.messages.append(
        AIMessage(
            content,
            name=name,
            tool_calls=declared,
            invalid_tool_calls=[
                {"id": c.id, "name": c.name, "args": c.arguments, "error": c.error} for c in invalid
            ],
        )
    )
    case.turns.append(Turn("assistant", expected, name=name, tool_calls=(*calls, *invalid, *extra)))
    for call in case.turns[-1].tool_calls:
        if call.id is not None and call.name:
            case.tool_names[call.id] = call.name


def add_tool_result(draw: st.DrawFn, case: Case) -> None:
    content, expected = draw(contents(case, "\n"))
    if draw(st.integers(0, 3)) == 0:
        function = draw(texts.filter(bool))
        case.messages.append(FunctionMessage(content=content, name=function))
        case.turns.append(Turn("tool_result", expected, name=function))
        return
    call_id = draw(st.sampled_from(sorted(case.tool_names)) if case.tool_names else texts)
    given_name = draw(names)
    status: Any = draw(st.sampled_from(["success", "error"]))
    name = given_name or case.tool_names.get(call_id)
    turn = Turn("tool_result", expected, name=name, tool_call_id=call_id, status=status)
    if given_name is None and isinstance(content, list) and draw(st.booleans()):
        # Anthropic's shape of the same: a block in a human message.
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        case.messages.append(HumanMessage([{**block, "is_error": status == "error"}]))
    else:
        case.messages.append(
            ToolMessage(content, tool_call_id=call_id, name=given_name, status=status)
        )
    case.turns.append(turn)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    case = Case()
    leading = draw(st.lists(texts, max_size=2))
    case.messages += [SystemMessage(text) for text in leading]
    case.system = "\n\n".join(text for text in leading if text.strip()) or None
    adders = [add_user, add_assistant, add_tool_result, add_system]
    add_user(draw, case) if draw(st.booleans()) else add_assistant(draw, case)
    for add in draw(st.lists(st.sampled_from(adders), max_size=4)):
        add(draw, case)
    return case


@clause("SERIALIZER-8")
@clause("SECURITY-1")
@given(case=cases())
def test_a_history_is_read_back_exactly_as_it_went_in(case: Case) -> None:
    prompt = serialize(case.messages)

    assert prompt.system == case.system
    assert parse(prompt.text) == case.turns
    assert prompt.images == tuple(case.images)


@clause("SERIALIZER-8")
@given(case=cases())
def test_there_are_as_many_blocks_as_turns_and_as_many_placeholders_as_images(case: Case) -> None:
    text = serialize(case.messages).text

    opened = re.findall(r"^<(system|user|assistant|tool_result)[ >]", text, re.MULTILINE)
    closed = re.findall(r"^</(system|user|assistant|tool_result)>$", text, re.MULTILINE)
    assert opened == closed == [turn.role for turn in case.turns]
    assert len(re.findall("<image[ />]", text, re.IGNORECASE)) == len(case.images)


@clause("SERIALIZER-3")
@given(case=cases())
def test_inlined_system_text_is_one_more_turn_before_the_others(case: Case) -> None:
    inlined = serialize(case.messages).inlined()

    system = [] if case.system is None else [Turn("system", (case.system,))]
    assert parse(inlined.text) == system + case.turns


@clause("SERIALIZER-10")
@given(case=cases(), inner=texts)
def test_whatever_a_contract_says_the_conversation_before_it_stays(case: Case, inner: str) -> None:
    text = f"{serialize(case.messages).text}\n\n<contract>\n{inner}\n</contract>"

    assert parse(text) == [*case.turns, Turn("contract", (inner,) if inner else ())]


def bare_tags(text: str) -> list[int]:
    """Where a tag of ours begins: the plain way to say what the serializer's patterns say."""
    gap = "\u200b\u200c\u200d\u2060\ufeff"
    places = []
    for place in (i for i, character in enumerate(text) if character == "<"):
        rest = text[place + 1 :]
        for slash in ("/", ""):
            after = rest
            while after and (after[0].isspace() or after[0] in gap):
                after = after[1:]
            if slash and not after.startswith(slash):
                continue
            after = after[len(slash) :]
            while after and (after[0].isspace() or after[0] in gap):
                after = after[1:]
            for name in NAMES:
                end = after[len(name) : len(name) + 1]
                if after[: len(name)].lower() == name and (
                    end in ("", "/", ">") or end.isspace() or end in gap
                ):
                    places.append(place)
    return places


@clause("SERIALIZER-8")
@given(text=texts)
def test_escaping_leaves_no_tag_and_can_be_undone(text: str) -> None:
    escaped = escape_tags(text)

    assert bare_tags(escaped) == []
    assert unescape_tags(escaped) == text


@clause("SERIALIZER-9")
@given(text=texts)
def test_escaping_changes_nothing_but_tags(text: str) -> None:
    escaped = escape_tags(text)

    assert escaped.replace("\\", "") == text.replace("\\", "")
    # One backslash for each tag, those that have backslashes already included. Ignoring case makes
    # two more letters into ones of ours.
    plain = re.sub(r"<\\+", "<", text).replace("ſ", "s").replace("ı", "i")
    assert len(escaped) - len(text) == len(bare_tags(plain))


KEYS = [
    *["type", "text", "image_url", "url", "base64", "data", "mime_type", "media_type", "source"],
    *["source_type", "file_id", "id", "name", "args", "input", "arguments", "call_id", "error"],
    *["tool_use_id", "content", "is_error", "value", "title", "context", "refusal", "detail"],
]
WORDS = [
    *["text", "image", "image_url", "audio", "video", "file", "document", "text-plain", "url"],
    *["tool_use", "tool_call", "tool_result", "function_call", "invalid_tool_call", "reasoning"],
    *["thinking", "refusal", "non_standard", "base64", "hologram", "image/png", "\ud800", "QUJD"],
    *["data:image/png;base64,QUJD", "data:,", "data:image/png,%ff", "https://example.com/a.png"],
]
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | texts,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | texts, children, max_size=5)
    ),
    max_leaves=10,
)
junk_blocks = st.dictionaries(st.sampled_from(KEYS), junk | st.sampled_from(WORDS), max_size=6)
typed_junk_blocks = st.builds(
    lambda kind, block: {**block, "type": kind}, st.sampled_from(WORDS), junk_blocks
)
EMPTY_MESSAGES: list[BaseMessage] = [
    HumanMessage(""),
    AIMessage(""),
    SystemMessage(""),
    ToolMessage("", tool_call_id="c1"),
    FunctionMessage(content="", name="f"),
    ChatMessage(content="", role="critic"),
]


@clause("SERIALIZER-16")
@given(
    message=st.sampled_from(EMPTY_MESSAGES),
    content=st.lists(typed_junk_blocks | junk_blocks | junk, max_size=3) | junk,
)
def test_any_content_is_either_sent_or_refused_with_a_value_error(
    message: BaseMessage, content: Any
) -> None:
    messages = [HumanMessage("before"), message.model_copy(update={"content": content})]

    try:
        prompt = serialize(messages)
    except ValueError as error:
        str(error).encode()
        return

    prompt.text.encode()
    first, *rest = parse(prompt.text)
    assert first == Turn("user", ("before",))
    placeholders = [part for turn in rest for part in turn.content if isinstance(part, ImageRef)]
    assert placeholders == [ImageRef(n + 1) for n in range(len(prompt.images))]


ROLES: list[Role] = ["system", "user", "assistant", "tool_result", "contract"]


@clause("SERIALIZER-8")
@given(
    text=st.lists(
        st.sampled_from([f"<{role}>\n" for role in ROLES] + [f"\n</{role}>" for role in ROLES])
        | st.sampled_from(["\n\n", '<assistant tool_calls="1">\n', '{"tool_calls": [{}]}', "x"])
        | texts,
        max_size=8,
    ).map("".join)
)
def test_reading_any_text_gives_turns_or_a_value_error(text: str) -> None:
    try:
        turns = parse(text)
    except ValueError as error:
        reason = str(error)
    else:
        assert turns
        return

    assert reason.startswith("not a serialized prompt: at character ")
