"""A catalog from the disk is whole, recent, this account's and this user's, or there is none."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import logging
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import cursor_sdk
import pytest
from cursor_sdk.types import SDKModel
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_cursor import ChatCursor, catalog
from langchain_cursor.bridge.process import node, vendored
from langchain_cursor.cache import cache_directory
from langchain_cursor.catalog import (
    MAX_AGE,
    MAX_BYTES,
    ModelInfo,
    ModelParameter,
    ModelVariant,
)
from langchain_cursor.credentials import DEFAULT_BACKEND
from langchain_cursor.errors import CursorModelNotFoundError
from langchain_cursor_fakes import CursorCloud

clause = pytest.mark.clause

REPOSITORY = Path(catalog.__file__).resolve().parent.parent
KEY = "crsr_catalog_0123456789abcdef"
NOW = 1_800_000_000.0
VARIABLE = "CURSOR_SDK_LOCAL_MODEL_CATALOG_JSON"

# One model with all that the cloud sends (by the types of @cursor/sdk 1.1.0), and one without.
COMPOSER: dict[str, Any] = {
    "id": "composer-2.5",
    "displayName": "Composer 2.5",
    "description": "Cursor's own",
    "aliases": ["composer", "composer-latest"],
    "parameters": [
        {
            "id": "effort",
            "displayName": "Effort",
            "values": [{"value": "low"}, {"value": "high", "displayName": "High"}],
        },
        {"id": "fast", "values": []},
    ],
    "variants": [
        {
            "params": [{"id": "effort", "value": "low"}, {"id": "fast", "value": "true"}],
            "displayName": "Low",
            "isDefault": True,
        },
        {
            "params": [{"id": "effort", "value": "high"}, {"id": "fast", "value": "true"}],
            "displayName": "High",
            "description": "Thinks long",
            "isMaxMode": True,
        },
        {
            "params": [{"id": "effort", "value": "high"}, {"id": "fast", "value": "false"}],
            "displayName": "",
            "isMaxMode": True,
        },
    ],
}
MODELS: list[dict[str, Any]] = [COMPOSER, {"id": "auto", "displayName": "Auto — モデル"}]
MINIMAL: list[dict[str, Any]] = [{"id": "auto"}]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own, which does not exist yet."""
    path = tmp_path / "cache"
    monkeypatch.setenv("LANGCHAIN_CURSOR_CACHE_DIR", str(path))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    return path


def store(models: object = MODELS, key: str = KEY, backend: str | None = None) -> None:
    catalog.store(key, backend, json.dumps(models), now=lambda: NOW)


def load(key: str = KEY, backend: str | None = None, at: float = NOW) -> Any:
    text = catalog.load(key, backend, now=lambda: at)
    return None if text is None else json.loads(text)


def stored(directory: Path) -> Path:
    """The one file in the cache."""
    (path,) = directory.iterdir()
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- what a model says ---


@clause("CATALOG-1")
def test_a_model_is_read_with_all_that_the_cloud_sends() -> None:
    assert ModelInfo.from_json(COMPOSER) == ModelInfo(
        id="composer-2.5",
        display_name="Composer 2.5",
        description="Cursor's own",
        aliases=("composer", "composer-latest"),
        parameters=(
            ModelParameter("effort", "Effort", ("low", "high")),
            ModelParameter("fast"),
        ),
        variants=(
            ModelVariant((("effort", "low"), ("fast", "true")), "Low", is_default=True),
            ModelVariant(
                (("effort", "high"), ("fast", "true")), "High", "Thinks long", is_max_mode=True
            ),
            ModelVariant((("effort", "high"), ("fast", "false")), is_max_mode=True),
        ),
    )


@clause("CATALOG-1")
def test_a_model_needs_no_more_than_an_id() -> None:
    nothing = dict.fromkeys(("displayName", "description", "aliases", "parameters", "variants"))
    for item in ({"id": "auto"}, {"id": "auto", **nothing}):
        assert ModelInfo.from_json(item) == ModelInfo("auto", "auto")


