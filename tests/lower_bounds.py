"""`make test-min`: the oldest versions that this package says it works with, as requirements.

Only of what is installed for users: the tools of the tests come as new as they go with those.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import requires

from packaging.requirements import Requirement

# Typer's oldest works with a newer Click too, but makes it warn, which the tests take for an error.
WITH = ("click<8.3",)
NOT_WITH = "langchain-tests"  # it wants a newer httpx, so it is installed without what it wants
ITSELF = "langchain-cursor"
FOR_USERS = ("", "cli")  # the extras, "" for what is always installed


def lower_bounds(requirements: Iterable[str]) -> list[str]:
    """Pin each requirement that users install to the oldest version that it allows.

    Raises:
        ValueError: One has no lower bound, or several.
    """
    pins = []
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in FOR_USERS):
            continue
        oldest = [bound.version for bound in requirement.specifier if bound.operator == ">="]
        if len(oldest) != 1:
            raise ValueError(f"{requirement} has {len(oldest)} lower bounds")
        pins.append(f"{requirement.name}=={oldest[0]}")
    return pins


def tools(requirements: Iterable[str]) -> list[str]:
    """What the tests need beside that, but for what the oldest versions do not go with."""
    return [
        str(Requirement(f"{tool.name}{tool.specifier}"))
        for tool in map(Requirement, requirements)
        if tool.marker and tool.marker.evaluate({"extra": "test"})
        if not tool.marker.evaluate({"extra": "cli"}) and tool.name not in (NOT_WITH, ITSELF)
    ]


if __name__ == "__main__":
    needed = requires(ITSELF) or []
    print(*lower_bounds(needed), *WITH, *tools(needed), sep="\n")
