"""Makes values that fit a JSON Schema out of the words and numbers of a text, by fixed rules."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_MAX_DEPTH: Final = 12
_QUOTED = re.compile(
    r'"([^"\n]*)"|\u201c([^\u201d\n]*)\u201d|`([^`\n]*)`|(?<!\w)\'([^\'\n]*)\'(?!\w)'
)
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d{1,15})?(?![\w])")
_WORD = re.compile(r"[^\W_](?:[\w'@.+/-]*\w)?")
_PHRASE = re.compile(
    r"\b(?:in|for|of|to|about|named|called)\s+(?:the\s+)?"
    r"([A-Z][\w'-]*(?:\s+[A-Z][\w'-]*){0,5}|[^\W_][\w'@.+/-]*\w|\w)"
)
_NO = re.compile(r"(?:\b(?:not|no|without|never|false|off)\b)", re.IGNORECASE)
_FORMATS: Final = {
    "date": "2024-01-31",
    "time": "12:00:00Z",
    "date-time": "2024-01-31T12:00:00Z",
    "email": "ann@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
}


def words_of(text: str) -> list[str]:
    """The words of a text or name in lower case; ``get_weather`` and ``GetWeather`` are two.

    >>> words_of("GetWeather for max_depth")
    ['get', 'weather', 'for', 'max', 'depth']
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ").replace("-", " ")
    return re.findall(r"\w+", spaced.lower())


class ValueMaker:
    """Makes values for one schema after another from one text.

    Each number and each quoted string of the text is used once, in order, so that two properties
    get different ones.

    Args:
        text: What the values are taken from.
        root: The schema that ``$ref`` begins at.

    >>> maker = ValueMaker('Set the volume to 7, label "loud".', {})
    >>> maker.make({"type": "integer"}, "level"), maker.make({"type": "string"}, "label")
    (7, 'loud')
    """

    def __init__(self, text: str, root: Mapping[str, Any]) -> None:
        self._text = text
        self._root = root
        self._quoted: list[str] = ["".join(groups) for groups in _QUOTED.findall(text)]
        self._numbers = [json.loads(_plain(number)) for number in _NUMBER.findall(text)]
        self._words = set(words_of(text))

    def make(self, schema: Any, name: str = "", depth: int = 0) -> Any:
        """Make a value.

        Args:
            schema: The JSON Schema that it must fit.
            name: The property that it is for.
            depth: How many values it stands inside of.
        """
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._choose(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                rest = {other: value for other, value in schema.items() if other != key}
                return self.make(_merged(rest, self._branch(schema[key], depth)), name, depth)
        kind = _kind(schema)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in ("integer", "number"):
            return self._number(schema, name, whole=kind == "integer")
        if kind == "boolean":
            return self._boolean(name)
        return None if kind == "null" else self._string(schema, name)

    def _resolved(self, schema: Any) -> dict[str, Any]:
        """Follow references, and join what stands beside them and in ``allOf``."""
        found: dict[str, Any] = dict(schema) if isinstance(schema, Mapping) else {}
        for _ in range(_MAX_DEPTH):
            if "$ref" in found:
                target = self._at(str(found.pop("$ref")))
                found = _merged(target if isinstance(target, Mapping) else {}, found)
            elif found.get("allOf"):
                for part in found.pop("allOf"):
                    found = _merged(found, self._resolved(part))
            else:
                break
        return found

    def _at(self, reference: str) -> Any:
        place: Any = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, list):
                place = place[int(step)] if step.isdigit() and int(step) < len(place) else {}
            else:
                place = place.get(step, {}) if isinstance(place, Mapping) else {}
        return place

    def _branch(self, branches: list[Any], depth: int) -> dict[str, Any]:
        resolved = [self._resolved(branch) for branch in branches]
        simple = [branch for branch in resolved if _kind(branch) not in ("object", "array")]
        candidates = (simple if depth >= _MAX_DEPTH else []) or resolved
        return next((branch for branch in candidates if _kind(branch) != "null"), candidates[0])

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        wanted = [
            name
            for name in properties
            if name in required or (depth < _MAX_DEPTH and self._mentions(name, properties[name]))
        ]
        wanted += [name for name in required if name not in properties]
        made = {name: self.make(properties.get(name, {}), name, depth + 1) for name in wanted}
        extra = schema.get("additionalProperties", {})
        for name in _more_names(properties):
            if len(made) >= schema.get("minProperties", 0):
                break
            if name not in made:
                made[name] = self.make(properties.get(name, extra), name, depth + 1)
        return made

    def _mentions(self, name: str, schema: Any) -> bool:
        if set(words_of(name)) <= self._words:
            return True
        resolved = self._resolved(schema)
        return any(isinstance(item, str) and self._has(item) for item in resolved.get("enum", []))

    def _has(self, phrase: str) -> bool:
        words = words_of(phrase)
        return bool(words) and set(words) <= self._words

    def _choose(self, values: list[Any]) -> Any:
        return next(
            (value for value in values if isinstance(value, str) and self._has(value)), values[0]
        )

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        first = schema.get("prefixItems", [])
        made = [self.make(item, name, depth + 1) for item in first]
        items = self._resolved(schema.get("items", {}))
        least = schema.get("minItems", 0)
        most = schema.get("maxItems", math.inf)
        if schema.get("items") is False or (depth >= _MAX_DEPTH and len(made) >= least):
            return made
        for item in self._listed(items, name, depth):
            if len(made) >= most:
                break
            if not schema.get("uniqueItems") or item not in made:
                made.append(item)
        while len(made) < least:
            item = self.make(items, name, depth + 1)
            if schema.get("uniqueItems") and item in made:
                item = _another(item, items, made)
            made.append(item)
        return made

    def _listed(self, items: Mapping[str, Any], name: str, depth: int) -> Iterator[Any]:
        """What the text has for a list: all of its numbers, quoted strings or named choices."""
        kind = _kind(items)
        if "enum" in items:
            named = [item for item in items["enum"] if isinstance(item, str) and self._has(item)]
            yield from named or items["enum"][:1]
        elif kind in ("integer", "number"):
            while (number := self._next_number(items, whole=kind == "integer")) is not None:
                yield number
        else:
            times = len(self._quoted) if kind == "string" else 1
            for _ in range(max(times, 1)):
                yield self.make(items, name, depth + 1)

    def _number(self, schema: Mapping[str, Any], name: str, *, whole: bool) -> Any:
        beside = self._beside(name, r"-?\d{1,15}(?:\.\d{1,15})?(?!\w)")
        if beside is not None:
            number = json.loads(_plain(beside))
            if _fits(number, schema, whole=whole):
                if number in self._numbers:
                    self._numbers.remove(number)
                return number
        number = self._next_number(schema, whole=whole)
        return _least_number(schema, whole=whole) if number is None else number

    def _next_number(self, schema: Mapping[str, Any], *, whole: bool) -> Any:
        for index, number in enumerate(self._numbers):
            if _fits(number, schema, whole=whole):
                return self._numbers.pop(index)
        return None

    def _boolean(self, name: str) -> bool:
        found = re.search(rf"\b{_spelled(name)}\b", self._text, re.IGNORECASE)
        if not found:
            return False
        around = self._text[max(found.start() - 12, 0) : found.end() + 12]
        return not _NO.search(around)

    def _beside(self, name: str, value: str) -> str | None:
        """What stands right after the name of a property, if it is of the form `value`."""
        after = r"(?:\s*[:=]\s*|\s+)(?:(?:is|to|of|named)\s+)?"
        found = re.search(rf"\b{_spelled(name)}{after}({value})", self._text, re.IGNORECASE)
        return found.group(1) if found else None

    def _string(self, schema: Mapping[str, Any], name: str) -> str:
        text = self._string_from_text(schema, name)
        most: int = schema.get("maxLength", len(text))
        least: int = schema.get("minLength", 0)
        return text[:most].ljust(least, "x")

    def _string_from_text(self, schema: Mapping[str, Any], name: str) -> str:
        if schema.get("format") in _FORMATS:
            return _FORMATS[str(schema["format"])]
        if self._quoted:
            return self._quoted.pop(0)
        beside = self._beside(name, _WORD.pattern)
        if beside is not None:
            return beside
        phrase = _PHRASE.search(self._text)
        if phrase:
            return str(phrase.group(1))
        words: list[str] = _WORD.findall(self._text)
        return words[-1] if words else "text"