@clause("CATALOG-1")
def test_the_sdks_model_is_read_and_what_its_version_lacks_is_empty() -> None:
    model = ModelInfo.from_sdk(SDKModel.from_json(COMPOSER))
    full = ModelInfo.from_json(COMPOSER)
    known = {field.name for field in dataclasses.fields(SDKModel)}
    assert model.aliases == (full.aliases if "aliases" in known else ())
    assert dataclasses.replace(model, aliases=(), variants=()) == dataclasses.replace(
        full, aliases=(), variants=()
    )
    assert [(each.params, each.display_name, each.description) for each in model.variants] == [
        (each.params, each.display_name, each.description) for each in full.variants
    ]
    assert [each.is_default for each in model.variants] == [True, False, False]


@clause("CATALOG-1")
def test_a_later_sdks_aliases_and_max_mode_and_an_older_ones_bare_model_are_read() -> None:
    variant = SimpleNamespace(
        params=[SimpleNamespace(id="effort", value="high")],
        display_name="High",
        description="",
        is_default=False,
        is_max_mode=True,
    )
    later = SimpleNamespace(id="a", display_name="A", aliases=["b"], variants=[variant])
    assert ModelInfo.from_sdk(later) == ModelInfo(
        "a",
        "A",
        aliases=("b",),
        variants=(ModelVariant((("effort", "high"),), "High", "", False, True),),
    )
    assert ModelInfo.from_sdk(SimpleNamespace(id="a")) == ModelInfo("a", "a")


