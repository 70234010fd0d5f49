"""Other SDKs than the installed one, for the real bridge."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import cursor_sdk


@dataclasses.dataclass(frozen=True)
class OldAgentOptions:
    """`AgentOptions` as it was before cursor-sdk 1.0.29: without `tools`."""

    model: Any = None
    api_key: str | None = None
    local: Any = None

    def to_json(self) -> dict[str, Any]:
        return cursor_sdk.AgentOptions(self.model, self.api_key, local=self.local).to_json()


class OldClient(cursor_sdk.AsyncClient):
    """Knows its own options class."""

    async def create_agent(self, options: Any = None, **named: Any) -> Any:
        return await super().create_agent(options.to_json(), **named)


def older_sdk() -> ModuleType:
    """The installed SDK with the options of an older one, on the real bridge."""
    return _changed(AgentOptions=OldAgentOptions, AsyncClient=OldClient)


def sdk_without_sandbox(directory: Path) -> ModuleType:
    """The SDK from a copy of its files, in `directory`, in which the sandbox does not work."""
    bridge = directory / "cursor_sdk" / "_vendor" / "bridge"
    installed = Path(cursor_sdk.__file__).parent
    # Whole, for Node follows links to where the other modules are; of links, for it is 170 MB.
    shutil.copytree(installed / "_vendor" / "bridge", bridge, copy_function=_link)
    (helper,) = bridge.glob("node_modules/@cursor/sdk-*/bin/cursorsandbox")
    helper.unlink()
    helper.write_text("#!/bin/sh\nexit 1\n")
    helper.chmod(0o755)
    return _changed(__file__=str(directory / "cursor_sdk" / "__init__.py"))


def _changed(**changed: Any) -> ModuleType:
    module = ModuleType("cursor_sdk")
    vars(module).update(
        {name: value for name, value in vars(cursor_sdk).items() if not name.startswith("__")},
        __file__=cursor_sdk.__file__,
    )
    vars(module).update(changed)
    return module


def _link(source: str, target: str) -> str:
    try:
        Path(target).hardlink_to(source)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target
