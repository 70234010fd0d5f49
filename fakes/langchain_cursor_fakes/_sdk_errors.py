"""What the bridge of cursor-sdk refuses, with its own codes and words (cursor-sdk 1.1.0)."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import httpx

from ._wire import encode_field

# The HTTP status of a unary call that fails with a code; a stream that fails has 200.
_STATUS = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "unauthenticated": 401,
    "not_found": 404,
    "internal": 500,
    "unimplemented": 501,
}

# `SdkErrorCode` of sdk_errors.proto.
_SDK_CODES = {"AGENT_NOT_FOUND": 6, "INTERNAL_ERROR": 20}

# The names that `tools` takes, as the refusal of another name lists them. Each is also known as
# `nameToolCall` and `name_tool_call`.
TOOL_NAMES = (
    "aiAttribution, applyAgentDiff, askQuestion, await, blameByFilePath, communicateUpdate, "
    "computerUse, connectScm, createAgent, createGoal, createPlan, createProject, "
    "createTrackedTasks, delete, deleteTrackedTasks, edit, editPrLabels, fetch, "
    "fetchCloudAgentData, generateImage, generateVideo, getAgentStatus, getMcpTools, "
    "getOriginPrCodeTour, glob, grep, listMcpResources, listTrackedTasks, ls, mcp, mcpAuth, "
    "prManagement, read, readAgentTranscript, readCanvas, readLints, readMcpResource, readTodos, "
    "recordCiInvestigationFindings, recordScreen, reflect, replaceEnv, reportBug, "
    "reportBugfixResults, searchConversations, semSearch, sendFinalSummary, sendMessage, "
    "sendToAgent, sendToUser, setActiveBranch, setupVmEnvironment, shell, startGrindExecution, "
    "startGrindPlanning, startProjectUpdates, stopAgent, stopProjectUpdates, switchMode, task, "
    "truncated, updateGoal, updateOriginPrCodeTour, updateTodos, updateTrackedTaskStatuses, "
    "updateTrackedTaskTags, updateTrackedTasks, webFetch, webSearch, writeCanvas, "
    "writeShellStdin, xSearch"
)


@dataclass(frozen=True)
class Refusal:
    """Why the bridge refuses a request.

    Attributes:
        code: Connect's code.
        message: The bridge's words.
        detailed: Whether it comes with the SDK's details: yes for what the TypeScript SDK throws,
            no for what the bridge itself checks.
        sdk_code: The SDK's own code in the details.
    """

    code: str
    message: str
    detailed: bool = True
    sdk_code: str | None = None

    def as_sdk_error(self, sdk: ModuleType, *, in_stream: bool) -> Exception:
        """The exception that the SDK makes of it."""
        payload: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.detailed:
            payload["details"] = [self._details()]
        status = 200 if in_stream else _STATUS[self.code]
        error: Exception = sdk.errors.error_from_connect_payload(payload, status=status)
        return error

    def _details(self) -> dict[str, Any]:
        encoded, debug = b"", {}
        if self.sdk_code is not None:
            encoded = encode_field(2, _SDK_CODES[self.sdk_code])
            debug["sdkErrorCode"] = f"SDK_ERROR_CODE_{self.sdk_code}"
        encoded += encode_field(3, self.message)
        return {
            "type": "sdk.v1.SdkErrorDetails",
            "debug": {**debug, "message": self.message},
            "value": base64.b64encode(encoded).decode().rstrip("="),
        }


class Refused(Exception):
    """A request is refused; only inside the fake."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def unknown_agent(agent_id: str) -> Refusal:
    """The bridge has no such open agent."""
    return Refusal("not_found", f"Unknown agent: {agent_id}", detailed=False)


def unknown_run(run_id: str) -> Refusal:
    """No open agent has such a run."""
    return Refusal("not_found", f"Unknown run: {run_id}", detailed=False)


def run_not_found(run_id: str) -> Refusal:
    """No store has such a run."""
    return Refusal("invalid_argument", f"Run {run_id} not found")