names = st.text(max_size=8)
models = st.builds(
    ModelInfo,
    id=st.text(min_size=1, max_size=8),
    display_name=names,
    description=names,
    aliases=st.lists(names, max_size=3).map(tuple),
    parameters=st.lists(
        st.builds(ModelParameter, names, names, st.lists(names, max_size=3).map(tuple)), max_size=3
    ).map(tuple),
    variants=st.lists(
        st.builds(
            ModelVariant,
            st.lists(st.tuples(names, names), max_size=3).map(tuple),
            names,
            names,
            st.booleans(),
            st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
)


@clause("CATALOG-1")
@given(models)
def test_a_model_survives_being_written_and_read(model: ModelInfo) -> None:
    assert ModelInfo.from_json(json.loads(json.dumps(model.to_json()))) == model


FOREIGN_MODELS: list[tuple[object, str]] = [
    ("auto", "a model is not an object"),
    ({"displayName": "Auto"}, "`id` is missing or not a text"),
    ({"id": 7}, "`id` is missing or not a text"),
    ({"id": ""}, "`id` is empty"),
    ({"id": "a", "displayName": ["A"]}, "`displayName` is missing or not a text"),
    ({"id": "a", "aliases": "b"}, "`aliases` is not an array"),
    ({"id": "a", "aliases": [1]}, "`aliases` holds something else than texts"),
    ({"id": "a", "parameters": {}}, "`parameters` is not an array"),
    ({"id": "a", "parameters": [{"id": "p", "values": ["x"]}]}, "a value is not an object"),
    ({"id": "a", "variants": ["x"]}, "a variant is not an object"),
    ({"id": "a", "variants": [{"displayName": "A"}]}, "`params` of a variant is missing"),
    # The SDK drops such a variant from the variable, but not from what it fetches.
    ({"id": "a", "variants": [{"params": []}]}, "`displayName` is missing or not a text"),
    (
        {"id": "a", "variants": [{"displayName": "A", "params": [{"id": "p", "value": 1}]}]},
        "`value` is missing or not a text",
    ),
]


@clause("CATALOG-1")
@pytest.mark.parametrize(("item", "message"), FOREIGN_MODELS)
def test_a_foreign_model_is_refused_with_the_field_that_is_wrong(
    item: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ModelInfo.from_json(item)


@clause("CATALOG-2")
@pytest.mark.parametrize("text", [json.dumps(MODELS), json.dumps({"items": MODELS, "next": 1})])
def test_a_catalog_is_an_array_of_models_or_an_object_with_one(text: str) -> None:
    assert catalog.parse(text) == tuple(ModelInfo.from_json(item) for item in MODELS)


FOREIGN_CATALOGS = [
    "",
    "{",
    "null",
    "7",
    '"auto"',
    "{}",
    '{"items": {}}',
    '{"models": [{"id": "auto"}]}',
    "[]",
    '{"items": []}',
    '["auto"]',
    '[{"id": "auto"}, {}]',
    '[{"id": "auto", "x": NaN}]',
    '[{"id": "auto", "x": -Infinity}]',
    '\ufeff[{"id": "auto"}]',
    '[{"id": "au\nto"}]',
]


@clause("CATALOG-2")
@pytest.mark.parametrize("text", FOREIGN_CATALOGS)
def test_anything_else_is_no_catalog(text: str, directory: Path) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        catalog.parse(text)
    catalog.store(KEY, None, text)
    assert not directory.exists()


# --- what the SDK makes of it ---

_CHECKS = """
const input = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
import(input.sdk).then(async (sdk) => {
  const real = globalThis.fetch;
  globalThis.fetch = async (url, init) =>
    String(url).endsWith("/v1/models")
      ? new Response(JSON.stringify({ items: input.fetched }))
      : real(url, init);
  const answers = [];
  for (const variable of [null, ...input.variables]) {
    if (variable !== null) process.env[input.name] = variable;
    const platform = await sdk.createAgentPlatform({ stateRoot: input.state });
    const answer = [];
    for (const selection of input.selections) {
      answer.push(
        await platform
          .resolveLocalModelSelection(selection, "crsr_key")
          .catch((error) => error.message),
      );
    }
    answers.push(answer);
  }
  require("node:fs").writeSync(1, JSON.stringify(answers));
  process.exit(0);
});
"""


@clause("CATALOG-3")
@pytest.mark.bridge
def test_the_sdks_check_decides_by_a_kept_catalog_as_by_a_fetched_one(
    cloud: CursorCloud, tmp_path: Path
) -> None:
    root = vendored(cursor_sdk.__file__)
    assert root is not None
    store()
    kept = catalog.load(KEY, None, now=lambda: NOW)
    rewritten = json.dumps([model.to_json() for model in catalog.parse(json.dumps(MODELS))])
    low, high, fast, slow = (
        {"id": "effort", "value": "low"},
        {"id": "effort", "value": "high"},
        {"id": "fast", "value": "true"},
        {"id": "fast", "value": "false"},
    )
    selections = [
        {"id": name, "params": params}
        for name in ("composer-2.5", "composer", "composer-latest", "auto", "Auto", "unknown")
        for params in ([], [low], [high], [fast], [slow], [high, slow], [low, slow])
    ]
    question = {
        "sdk": (root / "node_modules/@cursor/sdk/dist/esm/index.js").as_uri(),
        "name": VARIABLE,
        "state": str(tmp_path / "state"),
        "fetched": MODELS,
        "variables": [kept, rewritten],
        "selections": selections,
    }
    ran = subprocess.run(
        [str(node(root)), "-e", _CHECKS],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=60,
        env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "CURSOR_BACKEND_URL": cloud.url},
    )
    by_fetched, by_kept, by_rewritten = json.loads(ran.stdout)
    assert by_kept == by_fetched
    assert by_rewritten == by_fetched
    # The catalog matters to the answers.
    assert by_fetched[selections.index({"id": "composer", "params": [low]})]["id"] == "composer-2.5"
    assert "Cannot use this model: unknown" in by_fetched[-1]


@clause("CATALOG-3")
@pytest.mark.bridge
def test_a_model_with_a_kept_catalog_answers_by_its_alias_without_a_fetch(
    own_chat: Callable[..., ChatCursor], cloud: CursorCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()
    text = catalog.load(KEY, None, now=lambda: NOW)
    assert text is not None
    monkeypatch.setenv(VARIABLE, text)
    own_chat(model="composer").invoke("hello")
    assert cloud.runs[-1].received.model == "composer-2.5"
    assert cloud.catalog_fetches == 0
    with pytest.raises(CursorModelNotFoundError, match=r"Available models: composer-2\.5, auto"):
        own_chat(model="unknown").invoke("hello")


# --- where it is kept ---


@contextmanager
def homeless() -> Iterator[None]:
    """As for a user id without an entry in the list of users."""
    with (
        patch.dict(os.environ, clear=True),
        patch.object(Path, "home", side_effect=RuntimeError("Could not determine home directory.")),
    ):
        yield


@clause("CATALOG-4")
def test_without_a_home_directory_nothing_is_cached_and_nothing_fails() -> None:
    with homeless():
        assert cache_directory() is None
        store()
        assert load() is None
        catalog.forget(KEY, None)


@clause("CATALOG-4")
def test_it_is_kept_in_the_packages_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LANGCHAIN_CURSOR_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store()
    assert stored(tmp_path / "langchain-cursor").name.startswith("models-")


# --- storing and loading ---


@clause("CATALOG-5")
@pytest.mark.parametrize("models", [MODELS, MINIMAL, {"items": MODELS}])
def test_what_was_stored_is_loaded(models: object) -> None:
    store(models)
    assert load() == (models["items"] if isinstance(models, dict) else models)


@clause("CATALOG-5")
def test_fields_that_nobody_here_knows_are_kept() -> None:
    models = [
        {"id": "auto", "price": {"input": 1.25, "big": 10**30}, "tags": [None, True, "\u2028"]}
    ]
    store(models)
    assert load() == models


@clause("CATALOG-5")
@given(st.lists(models, min_size=1, max_size=4))
@settings(max_examples=50)
def test_any_catalog_survives_the_disk_as_ascii(infos: list[ModelInfo]) -> None:
    with tempfile.TemporaryDirectory() as cache:
        with patch.dict(os.environ, LANGCHAIN_CURSOR_CACHE_DIR=cache):
            catalog.store(KEY, None, json.dumps([model.to_json() for model in infos]))
            text = catalog.load(KEY, None)
        assert text is not None
        assert text.isascii()
        assert text.isprintable()
        assert catalog.parse(text) == tuple(infos)


@clause("CATALOG-5")
def test_a_later_catalog_takes_the_place_of_an_earlier_one(directory: Path) -> None:
    store(MINIMAL)
    store(MODELS)
    assert load() == MODELS
    assert stored(directory).is_file()


@clause("CATALOG-5")
def test_nothing_stored_is_nothing_loaded(directory: Path) -> None:
    assert load() is None
    assert not directory.exists()


@clause("CATALOG-6")
def test_each_key_and_each_backend_has_a_catalog_of_its_own() -> None:
    accounts = [(KEY, None), (KEY + "x", None), (KEY, "https://other.example")]
    for number, (key, backend) in enumerate(accounts):
        store([{"id": f"model-{number}"}], key, backend)
    for number, (key, backend) in enumerate(accounts):
        assert load(key, backend) == [{"id": f"model-{number}"}]


@clause("CATALOG-6")
def test_two_spellings_of_one_backend_have_one_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    store()
    assert load(backend=DEFAULT_BACKEND) == MODELS
    assert load(backend=f" {DEFAULT_BACKEND}// ") == MODELS
    monkeypatch.setenv("CURSOR_BACKEND_URL", "https://other.example/")
    assert load() is None
    store(MINIMAL)
    assert load(backend="https://other.example") == MINIMAL


@clause("CATALOG-6")
def test_a_key_and_a_backend_do_not_run_into_each_other() -> None:
    store(key="crsr_a", backend="b/c")
    assert load(key="crsr_ab", backend="/c") is None
    assert load(key="crsr_a\0b", backend="c") is None


@clause("CATALOG-6")
def test_a_file_under_another_accounts_name_is_not_loaded(directory: Path) -> None:
    store()
    mine = stored(directory)
    store(MINIMAL, key="crsr_other")
    (other,) = set(directory.iterdir()) - {mine}
    os.replace(other, mine)
    assert load() is None


@clause("CATALOG-6")
def test_a_deleted_catalog_is_gone_and_others_stay(directory: Path) -> None:
    catalog.forget(KEY, None)
    store()
    store(MINIMAL, key="crsr_other")
    catalog.forget(KEY, None)
    assert load() is None
    assert load("crsr_other") == MINIMAL
    assert len(list(directory.iterdir())) == 1


# --- age ---


@clause("CATALOG-7")
@pytest.mark.parametrize(
    ("age", "loaded"),
    [(0, True), (1, True), (MAX_AGE - 1, True), (MAX_AGE, True), (MAX_AGE + 1, False), (-1, False)],
)
def test_a_catalog_is_good_for_a_day_to_the_second(age: float, loaded: bool) -> None:
    assert MAX_AGE == 24 * 60 * 60
    store()
    assert (load(at=NOW + age) == MODELS) is loaded


@clause("CATALOG-7")
def test_the_age_counts_from_storing_whatever_the_file_systems_clock_says(directory: Path) -> None:
    store()
    os.utime(stored(directory), (1, 1))
    assert load() == MODELS
    os.utime(stored(directory), (NOW + 2 * MAX_AGE, NOW + 2 * MAX_AGE))
    assert load(at=NOW + MAX_AGE + 1) is None


@clause("CATALOG-7")
def test_storing_again_starts_the_day_again_and_the_system_clock_is_the_default() -> None:
    store()
    assert catalog.load(KEY, None, now=lambda: NOW + MAX_AGE + 1) is None
    catalog.store(KEY, None, json.dumps(MODELS))
    assert catalog.load(KEY, None) is not None
    assert catalog.load(KEY, None, now=lambda: time.time() + MAX_AGE + 60) is None


# --- what is not trusted ---


def change(directory: Path, **changes: Any) -> None:
    """Alter fields of the stored record; `...` takes one out."""
    path = stored(directory)
    record = {**json.loads(path.read_bytes()), **changes}
    path.write_text(json.dumps({name: v for name, v in record.items() if v is not ...}))


@clause("CATALOG-8")
@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"format": "1"},
        {"format": ...},
        {"account": "0" * 32},
        {"account": ...},
        {"stored_at": ...},
        {"stored_at": None},
        {"stored_at": str(NOW)},
        {"stored_at": 10**400},
        {"stored_at": float("nan")},
        {"stored_at": float("inf")},
        {"models": ...},
        {"models": []},
        {"models": None},
        {"models": json.dumps(MODELS)},
        *({"models": [*MODELS, item]} for item, _ in FOREIGN_MODELS),
    ],
)
def test_a_record_of_another_form_is_not_loaded(changes: dict[str, Any], directory: Path) -> None:
    store()
    change(directory)
    assert load() == MODELS
    change(directory, **changes)
    assert load() is None


