"""The account's model catalog, kept on disk for a day so that later processes need not fetch it.

Before it creates a local agent, the Cursor SDK fetches the list of models that the account may use
and checks the requested one against it. It takes the list from the environment variable
CURSOR_SDK_LOCAL_MODEL_CATALOG_JSON instead, if that is set.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_cursor.cache import cache_directory
from langchain_cursor.credentials import DEFAULT_BACKEND

logger = logging.getLogger("langchain_cursor")

MAX_AGE = 86_400.0  # seconds
MAX_BYTES = 5_000_000

_FORMAT = 1
_NAME = re.compile(r"models-[0-9a-f]{32}\.json(\.[a-z0-9_]{8}\.tmp)?")


@dataclass(frozen=True)
class ModelParameter:
    """A parameter that a model takes.

    Args:
        id: Its name in `ChatCursor(model_params=...)`.
        display_name: Its name for people.
        values: The values it may have.
    """

    id: str
    display_name: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelVariant:
    """One combination of parameters in which a model is offered.

    Args:
        params: The parameters' ids and values.
        display_name: Its name for people.
        description: What it is for.
        is_default: Whether a request without parameters gets this one.
        is_max_mode: Whether it only runs in Cursor's max mode. The SDK turns max mode on for a
            request if every variant that agrees with the request's parameters needs it.
    """

    params: tuple[tuple[str, str], ...] = ()
    display_name: str = ""
    description: str = ""
    is_default: bool = False
    is_max_mode: bool = False


@dataclass(frozen=True)
class ModelInfo:
    """A model that an account may use.

    Args:
        id: What to pass as `ChatCursor(model=...)`.
        display_name: Its name for people.
        description: What it is for.
        aliases: Other ids that the SDK accepts for it.
        parameters: What it takes as `ChatCursor(model_params=...)`.
        variants: The combinations of parameters in which it is offered.

    Example:
        >>> model = ModelInfo.from_json({"id": "composer-2.5", "aliases": ["composer"]})
        >>> model.display_name, model.aliases
        ('composer-2.5', ('composer',))
    """

    id: str
    display_name: str
    description: str = ""
    aliases: tuple[str, ...] = ()
    parameters: tuple[ModelParameter, ...] = ()
    variants: tuple[ModelVariant, ...] = ()

    @classmethod
    def from_sdk(cls, sdk_model: Any) -> ModelInfo:
        """Read a `cursor_sdk.SDKModel`; what that version's class lacks is empty.

        From 1.0.24 to 1.1.0 the list that reaches Python carries neither aliases nor max mode.
        It is good for showing, but a catalog made of it must not be given to `store`: the SDK
        would refuse aliases, and run in normal mode what needs max mode.
        """
        return cls(
            id=sdk_model.id,
            display_name=getattr(sdk_model, "display_name", "") or sdk_model.id,
            description=getattr(sdk_model, "description", "") or "",
            aliases=tuple(getattr(sdk_model, "aliases", None) or ()),
            parameters=tuple(
                ModelParameter(each.id, each.display_name, tuple(v.value for v in each.values))
                for each in getattr(sdk_model, "parameters", ())
            ),
            variants=tuple(
                ModelVariant(
                    params=tuple((param.id, param.value) for param in each.params),
                    display_name=each.display_name,
                    description=each.description,
                    is_default=each.is_default,
                    is_max_mode=bool(getattr(each, "is_max_mode", False)),
                )
                for each in getattr(sdk_model, "variants", ())
            ),
        )

    @classmethod
    def from_json(cls, item: object) -> ModelInfo:
        """Read one entry of a catalog, as Cursor's cloud sends it.

        Raises:
            ValueError: It has not that form. The message names the field and shows no content.
        """
        model = _object(item, "a model")
        model_id = _text(model, "id")
        if not model_id:
            raise ValueError("`id` is empty")
        return cls(
            id=model_id,
            display_name=_text(model, "displayName", model_id),
            description=_text(model, "description", ""),
            aliases=tuple(_texts(_list(model, "aliases"), "aliases")),
            parameters=tuple(_parameter(each) for each in _list(model, "parameters")),
            variants=tuple(_variant(each) for each in _list(model, "variants")),
        )

    def to_json(self) -> dict[str, Any]:
        """Write it as an entry of a catalog that the SDK's check reads like the original."""
        parameters = [
            {
                "id": each.id,
                "displayName": each.display_name,
                "values": [{"value": value} for value in each.values],
            }
            for each in self.parameters
        ]
        variants = [
            {
                "params": [{"id": name, "value": value} for name, value in each.params],
                # cursor-sdk 1.1.0 drops a variant that has no name, even an empty one.
                "displayName": each.display_name,
                "description": each.description,
                "isDefault": each.is_default,
                "isMaxMode": each.is_max_mode,
            }
            for each in self.variants
        ]
        optional: dict[str, Any] = {
            "description": self.description,
            "aliases": list(self.aliases),
            "parameters": parameters,
            "variants": variants,
        }
        written = {name: value for name, value in optional.items() if value}
        return {"id": self.id, "displayName": self.display_name, **written}