def agent_not_found(agent_id: str) -> Refusal:
    """No store has such an agent."""
    message = f"Agent {agent_id} not found"
    return Refusal("not_found", message, sdk_code="AGENT_NOT_FOUND")


def agent_not_stored(agent_id: str) -> Refusal:
    """The same, where the bridge lets the plain error through."""
    return Refusal("internal", f"Agent {agent_id} not found")


def agent_busy(agent_id: str) -> Refusal:
    """The agent's last run has not ended."""
    return Refusal("internal", f"Agent {agent_id} already has active run")


def not_a_function(what: str) -> Refusal:
    """A lease has been taken for an agent."""
    message = f"TypeError: {what} is not a function"
    return Refusal("internal", message, sdk_code="INTERNAL_ERROR")


def unknown_model(model: str, models: Iterable[str]) -> Refusal:
    """The account has no such model."""
    return Refusal(
        "invalid_argument",
        f"Cannot use this model: {model}. Available models: {', '.join(models)}. "
        "Use Cursor.models.list() to discover valid selections.",
    )


def unknown_tools(field: str, names: Iterable[str]) -> Refusal:
    """There are no such built-in tools."""
    return Refusal(
        "invalid_argument",
        f"Unknown tool name(s) in `{field}`: {', '.join(names)}. Valid tool names: {TOOL_NAMES}.",
    )


def unsupported(method: str) -> Refusal:
    """This fake does not play that part."""
    return Refusal("unimplemented", f"FakeCursor does not answer {method}", detailed=False)


NO_MODEL = Refusal(
    "invalid_argument",
    "Local SDK agents require an explicit `model`. Pass `model: "
    '{ id: "<model-id>" }` to Agent.create() or to send(), or run this agent in cloud mode.',
)
NO_SANDBOX = Refusal(
    "invalid_argument",
    "Local SDK sandboxing was requested, but sandboxing is not supported in this environment. "
    "Disable local.sandboxOptions.enabled or remove ~/.cursor/sandbox.json to run without "
    "sandboxing.",
)
BLANK_SYSTEM_PROMPT = Refusal(
    "invalid_argument",
    "`systemPrompt` must be non-empty; omit it to keep the default system prompt.",
)
REFUSED_KEY = Refusal("unauthenticated", "Invalid API key")
NO_KEY = Refusal("unauthenticated", "API key is required for cloud catalog calls.", detailed=False)
URL_IMAGE = Refusal(
    "invalid_argument", "URL images are only supported for cloud-routed agents", detailed=False
)
EMPTY_IMAGE = Refusal("invalid_argument", "URL images are only supported for cloud SDK agents")
TOOLS_IN_CLOUD = Refusal(
    "invalid_argument",
    "`tools` is not supported for cloud agents yet; it currently applies to local agents only.",
)
CLOUD_SEND_OPTIONS = Refusal(
    "invalid_argument",
    "Cloud send options are only supported for cloud SDK agents. Create the agent with cloud "
    "options or use local.* send options.",
)
CREATE_KEY = Refusal(
    "unimplemented",
    "Idempotency-Key is only supported for cloud CreateAgent in v1",
    detailed=False,
)
SEND_KEY = Refusal(
    "unimplemented", "Idempotency-Key is only supported for cloud Send in v1", detailed=False
)


def unreachable(sdk: ModuleType) -> Exception:
    """The exception of a call to a bridge that has ended."""
    return _network_error(sdk, httpx.ConnectError("All connection attempts failed"))


def hung_up(sdk: ModuleType, *, after_begin: bool) -> Exception:
    """The exception of a call during which the bridge ends.

    Args:
        sdk: The SDK.
        after_begin: Whether a part of the answer has come.
    """
    return _network_error(
        sdk,
        httpx.RemoteProtocolError(
            "peer closed connection without sending complete message body (incomplete chunked read)"
            if after_begin
            else "Server disconnected without sending a response."
        ),
    )


def _network_error(sdk: ModuleType, cause: httpx.RequestError) -> Exception:
    error: Exception = sdk.NetworkError(
        f"Bridge request failed: {type(cause).__name__}: {cause}", is_retryable=True
    )
    error.__cause__ = cause
    return error