@clause("CATALOG-8")
def test_a_record_cut_short_anywhere_is_not_loaded(directory: Path) -> None:
    store()
    path = stored(directory)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert load() is None
    path.write_bytes(whole)
    assert load() == MODELS


@clause("CATALOG-8")
def test_a_number_that_only_python_would_write_as_infinity_is_neither_stored_nor_loaded(
    directory: Path,
) -> None:
    catalog.store(KEY, None, '[{"id": "auto", "price": 1e999}]')
    assert not directory.exists()
    store([{"id": "auto", "price": 0.125}])
    path = stored(directory)
    path.write_text(path.read_text().replace("0.125", "1e999"))
    assert load() is None


@clause("CATALOG-8")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 4096,
        b"\xff\xfe[]",
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b"9" * 100_000,
        b"[]",
        b'"text"',
    ],
    ids=["empty", "zeros", "not-text", "deep", "deep-objects", "number", "array", "string"],
)
def test_a_damaged_file_is_not_loaded(content: bytes, directory: Path) -> None:
    store()
    stored(directory).write_bytes(content)
    assert load() is None


@clause("CATALOG-8")
def test_a_file_of_more_than_five_megabytes_is_not_loaded(directory: Path) -> None:
    assert MAX_BYTES == 5_000_000
    store()
    path = stored(directory)
    whole = path.read_bytes()
    path.write_bytes(whole + b" " * (MAX_BYTES - len(whole)))
    assert load() == MODELS
    path.write_bytes(whole + b" " * (MAX_BYTES - len(whole) + 1))
    assert load() is None


