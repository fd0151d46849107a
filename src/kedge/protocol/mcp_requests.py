"""What people ask of MCP servers: logins, tests, prompts and resources."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kedge.protocol.mcp import McpTool
from kedge.protocol.runs import Attachment

MAX_WAIT_S = 60


class McpLogin(msgspec.Struct, frozen=True):
    """A login that was begun: the address to open in a browser on the server's machine."""

    url: str


class McpLoginQuery(msgspec.Struct, frozen=True):
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0


class McpLoginState(msgspec.Struct, frozen=True, omit_defaults=True):
    """`none`: no login was begun since the server started."""

    state: Literal["waiting", "done", "failed", "none"]
    error: str | None = None


class McpLoginAnswerBody(msgspec.Struct, frozen=True):
    """The address at which a browser ended that cannot reach the server's machine."""

    url: Annotated[str, Meta(min_length=1, max_length=16_384)]

    def __repr__(self) -> str:
        return "McpLoginAnswerBody()"  # it has a code


class McpLoginAccepted(msgspec.Struct, frozen=True):
    accepted: bool  # false: the address does not belong to the login


class McpLoggedOut(msgspec.Struct, frozen=True):
    removed: bool  # false: there was no login


class McpPromptArgument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    description: str | None = None
    required: bool = False


class McpPrompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    server: str
    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[McpPromptArgument] = []


class McpPrompts(msgspec.Struct, frozen=True):
    """Those of servers that are ready."""

    prompts: list[McpPrompt]


class McpPromptBody(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, str] = {}


class McpPromptText(msgspec.Struct, frozen=True):
    """A prompt with its arguments filled in, to be sent as a prompt."""

    text: str
    attachments: list[Attachment] = []


class McpResource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`is_template`: the URI has parts like {NAME} to fill in."""

    server: str
    uri: str
    name: str = ""
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    is_template: bool = False


class McpResources(msgspec.Struct, frozen=True):
    """Those of servers that are ready."""

    resources: list[McpResource]


class McpResourceBody(msgspec.Struct, frozen=True):
    uri: Annotated[str, Meta(min_length=1, max_length=8_192)]


class McpResourceContent(msgspec.Struct, frozen=True):
    """The content of a resource, to be sent with a prompt."""

    attachments: list[Attachment]


class McpTest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A new connection to a server, made to test it, and what the server offers."""

    name: str
    ok: bool
    error: str | None = None
    needs_login: bool = False
    stderr: str | None = None  # the end of what the server wrote to its standard error
    title: str | None = None
    version: str | None = None
    protocol: str | None = None
    connect_ms: int = 0
    list_ms: int = 0
    tools: list[McpTool] = []
    prompts: list[McpPrompt] = []
    resources: list[McpResource] = []
