"""`ChatCursor`: a LangChain chat model whose answers come from Cursor agents."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.base import LangSmithParams, LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.language_models.model_profile import ModelProfile
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from langchain_cursor.agents import AgentSettings, model_params
from langchain_cursor.credentials import resolve_api_key
from langchain_cursor.errors import CursorRateLimitError
from langchain_cursor.messages import Chunks, message_of
from langchain_cursor.pool import size
from langchain_cursor.serializer import Prompt, serialize
from langchain_cursor.structured import response_schema, structured_output

if TYPE_CHECKING:
    from typing_extensions import Self

    from langchain_cursor.bridge.launch import BridgeSettings
    from langchain_cursor.contract import Contract, JsonContract
    from langchain_cursor.conversation import Answer, Emit
    from langchain_cursor.runtime import CallSettings
    from langchain_cursor.session import Agent
    from langchain_cursor.users import User

logger = logging.getLogger("langchain_cursor")

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

    prewarm_at_start: bool = Field(default=False, alias="prewarm")
    """Given as `prewarm=True`: start the bridge and build the executor in the background as soon
    as the model is made."""

    sandbox: bool = True
    """Ask for Cursor's sandbox around the agent, and go on without it where the machine does not
    support it. `False` never asks."""

    native_system_prompt: bool | None = None
    """Whether system messages become the agent's own system prompt. `None`: where the SDK can
    carry it and the account is allowed to, else they stand in the prompt. `True`: an error where
    that is impossible. `False`: never."""

    timeout: float | None = 600.0
    """Seconds for a whole call, its retries included. `None` sets no limit, but a bridge that
    falls silent during a run is ended after 46 s all the same."""

    max_retries: int = Field(default=2, ge=0)
    """How often a call that failed for a passing reason is tried again."""

    stop: list[str] | None = None
    """Texts that end an answer. Cursor knows none, so the answer is cut on this side."""

    sdk_loader: Callable[[], ModuleType] | None = Field(default=None, exclude=True, repr=False)
    """Returns the SDK module to use instead of `cursor_sdk`. What it raises reaches the caller
    as it is."""

    streaming: bool = False
    """Let `invoke` stream inside, so that callbacks get the tokens as they come."""

    bridge_extension: bool = True
    """Start the bridge with this package's extension (faster, and nothing is written to disk).
    A bridge of your own (`CURSOR_SDK_BRIDGE_BIN`, `CURSOR_SDK_BRIDGE_URL`) always goes without."""

    bridge_max_rss: int | None = Field(default=2**30, gt=0)
    """Bytes of memory from which on a fresh bridge takes the place of this one, warmed beside it:
    no call waits or fails. `None` never. It is the extension that tells how large a bridge is."""

    bridges: int | Literal["auto"] = 1
    """How many bridges may share the calls; `"auto"`: one for each processor, eight at most. A
    bridge is a single thread. Another one is started when each has a few dozen calls under way; it
    needs a processor of its own to be of use. A bridge of your own that runs already
    (`CURSOR_SDK_BRIDGE_URL`) stays one."""

    cache_model_catalog: bool = True
    """Keep the account's list of models on disk for a day, so that a new process need not fetch it
    before its first call. Your own `CURSOR_SDK_LOCAL_MODEL_CATALOG_JSON` goes first."""

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
        hide_input_in_errors=True,  # the input may hold the key
        arbitrary_types_allowed=True,
        populate_by_name=True,
        protected_namespaces=(),
    )

    _user: Any = PrivateAttr()
    _warned: frozenset[str] = PrivateAttr(default=frozenset())

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        known = set(cls.model_fields) | {"model_name", "cursor_api_key", "prewarm"}
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

    @field_validator("base_url")
    @classmethod
    def _without_a_password(cls, value: str | None) -> str | None:
        # Node's fetch refuses such a URL, and it would stand in reprs and traces.
        if value is not None and "@" in urlsplit(value).netloc:
            raise ValueError("base_url must hold no user and no password.")
        return value

    @field_validator("bridges")
    @classmethod
    def _one_at_least(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError(f'bridges must be 1 or more, or "auto": {value!r}')
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

    @model_validator(mode="after")
    def _begin_prewarm(self) -> Self:
        if self.prewarm_at_start:
            with _failure_as_warning():
                self._as_user().prewarm_beside(
                    self._bridge_settings(), self._call_settings(), _not_warm
                )
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
            tool_calling=True,
            tool_choice=True,
            structured_output=True,
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

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        # LangChain itself calls `on_llm_new_token` for each chunk.
        plan = self._plan(messages, stop, kwargs)
        chunks = Chunks(plan.contract is not None)
        with closing(self._as_user().stream(plan.bridge, plan.settings, plan.talk)) as batches:
            for events in batches:
                yield from chunks.of(events)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        plan = self._plan(messages, stop, kwargs)
        chunks = Chunks(plan.contract is not None)
        stream = self._as_user().astream(plan.bridge, plan.settings, plan.talk)
        async with aclosing(stream) as batches:
            async for events in batches:
                for chunk in chunks.of(events):
                    yield chunk

    def with_retry(self, **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """`Runnable.with_retry`, which by default tries again what may pass by itself.

        Args:
            **kwargs: As for LangChain's. `retry_if_exception_type` is by default what
                `CursorError.is_retryable` says, in place of every exception.

        Example:
            >>> ChatCursor().with_retry(stop_after_attempt=2).invoke("say: done").text
            'done'
        """
        kwargs.setdefault("retry_if_exception_type", (TimeoutError, CursorRateLimitError))
        return super().with_retry(**kwargs)

    # --- tools and structured output ---

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Let the model ask for calls of these tools.

        Cursor's agents offer no function calling of the caller's own, so the tools' schemas and a
        rule stand in the prompt, and the reply is judged: unknown tools and arguments that do not
        fit their schema never reach the caller. A reply that breaks the contract is answered
        once with what was wrong.

        Args:
            tools: Functions, `BaseTool`, Pydantic models, `TypedDict` classes, OpenAI or
                Anthropic tool dicts, JSON Schemas with a title.
            tool_choice: ``None`` or ``"auto"``: calls or an answer. ``"any"``, ``"required"`` or
                ``True``: at least one call. A tool's name, or OpenAI's or Anthropic's dict for
                it: that tool. ``"none"``: no tools.
            parallel_tool_calls: ``False`` allows one call in a reply.
            strict: ``True`` closes the schemas: all properties required, no others allowed.
            **kwargs: Bound as they are, such as `response_format`.

        Raises:
            ValueError: A tool cannot be used, two have one name, or `tool_choice` names none.
            CursorContractError: (in the call) The model broke the contract twice.

        Example:
            >>> def multiply(a: int, b: int) -> int:
            ...     "Multiply two numbers."
            ...     return a * b
            >>> llm = ChatCursor().bind_tools([multiply])
            >>> llm.invoke("Please multiply 6 and 7.").tool_calls[0]["args"]
            {'a': 6, 'b': 7}
        """
        from langchain_cursor.contract import bind

        contract = bind(tools, tool_choice, parallel_tool_calls, strict)
        bound: dict[str, Any] = {"tools": [], "tool_choice": tool_choice}
        if contract is not None:
            bound["tools"] = [tool.as_openai_tool() for tool in contract.tools]
        if parallel_tool_calls is not None:
            bound["parallel_tool_calls"] = parallel_tool_calls
        return self.bind(**bound, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        method: Literal["function_calling", "json_schema", "json_mode"] = "function_calling",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Make the model answer with data of a given shape.

        Args:
            schema: A Pydantic class (v2 or v1), a `TypedDict` class, an OpenAI tool dict, or a
                JSON Schema with a title. May be left out with ``json_mode``.
            method: ``"function_calling"``: the schema is the one tool that must be called.
                ``"json_schema"``: the reply itself is the JSON, validated. ``"json_mode"``: the
                reply is any JSON object; say in the prompt what it should hold.
            include_raw: Return ``{"raw": message, "parsed": ..., "parsing_error": ...}``.
            strict: ``True`` closes the schema: all properties required, no others allowed.
            **kwargs: None are known.

        Raises:
            ValueError: The method is unknown, or the schema is missing or cannot be used.
            CursorContractError: (in the call) The model broke the contract twice.

        Example:
            >>> from pydantic import BaseModel
            >>> class City(BaseModel):
            ...     "A city."
            ...     name: str
            >>> llm = ChatCursor().with_structured_output(City)
            >>> llm.invoke('The city with the name "Bern"')
            City(name='Bern')
        """
        if kwargs:
            raise ValueError(f"with_structured_output takes no {', '.join(map(repr, kwargs))}.")
        return structured_output(self, schema, method, include_raw=include_raw, strict=strict)

    # --- lifetime ---

    def prewarm(self) -> None:
        """Start the bridge and build the executor now, so that the first call need not.

        Returns when both are warm, and for `keep_alive` seconds from then on they stay. With the
        bridge extension this costs no model call and no tokens; on the stock bridge only the
        bridge is started. A failure is logged as a warning: the first call tries again.

        Example:
            >>> llm = ChatCursor()
            >>> llm.prewarm()
        """
        with _failure_as_warning():
            self._as_user().prewarm(self._bridge_settings(), self._call_settings())

    async def aprewarm(self) -> None:
        """Like `prewarm`, without blocking the event loop."""
        with _failure_as_warning():
            await self._as_user().aprewarm(self._bridge_settings(), self._call_settings())

    def close(self) -> None:
        """Cancel this model's calls, and end its bridge unless another model uses it.

        A call that is cancelled raises `CursorClosedError`. A call after `close` starts a bridge
        again.
        """
        user = self._no_user()
        if user is not None:
            user.close()

    async def aclose(self) -> None:
        """Like `close`, without blocking the event loop."""
        user = self._no_user()
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
        copied._no_user()
        return copied

    def __eq__(self, other: object) -> bool:
        # By the fields alone: a model that has been called still equals one that has not.
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name in type(self).model_fields
        )

    __hash__ = None  # type: ignore[assignment] # as for every model with fields that change

    # --- one call ---

    def _as_user(self) -> User:
        from langchain_cursor.users import User  # brings the HTTP client: not at import

        private = self.__pydantic_private__
        assert private is not None
        # One user, even if several threads make the first call; without a lock, which a fork
        # could leave locked.
        user: User = private.get("_user") or private.setdefault("_user", User())
        return user

    def _no_user(self) -> User | None:
        user: User | None = (self.__pydantic_private__ or {}).pop("_user", None)
        return user

    def _plan(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> _Plan:
        model = kwargs.pop("model", None) or self.model
        params = kwargs.pop("model_params", self.model_params)
        timeout = _checked_timeout(kwargs.pop("timeout", self.timeout))
        self._warn_without_effect(
            [name for name in _NO_EFFECT if kwargs.pop(name, None) is not None]
        )
        contract = _contract(kwargs)
        if kwargs:
            raise ValueError(
                f"ChatCursor takes no {', '.join(map(repr, sorted(kwargs)))} in a call. It takes: "
                "model, model_params, stop, timeout, tools, tool_choice, parallel_tool_calls, "
                "strict, response_format."
            )
        prompt = serialize(messages)
        if contract is not None:
            prompt = replace(prompt, text=f"{prompt.text}\n\n{contract.render()}")
        return _Plan(
            bridge=self._bridge_settings(),
            settings=replace(
                self._call_settings(str(model), params), system=prompt.system, timeout=timeout
            ),
            prompt=prompt,
            contract=contract,
            stop=(stop,) if isinstance(stop, str) else tuple(stop or self.stop or ()),
        )

    def _given_key(self) -> str | None:
        if self.api_key:
            return self.api_key.get_secret_value()
        # A double of the SDK for tests needs no account.
        return getattr(self.sdk_loader, "default_api_key", None)

    def _bridge_settings(self) -> BridgeSettings:
        from langchain_cursor.bridge.launch import BridgeSettings

        return BridgeSettings.from_environment(
            resolve_api_key(self._given_key(), self.base_url),
            backend=self.base_url,
            extension=self.bridge_extension,
            loader=self.sdk_loader,
            cache_catalog=self.cache_model_catalog,
        )

    def _call_settings(
        self, model: str | None = None, params: Mapping[str, Any] | None = None
    ) -> CallSettings:
        from langchain_cursor.runtime import CallSettings

        return CallSettings(
            agent=AgentSettings(
                model or self.model,
                model_params(params),
                self.sandbox,
                self.native_system_prompt,
            ),
            bridge_max_rss=self.bridge_max_rss,
            bridges=size(self.bridges),
            keep_alive=self.keep_alive,
            timeout=self.timeout,
            max_retries=self.max_retries,
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
class _Plan:
    """One call, ready to be run on the private loop."""

    bridge: BridgeSettings
    settings: CallSettings
    prompt: Prompt
    contract: Contract | JsonContract | None
    stop: tuple[str, ...]

    async def talk(self, agent: Agent, emit: Emit | None = None) -> Answer:
        from langchain_cursor.conversation import converse

        return await converse(agent, self.prompt, self.contract, self.stop, emit)

    def result(self, answer: Answer) -> ChatResult:
        message = message_of(answer, with_reply=self.contract is not None)
        return ChatResult(
            generations=[ChatGeneration(message=message)],
            llm_output={"model_name": answer.model},
        )


@contextmanager
def _failure_as_warning() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _not_warm(error)


def _not_warm(error: BaseException) -> None:
    logger.warning("ChatCursor is not prewarmed; the first call tries again. %s", error)


def _contract(kwargs: dict[str, Any]) -> Contract | JsonContract | None:
    """Take out of a call's arguments what makes its contract."""
    tools = kwargs.pop("tools", None) or ()
    choice = kwargs.pop("tool_choice", None)
    parallel = kwargs.pop("parallel_tool_calls", None)
    strict = kwargs.pop("strict", None)
    wanted = kwargs.pop("response_format", None)
    if not tools and choice is None and wanted is None:
        return None
    from langchain_cursor.contract import bind, json_contract  # not at import

    contract = bind(tools, choice, parallel, strict)
    if wanted is None:
        return contract
    answer = json_contract(response_schema(wanted))
    return answer if contract is None else contract.with_answer(answer)


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
