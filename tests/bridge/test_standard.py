"""LangChain's own standard tests for chat models, on the real bridge over the stand-in."""

from __future__ import annotations

import base64
import types
from functools import partial
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.load import load
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.integration_tests import chat_models as integration_tests
from langchain_tests.unit_tests import ChatModelUnitTests
from langchain_tests.unit_tests import chat_models as unit_tests
from pydantic import SecretStr

from langchain_cursor import ChatCursor
from langchain_cursor_fakes import CursorCloud, Text, Usage
from tests.conftest import API_KEY

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def _load(data: Any, *, allowed: list[Any], allowed_objects: Any, **options: Any) -> Any:
    return load(data, allowed_objects=allowed, **options)


@pytest.mark.filterwarnings("ignore:Cursor has no control for max_tokens")
@pytest.mark.filterwarnings("ignore:The method `BaseChatModel.dict` was deprecated")
@pytest.mark.clause("CHAT-27")
class TestChatCursorUnit(ChatModelUnitTests):
    """LangChain's unit suite."""

    @pytest.fixture(autouse=True)
    def _load_names_the_class(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Without a list of its own `load` brings back LangChain's own partners only.
        monkeypatch.setattr(unit_tests, "load", partial(_load, allowed=[ChatCursor]))

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCursor

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"api_key": API_KEY}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        # Without temperature and max_tokens: accepted, but each construction would warn.
        return {"timeout": 60, "stop": [], "max_retries": 2}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        environment = {"LC_OUTPUT_VERSION": "v1", "CURSOR_API_KEY": API_KEY}
        return environment, {}, {"output_version": "v1", "model": "composer-2.5"}

    @property
    def supports_image_inputs(self) -> bool:
        return True


@pytest.mark.bridge
@pytest.mark.clause("CHAT-27")
class TestChatCursorIntegration(ChatModelIntegrationTests):
    """LangChain's integration suite; the stand-in's default brain is the model."""

    @pytest.fixture(autouse=True)
    def _offline(self, cloud: CursorCloud, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CURSOR_BACKEND_URL", cloud.url)
        # The image tests download a picture: a local one stands for it.
        picture = types.SimpleNamespace(content=PNG)
        offline = types.SimpleNamespace(get=lambda url, **options: picture)
        monkeypatch.setattr(integration_tests, "httpx", offline)
        self.cloud = cloud

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCursor

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"api_key": API_KEY}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {"timeout": 60, "max_retries": 2}

    @property
    def supports_image_inputs(self) -> bool:
        return True

    @property
    def supports_image_tool_message(self) -> bool:
        return True

    @property
    def supports_image_urls(self) -> bool:
        return False  # Cursor's local agents reject image URLs (cursor-sdk 1.1.0)

    @property
    def supports_pdf_inputs(self) -> bool:
        return False  # an agent's prompt takes text and images only

    @property
    def supports_audio_inputs(self) -> bool:
        return False  # likewise

    @property
    def supports_video_inputs(self) -> bool:
        return False  # likewise

    @property
    def enable_vcr_tests(self) -> bool:
        return False  # the one test behind it times a recorded stream, which vcrpy hands over whole

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "auto"

    @property
    def supported_usage_metadata_details(self) -> Any:
        details = ["reasoning_output", "cache_read_input", "cache_creation_input"]
        return {"invoke": details, "stream": details}

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        return self._with_details(stream)

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        return self._with_details(stream)

    def invoke_with_cache_creation_input(self, *, stream: bool = False) -> AIMessage:
        return self._with_details(stream)

    def _with_details(self, stream: bool) -> AIMessage:
        self.cloud.brain = lambda run: [Text("ok"), Usage(10, 4, 3, 2, 1)]
        model = ChatCursor(api_key=SecretStr(API_KEY))
        if not stream:
            return model.invoke("x")
        whole: Any = None
        for chunk in model.stream("x"):
            whole = chunk if whole is None else whole + chunk
        assert isinstance(whole, AIMessage)
        return whole
