"""The payloads of both protocol eras that the client reads and writes. No IO.

The modern era (2026-07-28 and later) has no session: each request carries version and capabilities. The legacy era
(2025-11-25 and earlier) begins with `initialize`. Payloads are decoded leniently: unknown fields are ignored, and what
a server may get wrong without harm has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kedge.jsonrpc.messages import ErrorBody, Json
from kedge.version import VERSION

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
MODERN_VERSIONS = (MODERN,)  # that this client speaks, the preferred one first
LEGACY_VERSIONS = (LEGACY, "2025-06-18", "2025-03-26", "2024-11-05")

CLIENT_INFO = {"name": "kedge", "title": "Kedge", "version": VERSION}
TASKS = "io.modelcontextprotocol/tasks"
META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CLIENT = "io.modelcontextprotocol/clientInfo"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_SERVER = "io.modelcontextprotocol/serverInfo"

Era = Literal["modern", "legacy"]


def modern_meta(version: str, capabilities: Mapping[str, Any]) -> Json:
    """Return the `_meta` that each request of the modern era carries."""
    return {META_VERSION: version, META_CLIENT: CLIENT_INFO, META_CAPABILITIES: dict(capabilities)}


def client_capabilities(era: Era, *, can_elicit: bool) -> Json:
    """Return what this client declares. Roots and sampling are deprecated, and never declared.

    `can_elicit`: a person can answer a server's questions.
    """
    capabilities: Json = {"elicitation": {"form": {}, "url": {}}} if can_elicit else {}
    if era == "modern":
        capabilities["extensions"] = {TASKS: {}}
    return capabilities


# --- payloads


class Payload(msgspec.Struct, kw_only=True, rename="camel"):
    pass


class Implementation(Payload):
    name: str = ""
    title: str | None = None
    version: str = ""


class ListCapability(Payload):
    list_changed: bool = False


class ServerCapabilities(Payload):
    tools: ListCapability | None = None
    prompts: ListCapability | None = None
    resources: ListCapability | None = None
    extensions: dict[str, Any] = {}


class DiscoverResult(Payload):
    supported_versions: list[str]
    capabilities: ServerCapabilities = msgspec.field(default_factory=ServerCapabilities)
    instructions: str | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="_meta")


class InitializeResult(Payload):
    protocol_version: str
    capabilities: ServerCapabilities = msgspec.field(default_factory=ServerCapabilities)
    server_info: Implementation = msgspec.field(default_factory=Implementation)
    instructions: str | None = None


class ToolInfo(Payload):
    name: str
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    annotations: dict[str, Any] | None = None  # what the server says of the tool; never trusted


class PromptArgument(Payload):
    name: str
    title: str | None = None
    description: str | None = None
    required: bool = False


class PromptInfo(Payload):
    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[PromptArgument] | None = None


class ResourceInfo(Payload):
    uri: str
    name: str = ""
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | float | None = None


class ResourceTemplate(Payload):
    uri_template: str
    name: str = ""
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None


class ToolPage(Payload):
    tools: list[msgspec.Raw]  # one at a time, so that a malformed one costs only itself
    next_cursor: str | None = None
    ttl_ms: int | float | None = None


class PromptPage(Payload):
    prompts: list[PromptInfo]
    next_cursor: str | None = None


class ResourcePage(Payload):
    resources: list[ResourceInfo]
    next_cursor: str | None = None


class ResourceTemplatePage(Payload):
    resource_templates: list[ResourceTemplate]
    next_cursor: str | None = None


class ResourceContents(Payload):
    uri: str = ""
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None  # base64


class Content(Payload):
    """A content block of any type: text, image, audio, resource_link, resource."""

    type: str
    text: str | None = None
    data: str | None = None  # base64
    mime_type: str | None = None
    uri: str | None = None
    name: str | None = None
    title: str | None = None
    description: str | None = None
    size: int | float | None = None
    resource: ResourceContents | None = None


class InputRequest(Payload):
    """What a server wants to know before it goes on."""

    method: str
    params: dict[str, Any] = {}


TaskStatus = Literal["working", "input_required", "completed", "cancelled", "failed"]


class CallResult(Payload):
    """A result of tools/call: complete, a request for input, or a task."""

    result_type: str = "complete"
    content: list[Content] = []
    structured_content: Any = msgspec.UNSET
    is_error: bool = False
    input_requests: dict[str, InputRequest] = {}
    request_state: str | None = None
    task_id: str | None = None
    poll_interval_ms: int | float | None = None


class TaskState(Payload):
    task_id: str
    status: TaskStatus
    status_message: str | None = None
    poll_interval_ms: int | float | None = None
    input_requests: dict[str, InputRequest] = {}
    result: msgspec.Raw = msgspec.Raw(b"{}")
    error: ErrorBody | None = None


class PromptMessage(Payload):
    role: Literal["user", "assistant"]
    content: Content


class PromptResult(Payload):
    result_type: str = "complete"
    description: str | None = None
    messages: list[PromptMessage] = []
    input_requests: dict[str, InputRequest] = {}
    request_state: str | None = None


class ResourceResult(Payload):
    result_type: str = "complete"
    contents: list[ResourceContents] = []
    input_requests: dict[str, InputRequest] = {}
    request_state: str | None = None