def parse(catalog_json: str) -> tuple[ModelInfo, ...]:
    """Read a catalog: a JSON array of models, or an object that holds it as `items`.

    Raises:
        ValueError: It is not JSON, has another form, or lists no model. The message shows no
            content.

    Example:
        >>> [model.id for model in parse('{"items": [{"id": "auto"}, {"id": "composer-2.5"}]}')]
        ['auto', 'composer-2.5']
    """
    return tuple(ModelInfo.from_json(item) for item in _items(_decode(catalog_json)))


def load(api_key: str, backend: str | None, *, now: Callable[[], float] = time.time) -> str | None:
    """Get the catalog of an account from the disk.

    It blocks on the disk, for about as long as it takes to parse the catalog.

    Args:
        api_key: The account's key.
        backend: Cursor's backend; None for CURSOR_BACKEND_URL, or else Cursor's own.
        now: The clock, in seconds since 1970.

    Returns:
        A JSON array of models in ASCII, with every field that `store` was given, as
        CURSOR_SDK_LOCAL_MODEL_CATALOG_JSON takes it. None if there is no catalog, or none that
        can be trusted: older than `MAX_AGE` or from the future, larger than `MAX_BYTES`,
        damaged, of another form or version, stored for another account, not a regular file, owned
        by another user, or writable by others. It never raises; the reason is logged at DEBUG.
    """
    directory = cache_directory()
    if directory is None:
        return None
    account = _account(api_key, backend)
    try:
        record = _object(_decode(_read(directory / _name(account)).decode("ascii")), "the record")
        if record.get("format") != _FORMAT:
            raise ValueError("it is of another format version")
        if record.get("account") != account:
            raise ValueError("it is of another account")
        stored_at = record.get("stored_at")
        if not isinstance(stored_at, (int, float)) or not 0 <= now() - stored_at <= MAX_AGE:
            raise ValueError("it is not of the last day")
        return _encode(_valid(record.get("models")))
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        logger.debug("There is no cached model catalog: %s", _reason(error))
        return None


def store(
    api_key: str,
    backend: str | None,
    catalog_json: str,
    *,
    now: Callable[[], float] = time.time,
) -> None:
    """Keep the catalog of an account on disk, readable by this user alone.

    It never raises. If the catalog is not one, is larger than `MAX_BYTES`, or cannot be written,
    nothing is kept and the reason is logged at DEBUG.

    Args:
        api_key: The account's key. Of it and the backend, only a hash goes to the disk.
        backend: Cursor's backend, as for `load`.
        catalog_json: What the backend sent, whole (the body of ``GET /v1/models``); not what the
            SDK's `list_models` returns, which lacks fields (see `ModelInfo.from_sdk`).
        now: The clock, in seconds since 1970.
    """
    directory = cache_directory()
    if directory is None:
        return
    account = _account(api_key, backend)
    try:
        record = {
            "format": _FORMAT,
            "account": account,
            "stored_at": now(),
            "models": _valid(_decode(catalog_json)),
        }
        content = _encode(record).encode("ascii")
        if len(content) > MAX_BYTES:
            raise ValueError("it is too large")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(directory / _name(account), content)
        _sweep(directory)
    except (OSError, ValueError, RecursionError) as error:
        logger.debug("The model catalog is not cached: %s", _reason(error))