@clause("CATALOG-8")
def test_a_huge_file_is_refused_without_reading_it(directory: Path) -> None:
    store()
    os.truncate(stored(directory), 2**40)
    started = time.monotonic()
    assert load() is None
    assert time.monotonic() - started < 1


@clause("CATALOG-8")
def test_a_catalog_of_more_than_five_megabytes_is_not_stored(directory: Path) -> None:
    store([{"id": "auto", "description": "x" * MAX_BYTES}])
    assert not directory.exists()
    store([{"id": "auto", "description": "x" * (MAX_BYTES - 1000)}])
    assert load() is not None


@clause("CATALOG-8")
@pytest.mark.parametrize(
    ("bits", "loaded"),
    [(0o600, True), (0o644, True), (0o400, True), (0o620, False), (0o602, False), (0o666, False)],
)
def test_a_file_that_others_can_write_to_is_not_loaded(
    bits: int, loaded: bool, directory: Path
) -> None:
    store()
    stored(directory).chmod(bits)
    assert (load() == MODELS) is loaded


@clause("CATALOG-8")
@clause("SECURITY-13")
def test_another_users_file_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    store()
    assert load() == MODELS
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert load() is None


@clause("CATALOG-8")
@clause("SECURITY-13")
def test_a_symbolic_link_is_neither_read_nor_written_through(
    directory: Path, tmp_path: Path
) -> None:
    store()
    path, elsewhere = stored(directory), tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert load() is None
    before = elsewhere.read_bytes()
    store(MINIMAL)
    assert load() == MINIMAL
    assert not path.is_symlink()
    assert elsewhere.read_bytes() == before
    path.unlink()
    path.symlink_to(elsewhere)
    catalog.forget(KEY, None)
    assert not path.is_symlink()
    assert elsewhere.read_bytes() == before