def _another(item: Any, items: Mapping[str, Any], made: list[Any]) -> Any:
    """A value like `item` that is not in the list yet, if the rules know one."""
    if "enum" in items:
        return next((other for other in items["enum"] if other not in made), item)
    if isinstance(item, str):
        mark = str(len(made))
        return item[: items.get("maxLength", len(item) + len(mark)) - len(mark)] + mark
    if isinstance(item, bool):
        return not item
    if isinstance(item, (int, float)):
        return max(number for number in made) + items.get("multipleOf", 1)
    return item


def _spelled(name: str) -> str:
    """A pattern for a name in a text: ``max_depth`` is there as "max depth", too."""
    return r"[\W_]+".join(map(re.escape, words_of(name))) or r"(?!)"


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if isinstance(kind, str):
        return kind
    if "properties" in schema or "required" in schema or "additionalProperties" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    return "number" if "minimum" in schema or "maximum" in schema else "string"


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**one, **other}
    for key in ("properties", "$defs"):
        if key in one and key in other:
            merged[key] = {**one[key], **other[key]}
    if "required" in one and "required" in other:
        merged["required"] = list(dict.fromkeys([*one["required"], *other["required"]]))
    return merged


def _more_names(properties: Mapping[str, Any]) -> Iterator[str]:
    yield from properties
    number = 0
    while True:
        number += 1
        yield f"key{number}"


def _plain(number: str) -> str:
    """Without the leading zeros that JSON does not have."""
    return re.sub(r"^(-?)0+(?=\d)", r"\1", number)


def _limits(schema: Mapping[str, Any]) -> tuple[float, float, bool, bool]:
    """Lower and upper limit, and whether each is itself excluded."""
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = (
        schema.get("exclusiveMinimum", -math.inf),
        schema.get("exclusiveMaximum", math.inf),
    )
    return max(low, above), min(high, below), above >= low, below <= high


def _fits(number: Any, schema: Mapping[str, Any], *, whole: bool) -> bool:
    low, high, low_out, high_out = _limits(schema)
    if whole and number != int(number):
        return False
    if number < low or number > high:
        return False
    if (number == low and low_out) or (number == high and high_out):
        return False
    step = schema.get("multipleOf")
    return step is None or math.isclose(number / step, round(number / step), abs_tol=1e-9)


def _least_number(schema: Mapping[str, Any], *, whole: bool) -> Any:
    low, high, _, _ = _limits(schema)
    step = schema.get("multipleOf", 1)
    start = low if math.isfinite(low) else min(0, high - step)
    first = math.ceil(start / step)
    for count in (first, first + 1, first - 1):
        number = count * step
        if _fits(number, schema, whole=whole):
            return int(number) if whole or number == int(number) else number
    middle = (low + high) / 2 if math.isfinite(low) and math.isfinite(high) else 0
    return round(middle) if whole else middle
