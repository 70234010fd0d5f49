"""ChatCursor's parameters, and what LangChain reads off it, without a bridge."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.load import dumpd, dumps, load
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.rate_limiters import InMemoryRateLimiter
from pydantic import ValidationError

from langchain_cursor import ChatCursor, CursorAuthenticationError, UnsupportedContentError

KEY = "crsr_very_secret_0123456789"


@pytest.mark.clause("CHAT-13")
def test_the_defaults() -> None:
    llm = ChatCursor()
    assert (llm.model, llm.keep_alive, llm.sandbox, llm.timeout, llm.max_retries) == (
        "composer-2.5", 60.0, True, 600.0, 2,
    )  # fmt: skip
    assert (llm.stop, llm.model_params, llm.bridge_extension, llm.sdk_loader) == (
        None, None, True, None,
    )  # fmt: skip


@pytest.mark.clause("CHAT-13")
def test_model_name_is_another_name_for_model() -> None:
    assert ChatCursor(model_name="auto").model == "auto"  # type: ignore[call-arg] # the alias
    assert ChatCursor(model="auto").model_name == "auto"


@pytest.mark.clause("CHAT-14")
def test_an_unknown_argument_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r"no parameter 'modle'.*keep_alive"):
        ChatCursor(modle="auto")  # type: ignore[call-arg] # that is the point


@pytest.mark.clause("CHAT-14")
def test_an_unknown_argument_of_a_call_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="takes no 'modle' in a call"):
        ChatCursor(api_key=KEY).invoke("x", modle="auto")


@pytest.mark.clause("CHAT-15")
def test_what_basechatmodel_has_is_accepted() -> None:
    limiter = InMemoryRateLimiter()
    llm = ChatCursor(
        cache=InMemoryCache(),
        callbacks=[],
        rate_limiter=limiter,
        metadata={"a": 1},
        tags=["t"],
        verbose=True,
        name="n",
        disable_streaming=True,
        output_version="v1",
    )
    assert llm.rate_limiter is limiter


@pytest.mark.clause("CHAT-16")
def test_parameters_without_effect_are_named_in_one_warning() -> None:
    with pytest.warns(UserWarning, match="temperature, max_tokens") as told:
        llm = ChatCursor(temperature=0, max_tokens=10)
    assert [warning.filename for warning in told] == [__file__]
    assert "ls_temperature" not in llm._get_ls_params()


@pytest.mark.clause("CHAT-16")
def test_parameters_without_effect_warn_once_in_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = ChatCursor(api_key=KEY)
    messages = [HumanMessage("x")]
    with pytest.warns(UserWarning, match="seed"):
        llm._plan(messages, None, {"seed": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm._plan(messages, None, {"seed": 2})


@pytest.mark.clause("CHAT-17")
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, timedelta(seconds=-1)])
def test_a_keep_alive_that_makes_no_sense_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="keep_alive"):
        ChatCursor(keep_alive=value)


@pytest.mark.clause("CHAT-17")
def test_times_may_be_timedeltas() -> None:
    llm = ChatCursor(keep_alive=timedelta(minutes=2), timeout=timedelta(seconds=30))  # type: ignore[arg-type] # converted
    assert (llm.keep_alive, llm.timeout) == (120.0, 30.0)


@pytest.mark.clause("CHAT-17")
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "soon"])
def test_a_timeout_that_makes_no_sense_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="timeout"):
        ChatCursor(timeout=value)
    with pytest.raises(ValueError, match="timeout"):
        ChatCursor(api_key=KEY).invoke("x", timeout=value)


@pytest.mark.clause("CHAT-17")
def test_an_empty_model_and_negative_retries_are_refused() -> None:
    with pytest.raises(ValidationError, match="model"):
        ChatCursor(model="")
    with pytest.raises(ValidationError, match="max_retries"):
        ChatCursor(max_retries=-1)


@pytest.mark.clause("CHAT-18")
def test_no_key_is_an_error_at_the_first_call_that_names_all_three_ways() -> None:
    llm = ChatCursor()
    with pytest.raises(CursorAuthenticationError, match=r"api_key=.*CURSOR_API_KEY.*log in"):
        llm.invoke("x")


@pytest.mark.clause("CHAT-19")
@pytest.mark.clause("SECURITY-9")
@pytest.mark.clause("SECURITY-10")
def test_the_key_shows_nowhere_but_in_the_models_own_pickle() -> None:
    llm = ChatCursor(api_key=KEY)
    for text in (repr(llm), str(llm), dumps(llm), json.dumps(dumpd(llm)), llm._get_llm_string()):
        assert KEY not in text
    assert KEY not in str(llm._identifying_params) + str(llm._get_ls_params())
    plan = llm._plan([HumanMessage("x")], None, {})
    assert KEY not in repr(plan)
    again = pickle.loads(pickle.dumps(llm))
    assert again.api_key is not None
    assert again.api_key.get_secret_value() == KEY


@pytest.mark.clause("CHAT-19")
@pytest.mark.clause("SECURITY-9")
@pytest.mark.parametrize(
    "mistake", [{"modle": "auto"}, {"timeout": -1}, {"cursor_api_key": [KEY]}, {"api_key": [KEY]}]
)
def test_a_mistyped_argument_does_not_show_the_key(mistake: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatCursor(**{"api_key": KEY, **mistake})
    assert KEY[:12] not in str(caught.value) + repr(caught.value)


@pytest.mark.clause("CHAT-19")
def test_langchain_serialization_brings_the_model_back(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = ChatCursor(model="auto", model_params={"effort": "high"}, api_key=KEY, stop=["x"])
    again = load(
        dumpd(llm),
        secrets_map={"CURSOR_API_KEY": KEY},
        valid_namespaces=["langchain_cursor"],
        allowed_objects=[ChatCursor],
    )
    assert again == llm


@pytest.mark.clause("CHAT-20")
def test_tracing_reports_the_model_of_the_call() -> None:
    llm = ChatCursor(stop=["a"])
    params = llm._get_ls_params()
    assert params["ls_provider"] == "cursor"
    assert params["ls_model_type"] == "chat"
    assert params["ls_model_name"] == "composer-2.5"
    assert params["ls_stop"] == ["a"]
    assert llm._get_ls_params(model="auto")["ls_model_name"] == "auto"


@pytest.mark.clause("CHAT-21")
def test_the_profile_says_what_can_be_sent() -> None:
    profile = ChatCursor().profile
    assert profile is not None
    assert profile["image_inputs"] is True
    assert profile["image_url_inputs"] is False
    assert profile["audio_inputs"] is False


@pytest.mark.clause("CHAT-22")
def test_models_with_equal_fields_are_equal() -> None:
    assert ChatCursor(model="auto") == ChatCursor(model="auto")
    assert ChatCursor(model="auto") != ChatCursor()


@pytest.mark.clause("CHAT-23")
def test_a_cached_answer_needs_no_key_and_no_bridge() -> None:
    cache = InMemoryCache()
    llm = ChatCursor(cache=cache)
    prompt = dumps([HumanMessage("x")])
    cache.update(prompt, llm._get_llm_string(), [ChatGeneration(message=AIMessage("cached"))])
    assert llm.invoke("x").text == "cached"


@pytest.mark.clause("CHAT-24")
def test_content_that_cannot_be_sent_is_refused_before_anything_starts() -> None:
    block = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
    with pytest.raises(UnsupportedContentError, match="image"):
        ChatCursor(api_key=KEY).invoke([HumanMessage([block])])


@pytest.mark.clause("CHAT-25")
def test_model_parameters_reach_the_agents_settings_as_text() -> None:
    llm = ChatCursor(api_key=KEY, model_params={"thinking": True, "effort": "high", "n": 2})
    plan = llm._plan([HumanMessage("x")], None, {})
    assert plan.settings.agent.model_params == (
        ("thinking", "true"), ("effort", "high"), ("n", "2"),
    )  # fmt: skip


@pytest.mark.clause("CHAT-26")
def test_close_without_a_call_does_nothing() -> None:
    with ChatCursor() as llm:
        llm.close()
    llm.dispose()