def forget(api_key: str, backend: str | None) -> None:
    """Delete the catalog of an account from the disk, for example when it lacks a model.

    It never raises.

    Args:
        api_key: The account's key.
        backend: Cursor's backend, as for `load`.
    """
    directory = cache_directory()
    if directory is None:
        return
    try:
        (directory / _name(_account(api_key, backend))).unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        logger.debug("The cached model catalog cannot be deleted: %s", _reason(error))


def _account(api_key: str, backend: str | None) -> str:
    """The hash that stands for a key and its backend.

    It needs no salt: keys are random and too long to be found by trying. With the backend in it, it
    is not a hash that another program may have of the key.
    """
    url = backend or os.environ.get("CURSOR_BACKEND_URL") or DEFAULT_BACKEND
    account = f"{api_key}\0{url.strip().rstrip('/')}"
    return hashlib.sha256(account.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _name(account: str) -> str:
    return f"models-{account}.json"


def _read(path: Path) -> bytes:
    if sys.platform == "win32" and path.is_symlink():  # no O_NOFOLLOW there
        raise ValueError("it is a symbolic link")
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):  # nonblocking: it may be a named pipe
        flags |= getattr(os, name, 0)
    file = os.open(path, flags)
    try:
        if fault := _fault_of(os.fstat(file)):
            raise ValueError(fault)
        with open(file, "rb", closefd=False) as stream:
            content = stream.read(MAX_BYTES + 1)
    finally:
        os.close(file)
    if len(content) > MAX_BYTES:
        raise ValueError("it is too large")
    return content


def _fault_of(info: os.stat_result) -> str:
    if not stat.S_ISREG(info.st_mode):
        return "it is not a regular file"
    if sys.platform != "win32":
        if info.st_uid != os.geteuid():
            return "it belongs to another user"
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "others can write to it"
    return ""


def _replace(path: Path, content: bytes) -> None:
    """Write a file as a whole, with mode 0600: readers see the old one or the new one."""
    file, temporary = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(file, "wb") as stream:
            stream.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _sweep(directory: Path) -> None:
    """Delete old catalogs of any account, and what killed writers have left."""
    before = time.time() - MAX_AGE
    with os.scandir(directory) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):  # another process may be sweeping too
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        os.unlink(entry.path)


def _decode(text: str) -> Any:
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    # Python's reader takes NaN and Infinity, the SDK's does not.
    raise ValueError(f"{name} is not JSON")


def _encode(value: object) -> str:
    # ASCII passes through an environment in any locale.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _items(catalog: object) -> list[Any]:
    items = catalog.get("items") if isinstance(catalog, dict) else catalog
    if not isinstance(items, list):
        raise ValueError("it is neither an array nor an object with an array of `items`")
    if not items:  # the SDK would refuse every model
        raise ValueError("it lists no models")
    return items


def _valid(catalog: object) -> list[Any]:
    """The models as they came, with fields that nobody here knows."""
    items = _items(catalog)
    for item in items:
        ModelInfo.from_json(item)
    return items


def _parameter(value: object) -> ModelParameter:
    parameter = _object(value, "a parameter")
    values = [_text(_object(each, "a value"), "value") for each in _list(parameter, "values")]
    return ModelParameter(
        _text(parameter, "id"), _text(parameter, "displayName", ""), tuple(values)
    )


def _variant(value: object) -> ModelVariant:
    variant = _object(value, "a variant")
    if not isinstance(variant.get("params"), list):
        raise ValueError("`params` of a variant is missing or of another type")
    params = [_object(each, "a parameter of a variant") for each in variant["params"]]
    return ModelVariant(
        params=tuple((_text(param, "id"), _text(param, "value")) for param in params),
        display_name=_text(variant, "displayName"),
        description=_text(variant, "description", ""),
        is_default=variant.get("isDefault") is True,
        is_max_mode=variant.get("isMaxMode") is True,
    )


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def _list(item: Mapping[str, Any], name: str) -> list[Any]:
    value = item.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is not an array")
    return value


def _text(item: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = item.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise ValueError(f"`{name}` is missing or not a text")
    return value


def _texts(values: list[Any], name: str) -> list[str]:
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"`{name}` holds something else than texts")
    return values


def _reason(error: Exception) -> str:
    # An OSError's own text would name the file.
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
