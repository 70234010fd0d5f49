"""The public interface, written down, so that a change of it shows in the review."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, get_origin

import pytest
from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel
from syrupy.assertion import SnapshotAssertion

import langchain_cursor
import langchain_cursor_fakes

OURS = ("langchain_cursor", "langchain_cursor_fakes")


def is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in OURS


def signature(function: Any) -> str:
    # A function that is a default prints its address.
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(function)))


def described(thing: Any) -> list[str]:
    """A public name's kind and signature, then a line for each member of it."""
    if get_origin(thing) or not isinstance(thing, type):  # 3.10 takes `Callable[...]` for a type
        return [f"def {signature(thing)}" if inspect.isfunction(thing) else repr(thing)]
    bases = "".join(f" < {kind.__name__}" for kind in thing.__mro__[1:-2])
    if issubclass(thing, BaseModel):
        # What comes from LangChain is LangChain's to change.
        return ["class", *fields(thing), *members(thing)]
    return [f"class {signature(thing)}{bases}", *attributes(thing), *members(thing)]


def fields(model: type[BaseModel]) -> Iterator[str]:
    """The parameters of a model, as they are written: types, defaults, other names."""
    for name, field in model.model_fields.items():
        if name not in BaseChatModel.model_fields:
            alias = field.validation_alias
            names = getattr(alias, "choices", [alias] if alias else [])
            others = "".join(f" or {other}" for other in names if other != name)
            annotation = inspect.get_annotations(model)[name]
            yield f"{name}{others}: {annotation} = {field.default!r}"


def attributes(kind: type) -> list[str]:
    """The attributes of an instance that needs no arguments."""
    parameters = inspect.signature(kind).parameters.values()
    if any(each.default is each.empty and each.kind != each.VAR_KEYWORD for each in parameters):
        return []
    return sorted(name for name in vars(kind()) if not name.startswith("_"))


def members(kind: type) -> Iterator[str]:
    """The public methods and properties that our own classes give it, by name."""
    found = {}
    for base in reversed([base for base in kind.__mro__ if is_ours(base)]):
        found.update(vars(base))
    for name, member in sorted(found.items()):
        if name.startswith("_") or hasattr(BaseModel, name):  # such as pydantic's hooks
            continue
        if isinstance(member, property):
            settable = "" if member.fset is None else ", settable"
            yield f"{name}: {signature(member.fget).partition(' -> ')[2]}{settable}"
        elif isinstance(member, (classmethod, staticmethod)):
            yield f"{type(member).__name__} {name}{signature(member.__func__)}"
        elif inspect.isfunction(member):
            yield f"{name}{signature(member)}"


@pytest.mark.clause("PACKAGE-6")
@pytest.mark.parametrize("package", [langchain_cursor, langchain_cursor_fakes])
def test_the_public_interface(package: ModuleType, snapshot: SnapshotAssertion) -> None:
    assert {name: described(getattr(package, name)) for name in package.__all__} == snapshot