@clause("CATALOG-8")
def test_a_link_on_windows_is_not_loaded_either(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()
    path, elsewhere = stored(directory), tmp_path / "elsewhere"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "O_NOFOLLOW")
    assert load() == MODELS
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert load() is None


@clause("CATALOG-8")
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_directory_in_the_files_place_neither_hangs_nor_fails(
    make: Callable[[Path], None], directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "langchain_cursor")
    store()
    path = stored(directory)
    path.unlink()
    make(path)
    open_before = len(os.listdir("/dev/fd"))
    started = time.monotonic()
    assert load() is None
    assert time.monotonic() - started < 1
    assert "it is not a regular file" in caplog.text
    assert len(os.listdir("/dev/fd")) == open_before
    if make is os.mkdir:
        store()
        catalog.forget(KEY, None)
        assert list(directory.iterdir()) == [path]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "displayName",
                    "aliases",
                    "parameters",
                    "variants",
                    "params",
                    "value",
                    "items",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


def strict(text: str) -> Any:
    """Read JSON as JavaScript does."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {text!r}")

    return json.loads(text, parse_constant=refuse)


@clause("CATALOG-8")
@given(
    content=st.binary(max_size=300)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.fixed_dictionaries(
        {
            "format": st.just(1) | json_values,
            "account": st.just(...) | json_values,
            "stored_at": st.just(NOW) | json_values,
            "models": json_values
            | st.lists(json_values, min_size=1, max_size=3)
            | st.lists(
                st.fixed_dictionaries(
                    {"id": st.text(max_size=3)},
                    optional=dict.fromkeys(
                        ("displayName", "aliases", "variants", "other"), json_values
                    ),
                ),
                min_size=1,
                max_size=2,
            ),
        }
    )
)
def test_whatever_the_file_holds_load_gives_a_valid_catalog_or_none(content: Any) -> None:
    with (
        tempfile.TemporaryDirectory() as cache,
        patch.dict(os.environ, LANGCHAIN_CURSOR_CACHE_DIR=cache),
    ):
        store()
        path = stored(Path(cache))
        account = json.loads(path.read_bytes())["account"]
        if isinstance(content, dict):
            if content["account"] is ...:
                content = {**content, "account": account}
            content = json.dumps(content).encode()
        path.write_bytes(content)
        text = catalog.load(KEY, None, now=lambda: NOW)
        if text is not None:
            assert catalog.parse(text)
            assert strict(text) == json.loads(content)["models"]


# --- the disk ---


@clause("CATALOG-9")
def test_the_file_and_its_directory_are_for_this_user_alone(directory: Path) -> None:
    before = os.umask(0)
    try:
        store()
    finally:
        os.umask(before)
    assert mode(directory) == 0o700
    assert mode(stored(directory)) == 0o600


@clause("CATALOG-9")
def test_directories_above_are_made_and_one_that_exists_is_left_as_it_is(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.mkdir()
    directory.chmod(0o755)
    inner = directory / "a" / "b"
    monkeypatch.setenv("LANGCHAIN_CURSOR_CACHE_DIR", str(inner))
    store()
    assert load() == MODELS
    assert mode(inner) == 0o700
    assert mode(directory) == 0o755


@clause("CATALOG-10")
@pytest.mark.parametrize("place", ["", "below"])
def test_a_directory_that_cannot_be_made_means_no_caching(
    place: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write_text("a file")
    monkeypatch.setenv("LANGCHAIN_CURSOR_CACHE_DIR", str(directory / place))
    store()
    assert load() is None
    catalog.forget(KEY, None)
    assert directory.read_text() == "a file"


@clause("CATALOG-10")
def test_a_read_only_file_system_means_no_change(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "mkstemp", refuse)
        patched.setattr(Path, "unlink", refuse)
        store(MINIMAL)
        catalog.forget(KEY, None)
    assert load() == MODELS


@clause("CATALOG-10")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_leaves_the_earlier_catalog_and_no_scrap(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()

    def full(*_: object, **named: str) -> tuple[int, str]:
        scrap = Path(named["dir"]) / f"{named['prefix']}aaaaaaaa{named['suffix']}"
        scrap.touch()
        return os.open("/dev/full", os.O_WRONLY), str(scrap)

    monkeypatch.setattr(tempfile, "mkstemp", full)
    store(MINIMAL)
    assert load() == MODELS
    assert stored(directory).suffix == ".json"


@clause("CATALOG-10")
def test_a_failed_or_interrupted_replacement_leaves_no_scrap(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()
    failure: BaseException = PermissionError("a reader has it open")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(os, "replace", fail)
    store(MINIMAL)
    failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        store(MINIMAL)
    assert load() == MODELS
    assert stored(directory).suffix == ".json"


@clause("CATALOG-11")
def test_storing_sweeps_away_old_catalogs_and_scraps_and_nothing_else(directory: Path) -> None:
    catalog.store(KEY, None, json.dumps(MODELS))
    mine = stored(directory)
    account = "0123456789abcdef" * 2
    old = [f"models-{account}.json", f"models-{account}.json.abcd_123.tmp"]
    foreign = [
        "models.json",
        f"models-{account}.json.bak",
        f"my-models-{account}.json",
        "notes.txt",
    ]
    recent = [f"models-{account[::-1]}.json", f"models-{account[::-1]}.json.abcd_123.tmp"]
    for name in (*old, *foreign, *recent):
        (directory / name).write_text("x")
    for name in (*old, *foreign):
        os.utime(directory / name, (time.time() - MAX_AGE - 60,) * 2)
    catalog.store(KEY, None, json.dumps(MINIMAL))
    left = sorted(path.name for path in directory.iterdir())
    assert left == sorted([mine.name, *foreign, *recent])


@clause("CATALOG-11")
def test_a_file_that_another_process_sweeps_first_does_not_stop_the_sweep(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "langchain_cursor")
    directory.mkdir()
    for number in range(3):
        (directory / f"models-{number:032x}.json").touch()
        os.utime(directory / f"models-{number:032x}.json", (1, 1))
    unlink = os.unlink

    def unlink_twice(path: str) -> None:
        unlink(path)
        monkeypatch.setattr(os, "unlink", unlink)
        unlink(path)

    monkeypatch.setattr(os, "unlink", unlink_twice)
    store()
    assert load() == MODELS
    assert stored(directory).is_file()
    assert caplog.text == ""


# --- secrets ---


@clause("CATALOG-12")
@clause("SECURITY-14")
@clause("SECURITY-7")
def test_nothing_of_the_key_is_on_disk_in_logs_or_in_errors(
    directory: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    backend = "https://me:passw0rd@other.example"
    load(backend=backend)
    store(backend=backend)
    path = stored(directory)
    assert path.name.startswith("models-")
    assert len(path.name) == len("models-.json") + 32
    written = path.name + path.read_text()
    for content in ("{", "[]", json.dumps({"format": 1, "account": KEY})):
        path.write_text(content)
        assert load(backend=backend) is None
    catalog.store(KEY, backend, f'[{{"id": 1, "x": "{KEY}"}}]')
    catalog.store(KEY, backend, f'[{{"id": "{KEY}')
    path.unlink()
    directory.rmdir()
    directory.write_text("a file")
    store(backend=backend)
    catalog.forget(KEY, backend)
    with pytest.raises(ValueError, match="not a text") as caught:
        catalog.parse(f'[{{"id": ["{KEY}"]}}]')
    assert len(caplog.records) >= 7
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    said = written + caplog.text + str(caught.value)
    for secret in (KEY, KEY.removeprefix("crsr_"), KEY[-8:], "passw0rd", "other.example"):
        assert secret not in said
    assert str(tmp_path) not in caplog.text


@clause("CATALOG-12")
def test_the_hash_in_the_name_is_no_plain_hash_of_the_key(directory: Path) -> None:
    store()
    name = stored(directory).stem.removeprefix("models-")
    assert not hashlib.sha256(KEY.encode()).hexdigest().startswith(name)


@clause("CATALOG-12")
def test_the_reason_for_having_no_catalog_is_told_at_debug(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "langchain_cursor")
    load()
    store()
    stored(directory).chmod(0o666)
    load()
    load(at=NOW + MAX_AGE + 1)
    stored(directory).chmod(0o600)
    load(at=NOW + MAX_AGE + 1)
    catalog.store(KEY, None, "[]")
    assert [record.getMessage() for record in caplog.records] == [
        "There is no cached model catalog: No such file or directory",
        "There is no cached model catalog: others can write to it",
        "There is no cached model catalog: others can write to it",
        "There is no cached model catalog: it is not of the last day",
        "The model catalog is not cached: it lists no models",
    ]


# --- several processes ---


@contextmanager
def running(code: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Python code in a process of its own with the same cache, killed in the end."""
    environment = {"PYTHONPATH": str(REPOSITORY), "HOME": str(directory.parent)}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**environment, "LANGCHAIN_CURSOR_CACHE_DIR": str(directory)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@clause("CATALOG-13")
