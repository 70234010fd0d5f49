"""Finds the JSON values of interest in a model's reply while it streams in, in linear time.

The reply is read in one forward pass. Prose goes by; from a place where a reply in JSON may
begin (a bracket, or a fence or tag that may wrap one, with the white space before it) the text is
held until it is decided. A value that turns out not to be JSON is not tried again from each of its
inner brackets: none of them can be complete, since they are all still open where it failed. The
one exception is a string directly before the failure, whose opening quote may have been a stray
one; it alone is read a second time.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from langchain_cursor._json_scan import JSONError, JsonScan, decode_scanned

SPACE: Final = " \t\r\n\f\v\u00a0\ufeff"
"""White space around a value; models also write no-break spaces and byte order marks."""

_LEFTOVERS: Final = SPACE + "}],;."
_MARKER: Final = r"|[`~<]"
# A bracket counts only if what follows it can be JSON, or a key in the wrong quotes.
_OBJECT: Final = r"\{(?=[ \t\r\n]*(?:[\"}'`\u2018\u2019\u201c\u201dt]|\Z))"
_LIST_OF_OBJECTS: Final = r"\[(?=[ \t\r\n]*(?:[{\]]|\Z))"
_TRIGGER_OBJECTS = re.compile(_OBJECT + "|" + _LIST_OF_OBJECTS + _MARKER)
_TRIGGER_ANY = re.compile(_OBJECT + r"|\[" + _MARKER)
_KEY_IN_PROSE = re.compile(r"tool_calls[\"'`\u2018\u2019\u201c\u201d]?\s*:\Z")
_BRACKET = re.compile(r"[{\[]")
_FENCE_LABEL = re.compile(r"[^\S\n]*[\w.+#:-]*[^\S\n]*")
_MAX_LABEL: Final = 64
_MAX_TAG: Final = 128
_MAX_OPENERS: Final = 8
_TAG_ATTRIBUTES = re.compile(r"[^<>{}\[\]\n]*")
_CALL_LABELS: Final = frozenset({"tool_calls", "tool_call", "function_calls", "function_call"})
_TAGS: Final = _CALL_LABELS | {
    "answer",
    "assistant",
    "contract",
    "json",
    "output",
    "reply",
    "response",
}
_PROSE, _FENCE, _LABEL, _TAG, _VALUE = range(5)


@dataclass(frozen=True)
class Reading:
    """What a JSON value says, if it is (part of) the reply that the contract asks for.

    Args:
        value: The calls as they were written, or the whole value in JSON mode.
        content: Text that the value itself carries for the user.
        full: In the contract's own form, which shows that a reply begins anew. A value in a
            form that is only tolerated could be a piece of a broken reply before it.
    """

    value: Any
    content: str = ""
    full: bool = True


class Reader(Protocol):
    """Decides which JSON values in a reply matter."""

    @property
    def holds_all(self) -> bool:
        """Whether no text may be shown before the whole reply is there."""

    @property
    def takes_lists(self) -> bool:
        """Whether a list of anything, not only of objects, may matter."""

    @property
    def watch(self) -> frozenset[str]:
        """Keys by which `tried` recognises a broken reply."""

    def read(self, value: object) -> Reading | None:
        """Return what the value says, or None if it is not for us."""

    def tried(self, seen: Mapping[str, str], *, has_parts: bool) -> bool:
        """Tell from what was read of a broken value whether it was meant for us."""


@dataclass(frozen=True)
class Found:
    """A value of interest, and the part of the reply that it takes up with its wrappers.

    Args:
        start: Index of the first character, white space and wrappers before it included.
        end: Index after the value.
        reading: What it says.
        space: The white space at `start`.
        closers: Ends of the wrappers that were opened before it, outermost first.
        repeated: The same text stood in the reply before.
    """

    start: int
    end: int
    reading: Reading
    space: str = ""
    closers: tuple[str, ...] = ()
    repeated: bool = False


@dataclass(frozen=True)
class Broken:
    """A value that was meant for us and is not JSON, or not a call.

    Args:
        start: Index of the first character, white space and wrappers before it included.
        position: Index of the character that was wrong.
        message: What was expected there.
        is_json: Whether it is JSON, of a wrong shape.
    """

    start: int
    position: int
    message: str
    is_json: bool = False


class ReplyScan:
    """Reads a reply in pieces.

    Args:
        reader: Decides which values matter.

    Attributes:
        found: The values of interest, in order.
        broken: The first broken one after the last good one.
        stray: The first value that is JSON, or broken JSON at the very beginning, but not of
            interest: something to name when a reply of interest was due and none came.
    """

    def __init__(self, reader: Reader) -> None:
        self.found: list[Found] = []
        self.broken: Broken | None = None
        self.stray: Broken | None = None
        self._reader = reader
        self._trigger = _TRIGGER_ANY if reader.takes_lists else _TRIGGER_OBJECTS
        self._pieces = _Pieces()
        self._position = 0
        self._mode = _PROSE
        self._plain_end = 0
        self._frozen_at: int | None = 0 if reader.holds_all else None
        self._released = 0
        self._finished = False
        self._in_fence = False
        self._openers: list[str] = []
        self._labelled = False
        self._replies: set[str] = set()
        self._marker_start = 0
        self._marker = ""
        self._marker_char = ""
        self._marker_count = 0
        self._scan = JsonScan(0)

    def feed(self, delta: str) -> str:
        """Take the next piece of the reply and return the text that may be shown now.

        Args:
            delta: The next piece, of any length.

        Returns:
            Text that is certainly not part of a reply in JSON, directly following what was
            returned before; often empty.
        """
        if self._finished:
            raise RuntimeError("This reply is finished; make a new scanner for the next one.")
        if delta:
            self._pieces.append(delta)
            self._run()
        return self._release(self._plain_end)

    def finish(self) -> str:
        """Say that the reply is complete and return the rest of it, as it was written.

        Everything returned by `feed`, and then this, is the whole reply.
        """
        if not self._finished:
            while self._mode != _PROSE or self._position < self._pieces.length:
                self._run()
                self._end_open_token()
            self._finished = True
        self._frozen_at = None
        return self._release(self._pieces.length)

    @property
    def reply(self) -> str:
        """The whole text so far."""
        return self._pieces.slice(0, self._pieces.length)

    def outside(self) -> str:
        """Return the text around the values found, with what they carry themselves in place.

        Without any value it is the reply as it stands. Wrappers are gone; of the white space on
        both sides of a value that before it is kept if text stands on both sides. Where nothing but
        brackets and separators follow a value, they go with it.
        """
        if not self.found:
            return self.reply
        joined = _Joined(self._pieces.slice(0, self.found[0].start))
        pending: list[str] = []
        ends = [*(found.start for found in self.found[1:]), self._pieces.length]
        for found, end in zip(self.found, ends, strict=True):
            joined.space = joined.space or found.space
            if not found.repeated:
                joined.add(found.reading.content)
            pending = (pending + list(found.closers))[-_MAX_OPENERS:]
            text = _without_closers(self._pieces.slice(found.end, end), pending)
            joined.add(text if text.strip(_LEFTOVERS) else "")
        return joined.text()

    def _release(self, end: int) -> str:
        if self._frozen_at is not None:
            end = min(end, self._frozen_at)
        if end <= self._released:
            return ""
        text = self._pieces.slice(self._released, end)
        self._released = end
        return text

    def _run(self) -> None:
        while self._position < self._pieces.length:
            text, start = self._pieces.around(self._position)
            index = self._position - start
            self._position = start + len(text)
            if self._mode == _PROSE:
                self._read_prose(text, index, start)
            elif self._mode == _VALUE:
                self._read_value(text, index, start)
            elif self._mode == _FENCE:
                self._read_fence(text, index, start)
            elif self._mode == _LABEL:
                self._read_label(text, index, start)
            else:
                self._read_tag(text, index, start)

    def _end_open_token(self) -> None:
        if self._mode == _VALUE:
            self._scan.end()
            self._end_value()
        elif self._mode != _PROSE:
            self._mode = _PROSE

    # Prose, and the markers that may open a wrapper.

    def _read_prose(self, text: str, index: int, start: int) -> None:
        trigger = self._trigger.search(text, index)
        end = trigger.start() if trigger else len(text)
        visible = text[index:end].strip(SPACE)
        if visible and visible[0] in "{[" and self._labelled:
            # What a label announces is no prose, whatever follows the bracket.
            end = text.index(visible[0], index)
            trigger = _BRACKET.match(text, end)
        elif visible:
            self._pass(start + index + len(text[index:end].rstrip(SPACE)))
        if trigger is None:
            return
        self._position = start + end + 1
        if text[end] in "{[":
            self._position = start + end
            self._mode = _VALUE
            self._scan = JsonScan(
                start + end,
                watch=self._reader.watch,
                objects_only=not self._reader.takes_lists,
            )
            return
        self._marker_start, self._marker_char, self._marker_count = start + end, text[end], 1
        self._marker = text[end]
        self._mode = _TAG if text[end] == "<" else _FENCE

    def _read_fence(self, text: str, index: int, start: int) -> None:
        char = self._marker_char
        end = index
        while end < len(text) and text[end] == char:
            end += 1
        self._marker_count += end - index
        if end == len(text):
            return
        self._position = start + end
        if self._marker_count >= 3:
            self._mode = _LABEL
            self._marker = ""
        elif char == "`" and text[end] in "{[":
            self._open("`" * self._marker_count, "")
        else:
            self._pass(self._marker_start + self._marker_count)

    def _read_label(self, text: str, index: int, start: int) -> None:
        for end in range(index, len(text)):
            char = text[end]
            fence = self._marker_start + self._marker_count
            if char in "\n{[<":
                self._position = start + end
                label = self._marker.strip()
                if self._in_fence and not label:
                    self._in_fence = False
                    self._pass(fence)
                    return
                self._in_fence = True
                self._open(self._marker_char * 3, label)
                return
            self._marker += char
            if len(self._marker) > _MAX_LABEL or not _FENCE_LABEL.fullmatch(self._marker):
                self._position = fence
                self._pass(fence)
                return

    def _read_tag(self, text: str, index: int, start: int) -> None:
        for end in range(index, len(text)):
            name = self._marker[1:].partition(" ")[0]
            if text[end] == ">" and name in _TAGS:
                self._position = start + end + 1
                self._open(f"</{name}>", name)
                return
            self._marker += text[end]
            if not _may_be_tag(self._marker):
                self._position = self._marker_start + 1
                self._pass(self._marker_start + 1)
                return

    def _open(self, closer: str, label: str) -> None:
        self._openers.append(closer)
        self._labelled = self._labelled or label.lower() in _CALL_LABELS
        self._mode = _PROSE

    def _pass(self, end: int) -> None:
        """Note that the text up to `end` is prose."""
        self._plain_end = end
        self._openers.clear()
        self._labelled = False
        self._mode = _PROSE

    # JSON values.

    def _read_value(self, text: str, index: int, start: int) -> None:
        self._position = start + self._scan.advance(text, index)
        if self._scan.status != "open":
            self._end_value()

    def _end_value(self) -> None:
        scan = self._scan
        self._mode = _PROSE
        if scan.status == "failed":
            self._refuse_value()
            return
        self._position = scan.position
        text = self._pieces.slice(scan.start, scan.position)
        try:
            value = decode_scanned(text)
        except JSONError as error:
            scan.error, scan.error_at = error.message, scan.start
            self._refuse_value(resume=scan.position)
            return
        reading = self._reader.read(value)
        if reading is not None and not reading.full and self.broken is None and self._in_key():
            self._note_broken(
                'the list after "tool_calls" is not inside a JSON object', at=scan.start
            )
        if reading is not None and self.broken is not None and not reading.full:
            reading = None
        if reading is not None:
            start = self.broken.start if self.broken else self._plain_end
            before = self._pieces.slice(start, scan.start)
            space = before[: len(before) - len(before.lstrip(SPACE))]
            closers = tuple(self._openers[-_MAX_OPENERS:])
            self._freeze(start)
            repeated = reading.full and text in self._replies
            self._replies.add(text)
            self.found.append(Found(start, scan.position, reading, space, closers, repeated))
            self.broken = None
        elif self._labelled:
            self._note_broken("this is JSON, but not a call", at=scan.start, is_json=True)
        elif self.stray is None:
            self.stray = Broken(self._plain_end, scan.start, _shape_of(value), is_json=True)
        self._pass(scan.position)

    def _refuse_value(self, resume: int | None = None) -> None:
        scan = self._scan
        if self._labelled or self._reader.tried(scan.seen, has_parts=scan.has_parts):
            self._note_broken(scan.error)
        elif self.stray is None and not self._plain_end:
            tried = self._pieces.slice(scan.start, scan.error_at + 1)
            if self._trigger.match(tried):  # else, in one piece, it would not have been tried
                self.stray = Broken(0, scan.error_at, scan.error)
        if resume is None:
            resume = self._restart(scan)
        self._position = resume
        visible = self._pieces.slice(scan.start, resume).rstrip(SPACE)
        self._pass(scan.start + len(visible))

    def _restart(self, scan: JsonScan) -> int:
        if scan.last_string is not None:
            begin, end = scan.last_string
            inside = self._trigger.search(self._pieces.slice(begin + 1, end))
            while inside and inside.group() not in "{[":
                inside = self._trigger.search(inside.string, inside.end())
            if inside:
                return begin + 1 + inside.start()
        return max(scan.error_at, scan.start + 1)

    def _in_key(self) -> bool:
        """Tell whether the prose just before the value ends as the key of the contract does."""
        before = self._pieces.slice(max(self._plain_end - _MAX_LABEL, 0), self._plain_end)
        return _KEY_IN_PROSE.search(before) is not None

    def _note_broken(self, message: str, *, at: int | None = None, is_json: bool = False) -> None:
        self._freeze(self._plain_end)
        if self.broken is None:
            position = self._scan.error_at if at is None else at
            self.broken = Broken(self._plain_end, position, message, is_json)

    def _freeze(self, end: int) -> None:
        if self._frozen_at is None:
            self._frozen_at = end


class _Pieces:
    """A text that grows at its end, without ever being copied as a whole."""

    def __init__(self) -> None:
        self.length = 0
        self._texts: list[str] = []
        self._starts: list[int] = []

    def append(self, text: str) -> None:
        self._texts.append(text)
        self._starts.append(self.length)
        self.length += len(text)

    def around(self, position: int) -> tuple[str, int]:
        """Return the piece that holds `position`, and where it starts."""
        at = len(self._starts) - 1
        if position < self._starts[at]:
            at = bisect_right(self._starts, position) - 1
        return self._texts[at], self._starts[at]

    def slice(self, start: int, end: int) -> str:
        if start >= end:
            return ""
        at = bisect_right(self._starts, start) - 1
        parts: list[str] = []
        while at < len(self._texts) and self._starts[at] < end:
            offset = self._starts[at]
            parts.append(self._texts[at][max(start - offset, 0) : end - offset])
            at += 1
        return "".join(parts)


class _Joined:
    """Joins texts that stood around a value by the white space that stood there."""

    def __init__(self, first: str) -> None:
        self.space = ""
        self._parts = [first] if first else []

    def add(self, text: str) -> None:
        core = text.strip(SPACE)
        if not core:
            self.space = self.space or text
            return
        if self._parts:
            self._parts.append(self.space or text[: len(text) - len(text.lstrip(SPACE))])
        self._parts.append(core)
        self.space = text[len(text.rstrip(SPACE)) :]

    def text(self) -> str:
        return "".join(self._parts)


def _without_closers(text: str, pending: list[str]) -> str:
    """Remove from `text` the ends of wrappers that it holds, and those ends from `pending`."""
    for closer in reversed(pending.copy()):
        before, found, after = text.partition(closer)
        if found and (len(closer) >= 3 or not before):  # inline code ends directly after the value
            text = before + after.lstrip(closer[0] if closer[0] in "`~" else "")
            pending.remove(closer)
    return text


def _may_be_tag(text: str) -> bool:
    name, space, attributes = text[1:].partition(" ")
    if len(text) > _MAX_TAG or not _TAG_ATTRIBUTES.fullmatch(attributes):
        return False
    return name in _TAGS if space else any(tag.startswith(name) for tag in _TAGS)


def _shape_of(value: object) -> str:
    if not isinstance(value, dict):
        return "a JSON list"
    keys = ", ".join(json.dumps(key[:40], ensure_ascii=False) for key in list(value)[:6])
    return f"a JSON object with the keys {keys}" if keys else "an empty JSON object"
