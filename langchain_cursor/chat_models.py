"""`ChatCursor`: a LangChain chat model whose answers come from Cursor agents."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import (
    AliasChoices,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from langchain_cursor.agents import AgentSettings, model_params
from langchain_cursor.credentials import resolve_api_key
from langchain_cursor.serializer import Prompt, serialize

if TYPE_CHECKING:
    from typing_extensions import Self

    from langchain_cursor.runtime import Agent, CallSettings, Usage
    from langchain_cursor.users import User

DEFAULT_MODEL = "composer-2.5"

# Common parameters of chat models that Cursor gives no control over.
_NO_EFFECT = ("temperature", "top_p", "max_tokens", "seed")


class ChatCursor(BaseChatModel):
    """Chat model that runs prompts through Cursor agents on this machine.

    It uses the Cursor account that you already pay for: each generation is one run of a fresh
    local agent that has no tools, an empty workspace and no settings, so that it can do nothing
    but answer, and nothing leaks from one call to the next.

    Setup:
        Have one of these: ``ChatCursor(api_key=...)``, the environment variable
        ``CURSOR_API_KEY``, or a login stored by the Cursor SDK.

    Invoke:
        >>> from langchain_cursor import ChatCursor
        >>> llm = ChatCursor()
        >>> llm.invoke("Hello!").text
        'Hello from Cursor. You said: Hello!'

    Async:
        >>> import asyncio
        >>> asyncio.run(llm.ainvoke("Hello!")).text
        'Hello from Cursor. You said: Hello!'

    Usage and metadata:
        >>> message = llm.invoke([("system", "Be brief."), ("human", "Hello!")])
        >>> sorted(message.usage_metadata)[:3]
        ['input_token_details', 'input_tokens', 'output_tokens']
        >>> message.response_metadata["model_name"]
        'composer-2.5'

    Lifetime:
        The first call starts the bridge, a Node process of some 130 MB, which all models of a
        process with the same key and backend share. It ends with `close`, with the process, and
        `keep_alive` seconds after the last model that used it was collected. A call after
        `close` starts it again.

        >>> with ChatCursor() as llm:
        ...     llm.invoke("say: done").text
        'done'

    Raises:
        CursorError: Calls raise its subclasses; see `langchain_cursor.errors`.
    """

    model: str = Field(
        default=DEFAULT_MODEL, min_length=1, validation_alias=AliasChoices("model", "model_name")
    )
    """Model id or alias, as the account's model list has it. Also accepted as `model_name`."""

    model_params: Mapping[str, str | int | float | bool] | None = None
    """The model's own parameters by id, such as `{"effort": "high"}` (Cursor's
    `ModelSelection.params`)."""

    api_key: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("api_key", "cursor_api_key")
    )
    """Cursor API key. Without it: `CURSOR_API_KEY`, then a login stored by the Cursor SDK."""

    base_url: str | None = None
    """Another Cursor backend. Without it: `CURSOR_BACKEND_URL`, then Cursor's own."""

    keep_alive: float = 60.0
    """Seconds to keep the executor warm after a call has ended; 0 keeps nothing. Also accepts a
    `timedelta`."""

    sandbox: bool = True
    """Ask for Cursor's sandbox around the agent, and go on without it where the machine does not
    support it. `False` never asks."""

    timeout: float | None = 600.0
    """Seconds for a whole call, its retries included. `None` sets no limit, but a bridge that
    says nothing for 90 s ends the call all the same."""

    max_retries: int = Field(default=2, ge=0)
    """How often a call that failed for a passing reason is tried again."""

    stop: list[str] | None = None
    """Texts that end an answer. Cursor knows none, so the answer is cut on this side."""

    sdk_loader: Callable[[], ModuleType] | None = Field(default=None, exclude=True, repr=False)
    """Returns the SDK module to use instead of `cursor_sdk`. What it raises reaches the caller
    as it is."""

    bridge_extension: bool = True
    """Start the bridge with this package's extension (faster, and nothing is written to disk).
    A bridge of your own (`CURSOR_SDK_BRIDGE_BIN`, `CURSOR_SDK_BRIDGE_URL`) always goes without."""

    temperature: float | None = None
    """No effect: Cursor has no such control."""

    top_p: float | None = None
    """No effect: Cursor has no such control."""

    max_tokens: int | None = None
    """No effect: Cursor has no such control."""

    seed: int | None = None
    """No effect: Cursor has no such control."""

    model_config = ConfigDict(
        extra="forbid",
        arbitrary_types_allowed=True,
        populate_by_name=True,
        protected_namespaces=(),
    )

    _user: Any = PrivateAttr(default=None)
    _warned: frozenset[str] = PrivateAttr(default=frozenset())

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        known = set(cls.model_fields) | {"model_name", "cursor_api_key"}
        unknown = sorted(set(values) - known) if isinstance(values, Mapping) else []
        if unknown:
            raise ValueError(
                f"ChatCursor has no parameter {', '.join(map(repr, unknown))}. "
                f"It has: {', '.join(sorted(known))}."
            )
        return values

    @field_validator("keep_alive", "timeout", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        return value.total_seconds() if isinstance(value, timedelta) else value

    @field_validator("keep_alive")
    @classmethod
    def _not_negative(cls, value: float) -> float:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"keep_alive must be 0 or more seconds, and finite: {value!r}")
        return value

    @field_validator("timeout")
    @classmethod
    def _positive(cls, value: float | None) -> float | None:
        return _checked_timeout(value)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _name_what_has_no_effect(self) -> Self:
        self._warn_without_effect([name for name in _NO_EFFECT if getattr(self, name) is not None])
        return self

    # --- what LangChain asks of a model ---

    @property
    def _llm_type(self) -> str:
        return "cursor-chat"

    @property
    def model_name(self) -> str:
        """The model id, under the name that some LangChain code reads."""
        return self.model

    @property
    def lc_secrets(self) -> dict[str, str]:
        """The arguments that serialization replaces by the name of an environment variable."""
        return {"api_key": "CURSOR_API_KEY"}

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Whether LangChain can serialize it: yes, without the key."""
        return True

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "model_params": dict(self.model_params or {}),
            "base_url": self.base_url,
        }

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = LangSmithParams(
            ls_provider="cursor",
            ls_model_type="chat",
            ls_model_name=str(kwargs.get("model") or self.model),
        )
        if stops := stop or self.stop:
            params["ls_stop"] = stops
        return params

    def _resolve_model_profile(self) -> ModelProfile:
        # Cursor's models differ; this says what the way through the agent allows.
        return ModelProfile(
            text_inputs=True,
            text_outputs=True,
            image_inputs=True,
            image_url_inputs=False,
            image_tool_message=True,
            pdf_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            image_outputs=False,
            audio_outputs=False,
            video_outputs=False,
            reasoning_output=True,
            temperature=False,
        )

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        plan = self._plan(messages, stop, kwargs)
        return plan.result(self._as_user().call(plan.bridge, plan.settings, plan.talk))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        plan = self._plan(messages, stop, kwargs)
        return plan.result(await self._as_user().acall(plan.bridge, plan.settings, plan.talk))

    # --- lifetime ---

    def close(self) -> None:
        """Cancel this model's calls, and end its bridge unless another model uses it.

        A call that is cancelled raises `CursorClosedError`. A call after `close` starts a bridge
        again.
        """
        user, self._user = self._user, None
        if user is not None:
            user.close()

    async def aclose(self) -> None:
        """Like `close`, without blocking the event loop."""
        user, self._user = self._user, None
        if user is not None:
            await user.aclose()

    def dispose(self) -> None:
        """Another name for `close`."""
        self.close()

    async def adispose(self) -> None:
        """Another name for `aclose`."""
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __copy__(self) -> Self:
        # A copy is a user of its own: closing one must not close the other.
        copied = super().__copy__()
        copied._user = None
        return copied

    def __eq__(self, other: object) -> bool:
        # By the fields alone: a model that has been called still equals one that has not.
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name in type(self).model_fields
        )

    __hash__ = None  # type: ignore[assignment] # as for every model with fields that change

    # --- one call ---

    def _as_user(self) -> User:
        user: User | None = self._user
        if user is None:
            from langchain_cursor.users import User  # brings the HTTP client: not at import

            user = self._user = User()
        return user

    def _plan(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> _Plan:
        from langchain_cursor.bridge.launch import BridgeSettings
        from langchain_cursor.runtime import CallSettings

        model = kwargs.pop("model", None) or self.model
        params = kwargs.pop("model_params", self.model_params)
        timeout = _checked_timeout(kwargs.pop("timeout", self.timeout))
        self._warn_without_effect(
            [name for name in _NO_EFFECT if kwargs.pop(name, None) is not None]
        )
        if kwargs:
            raise ValueError(
                f"ChatCursor takes no {', '.join(map(repr, sorted(kwargs)))} in a call. It takes: "
                "model, model_params, stop, timeout."
            )
        return _Plan(
            bridge=BridgeSettings.from_environment(
                resolve_api_key(
                    self.api_key.get_secret_value() if self.api_key else None, self.base_url
                ),
                backend=self.base_url,
                extension=self.bridge_extension,
                loader=self.sdk_loader,
            ),
            settings=CallSettings(
                agent=AgentSettings(str(model), model_params(params), self.sandbox),
                keep_alive=self.keep_alive,
                timeout=timeout,
                max_retries=self.max_retries,
            ),
            prompt=serialize(messages).inlined(),
            stop=tuple(stop or self.stop or ()),
        )

    def _warn_without_effect(self, names: list[str]) -> None:
        new = [name for name in names if name not in self._warned]
        if new:
            self._warned = self._warned | set(new)
            warnings.warn(
                f"Cursor has no control for {', '.join(new)}: accepted, but without effect.",
                UserWarning,
                stacklevel=_outside(),
            )


@dataclass(frozen=True)
class _Answer:
    """What a conversation with an agent came to."""

    text: str
    reasoning: str
    run_id: str
    model: str
    duration_ms: int
    usage: Usage | None


@dataclass(frozen=True)
class _Plan:
    """One call, ready to be run on the private loop."""

    bridge: Any
    settings: CallSettings
    prompt: Prompt
    stop: tuple[str, ...]

    async def talk(self, agent: Agent) -> _Answer:
        from langchain_cursor.runtime import Finished, ThinkingDelta

        reasoning = []
        end: Finished | None = None
        async for event in agent.send(self.prompt):
            if isinstance(event, ThinkingDelta):
                reasoning.append(event.text)
            elif isinstance(event, Finished):
                end = event
        assert end is not None  # a run that does not finish raises
        return _Answer(
            text=cut(end.text, self.stop),
            reasoning="".join(reasoning),
            run_id=end.run_id,
            model=end.model,
            duration_ms=end.duration_ms,
            usage=end.usage,
        )

    def result(self, answer: _Answer) -> ChatResult:
        message = AIMessage(
            content=answer.text,
            id=answer.run_id,
            usage_metadata=usage_metadata(answer.usage),
            response_metadata={
                "model_name": answer.model,
                "model_provider": "cursor",
                "run_id": answer.run_id,
                "duration_ms": answer.duration_ms,
            },
            additional_kwargs=({"reasoning_content": answer.reasoning} if answer.reasoning else {}),
        )
        return ChatResult(
            generations=[ChatGeneration(message=message)],
            llm_output={"model_name": answer.model},
        )


def usage_metadata(usage: Usage | None) -> UsageMetadata | None:
    """Write Cursor's token counts as LangChain's.

    Cursor counts tokens read from and written to the cache beside the input tokens, LangChain as
    a part of them; reasoning is a part of the output in both (cursor-sdk 1.1.0, `TokenUsage`).

    Example:
        >>> from langchain_cursor.runtime import Usage
        >>> usage_metadata(Usage(input_tokens=5, output_tokens=2, cache_read_tokens=3))
        ... # doctest: +NORMALIZE_WHITESPACE
        {'input_tokens': 8, 'output_tokens': 2, 'total_tokens': 10,
         'input_token_details': {'cache_read': 3, 'cache_creation': 0}}
    """
    if usage is None:
        return None
    given = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    metadata: UsageMetadata = {
        "input_tokens": given,
        "output_tokens": usage.output_tokens,
        "total_tokens": given + usage.output_tokens,
        "input_token_details": InputTokenDetails(
            cache_read=usage.cache_read_tokens, cache_creation=usage.cache_write_tokens
        ),
    }
    if usage.reasoning_tokens is not None:
        metadata["output_token_details"] = OutputTokenDetails(reasoning=usage.reasoning_tokens)
    return metadata


def cut(text: str, stop: tuple[str, ...]) -> str:
    """End a text before the first of the stop texts.

    Example:
        >>> cut("one two three", ("three", "two"))
        'one '
    """
    ends = [at for end in stop if end and (at := text.find(end)) >= 0]
    return text[: min(ends)] if ends else text


def _outside() -> int:
    """The stack level of the first frame that is neither ours nor LangChain's nor pydantic's."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("langchain_cursor.", "langchain_core.", "pydantic.")
    ):
        frame, level = frame.f_back, level + 1
    return level


def _checked_timeout(value: Any) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, (int, float)) or not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"timeout must be a number of seconds above 0, or None: {value!r}")
    return float(seconds)