def test_processes_that_store_at_once_leave_whole_files(directory: Path) -> None:
    expected = [
        [{"id": "auto", "description": str(writer) * 100_000 * writer}] for writer in range(1, 4)
    ]
    seen = set()
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                running(
                    f"""
                    import json
                    from langchain_cursor import catalog
                    models = [{{"id": "auto", "description": "{writer}" * 100_000 * {writer}}}]
                    text = json.dumps(models)
                    print("ready", flush=True)
                    for _ in range(50):
                        catalog.store({KEY!r}, None, text, now=lambda: {NOW})
                    """,
                    directory,
                )
            )
            for writer in range(1, 4)
        ]
        for process in writers:
            assert next_line(process) == "ready"
        while load() is None:
            assert any(process.poll() is None for process in writers)
        while any(process.poll() is None for process in writers):
            loaded = load()
            assert loaded in expected
            seen.add(expected.index(loaded))
        assert [process.wait(60) for process in writers] == [0] * 3
    assert len(seen) > 1
    assert load() in expected
    assert stored(directory).suffix == ".json"


@clause("CATALOG-13")
def test_a_writer_killed_in_the_middle_leaves_the_earlier_catalog(directory: Path) -> None:
    store()
    code = f"""
        import os, time
        from langchain_cursor import catalog
        os.replace = lambda *_: (print("writing", flush=True), time.sleep(60))
        catalog.store({KEY!r}, None, '[{{"id": "auto"}}]')
        """
    with running(code, directory) as process:
        assert next_line(process) == "writing"
        process.kill()
        process.wait(60)
    assert load() == MODELS
    scraps = [path for path in directory.iterdir() if path.suffix == ".tmp"]
    assert len(scraps) == 1
    os.utime(scraps[0], (1, 1))
    catalog.store(KEY, None, json.dumps(MODELS))
    assert stored(directory).suffix == ".json"
