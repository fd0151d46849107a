"""The schema of the configuration: names, types, defaults, and the descriptions of `kedge config schema`.

Everything has a default, so `Config()` works. Each key states whether an untrusted workspace file may set it (`ANYONE`,
`STRICTER`); without a mark it may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from kedge.protocol.runs import Effort, Mode

WireName = Literal["chat", "responses", "anthropic", "gemini"]
SandboxMode = Literal["off", "auto", "landlock", "bubblewrap"]

SearchService = Literal["searxng", "exa", "parallel", "tavily", "brave"]
SearchProvider = Literal["searxng", "exa", "parallel", "tavily", "brave", "model"]

ANYONE = {"untrusted": "yes"}  # harmless from any file
STRICTER = {"untrusted": "stricter"}  # an untrusted file may only make it stricter
RULES = {"rules": True}  # each element is a permission rule
REGEX = {"regex": True}  # a regular expression

# Defaults of agent.max_wait_s: with a person who can be asked and can cancel the run, and without one.
ATTENDED_WAIT_S = 6 * 3600.0
UNATTENDED_WAIT_S = 15 * 60.0

Count = Annotated[int, Meta(ge=1)]
Price = Annotated[float, Meta(ge=0)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class ModelConfig(_Table, frozen=True, kw_only=True):
    """Properties of a model that the catalog lacks or has differently. Prices are in dollars per million tokens."""

    context_window: Annotated[Count | None, Meta(description="size of the context window in tokens", extra=ANYONE)] = (
        None
    )
    max_output_tokens: Annotated[Count | None, Meta(description="most tokens of one response", extra=ANYONE)] = None
    input_price: Annotated[Price | None, Meta(description="price of input tokens")] = None
    output_price: Annotated[Price | None, Meta(description="price of output tokens")] = None
    cache_read_price: Annotated[Price | None, Meta(description="price of cached input tokens")] = None
    cache_write_price: Annotated[Price | None, Meta(description="price of tokens written to the cache")] = None
    images: Annotated[bool | None, Meta(description="whether it accepts images", extra=ANYONE)] = None
    tools: Annotated[bool | None, Meta(description="whether it supports tool calls", extra=ANYONE)] = None
    reasoning_effort: Annotated[
        Effort | None, Meta(description="how much it reasons before answering", extra=ANYONE)
    ] = None


class ProviderConfig(_Table, frozen=True, kw_only=True):
    """A custom provider, or settings of a known one."""

    wire: Annotated[
        WireName | None,
        Meta(description="API: Chat Completions, OpenAI Responses, Anthropic Messages, Gemini"),
    ] = None
    base_url: Annotated[str | None, Meta(description="address: http(s)://HOST[:PORT][/PATH]")] = None
    api_key: Annotated[str | None, Meta(description="API key; use `${NAME}` to take it from the environment")] = None
    api_key_command: Annotated[str | None, Meta(description="command that prints the API key")] = None
    headers: Annotated[dict[str, str], Meta(description="extra headers of each request")] = {}
    extra_body: Annotated[dict[str, Any], Meta(description="extra fields in the body of each request")] = {}
    ca_file: Annotated[str | None, Meta(description="PEM file with additional trusted certificates")] = None
    max_silence_s: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="seconds without a byte after which a request counts as failed; 0: none."
            " Default: 300, and none for servers on this machine"
        ),
    ] = None
    models: Annotated[dict[str, ModelConfig], Meta(description="models by name")] = {}

    def __repr__(self) -> str:
        return f"ProviderConfig({self.wire or 'known'})"  # without keys and headers, which are secret


class AgentConfig(_Table, frozen=True, kw_only=True):
    """How the agent works."""

    max_steps: Annotated[Count, Meta(description="most steps of one run", extra=STRICTER)] = 200
    max_cost: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="most that one run may cost, in dollars", extra=STRICTER)
    ] = None
    max_cost_session: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="most that a session may cost, in dollars; then an attended run asks", extra=STRICTER),
    ] = None
    max_cost_day: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="most that all runs of a day may cost, in dollars; then an attended run asks", extra=STRICTER),
    ] = None
    max_wait_s: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="seconds that a run waits for a provider's limit or the network without an answer; 0: it fails"
            " instead; not set: 6 hours, or 15 minutes if nobody can be asked",
            extra=STRICTER,
        ),
    ] = None
    summarize_at: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        Meta(description="summarize the conversation when this part of the context window is full", extra=ANYONE),
    ] = 0.85
    mcp_tools_percent: Annotated[
        Annotated[float, Meta(ge=0, le=100)],
        Meta(
            description="list the tools of MCP servers in requests up to this part of the context window, in percent;"
            " further servers' tools are found by a search tool",
            extra=ANYONE,
        ),
    ] = 3.0
    writers: Annotated[
        tuple[str, ...],
        Meta(description='custom agents that may change files and run commands, by name; `["*"]`: all of them'),
    ] = ()
    language_servers: Annotated[
        bool, Meta(description="use the language servers that are installed or configured", extra=STRICTER)
    ] = True
    titles: Annotated[bool, Meta(description="let the small model write session titles", extra=ANYONE)] = True
    context_files: Annotated[
        tuple[str, ...],
        Meta(
            description="instruction files, read from the workspace, the directories above it, and those below it when"
            " the model works there",
            extra=STRICTER,
        ),
    ] = (
        "AGENTS.md",
        "CLAUDE.md",
        "GEMINI.md",
        ".cursorrules",
        ".github/copilot-instructions.md",
    )


class PermissionsConfig(_Table, frozen=True, kw_only=True):
    """What the agent may do without asking."""

    mode: Annotated[
        Mode,
        Meta(
            description="how much is done without asking: `plan` (read-only) to `yolo` (everything); `auto` needs"
            " agent.max_cost",
            extra=STRICTER,
        ),
    ] = "ask"
    allow: Annotated[tuple[str, ...], Meta(description="rules for actions that need no approval", extra=RULES)] = ()
    deny: Annotated[
        tuple[str, ...],
        Meta(description="rules for actions that are never allowed; every layer adds to it", extra={**ANYONE, **RULES}),
    ] = ()
    unapproved: Annotated[
        Literal["sandbox", "ask"],
        Meta(
            description="a command that is not known to be read-only: run it in a read-only sandbox, or ask",
            extra=STRICTER,
        ),
    ] = "sandbox"


class SandboxConfig(_Table, frozen=True, kw_only=True):
    """The sandbox for commands that the agent runs."""

    mode: Annotated[
        SandboxMode, Meta(description="sandbox for commands; `auto` picks the best available", extra=STRICTER)
    ] = "off"
    network: Annotated[bool, Meta(description="whether sandboxed commands have network access", extra=STRICTER)] = True
    writable: Annotated[
        tuple[str, ...], Meta(description="directories that sandboxed commands may write to, besides the workspace")
    ] = ()
    hidden: Annotated[
        tuple[str, ...],
        Meta(
            description="paths that sandboxed commands may not read, besides the usual secrets; every layer adds to it",
            extra=ANYONE,
        ),
    ] = ()
    readable: Annotated[tuple[str, ...], Meta(description="usual secrets that sandboxed commands may read")] = ()
    unix_sockets: Annotated[
        bool, Meta(description="whether sandboxed commands may use Unix sockets; needs bubblewrap", extra=STRICTER)
    ] = False
    ask: Annotated[bool, Meta(description="ask before running sandboxed commands, too", extra=STRICTER)] = True


class CredentialsConfig(_Table, frozen=True, kw_only=True):
    """Where API keys are stored, and how long to wait for a login."""

    store: Annotated[
        Literal["file", "keyring"],
        Meta(description="where `kedge login` stores keys: a private file, or the system keyring"),
    ] = "file"
    wait_s: Annotated[
        Annotated[float, Meta(ge=0)],
        Meta(description="seconds that an attended run waits for a new login when its key is rejected; 0: none"),
    ] = 600


class McpToolsConfig(_Table, frozen=True, kw_only=True):
    """Which tools of an MCP server are offered."""

    allow: Annotated[tuple[str, ...], Meta(description="tools to offer; `*` stands for any text")] = ("*",)
    deny: Annotated[tuple[str, ...], Meta(description="tools to leave out, also if they are in `allow`")] = ()


class McpOAuthConfig(_Table, frozen=True, kw_only=True):
    """How to log in to an MCP server; servers without these settings are asked for them."""

    client_id: Annotated[str | None, Meta(description="client id, if the server gave you one")] = None
    client_secret: Annotated[
        str | None, Meta(description="secret of that client; use `${NAME}` to take it from the environment")
    ] = None
    callback_port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        Meta(description="port of this machine that the browser returns to; default: any free one"),
    ] = None
    scopes: Annotated[
        tuple[str, ...], Meta(description="scopes to ask for instead of those that the server names")
    ] = ()

    def __repr__(self) -> str:
        return "McpOAuthConfig()"  # without the secret


class McpServerConfig(_Table, frozen=True, kw_only=True):
    """An MCP server: a program to start (`command`) or an address (`url`)."""

    command: Annotated[str | None, Meta(description="program to start, which speaks MCP on its standard streams")] = (
        None
    )
    args: Annotated[tuple[str, ...], Meta(description="arguments of the program")] = ()
    env: Annotated[dict[str, str], Meta(description="variables of the program, besides those of Kedge's server")] = {}
    cwd: Annotated[str | None, Meta(description="directory of the program; default: that of the workspace")] = None
    url: Annotated[str | None, Meta(description="address: http(s)://HOST[:PORT][/PATH]")] = None
    headers: Annotated[dict[str, str], Meta(description="extra headers of each request")] = {}
    enabled: Annotated[bool, Meta(description="whether it is used")] = True
    timeout_s: Annotated[
        Annotated[float, Meta(gt=0)], Meta(description="seconds that an answer of the server may take")
    ] = 120.0
    tools: Annotated[McpToolsConfig, Meta(description="which of its tools are offered")] = McpToolsConfig()
    oauth: Annotated[McpOAuthConfig, Meta(description="how to log in to it")] = McpOAuthConfig()

    def __repr__(self) -> str:
        return f"McpServerConfig({'process' if self.url is None else 'address'})"  # the rest may have secrets


class HookConfig(_Table, frozen=True, kw_only=True):
    """A command that runs at an event."""

    command: Annotated[str, Meta(description="command line for the shell; gets the event as JSON on standard input")]
    matcher: Annotated[
        str,
        Meta(
            description="names that it is for, joined by `|`, or a regular expression; empty: all. For events of tools"
            " these are tools, for `SessionStart`, `PreCompact` and `Notification` the kinds of these events",
            extra=REGEX,
        ),
    ] = ""
    timeout_s: Annotated[
        Annotated[float, Meta(gt=0, le=600)], Meta(description="seconds after which the command is ended")
    ] = 60.0
    on_failure: Annotated[
        Literal["ignore", "block"],
        Meta(description="what a command that fails or takes too long means: nothing, or the same as exit code 2"),
    ] = "ignore"


Hooks = tuple[HookConfig, ...]


class HooksConfig(_Table, frozen=True, kw_only=True):
    """Commands of the user that run at events, and may decide."""

    session_start: Annotated[
        Hooks, Meta(description="hooks before the first step of a session, or of its first run in a server")
    ] = msgspec.field(default=(), name="SessionStart")
    user_prompt_submit: Annotated[Hooks, Meta(description="hooks before a prompt is sent to the model")] = (
        msgspec.field(default=(), name="UserPromptSubmit")
    )
    pre_tool_use: Annotated[Hooks, Meta(description="hooks before each tool call; they may deny or change it")] = (
        msgspec.field(default=(), name="PreToolUse")
    )
    permission_request: Annotated[
        Hooks, Meta(description="hooks before a person is asked; they may answer instead")
    ] = msgspec.field(default=(), name="PermissionRequest")
    post_tool_use: Annotated[Hooks, Meta(description="hooks after each tool call that worked")] = msgspec.field(
        default=(), name="PostToolUse"
    )
    post_tool_use_failure: Annotated[Hooks, Meta(description="hooks after each tool call that failed")] = msgspec.field(
        default=(), name="PostToolUseFailure"
    )
    stop: Annotated[Hooks, Meta(description="hooks after the answer; they may let the run go on")] = msgspec.field(
        default=(), name="Stop"
    )
    subagent_stop: Annotated[Hooks, Meta(description="the same for sub-agents")] = msgspec.field(
        default=(), name="SubagentStop"
    )
    run_complete: Annotated[Hooks, Meta(description="hooks when a run has completed or failed")] = msgspec.field(
        default=(), name="RunComplete"
    )
    pre_compact: Annotated[Hooks, Meta(description="hooks before the conversation is summarized")] = msgspec.field(
        default=(), name="PreCompact"
    )
    notification: Annotated[Hooks, Meta(description="hooks when a person is asked")] = msgspec.field(
        default=(), name="Notification"
    )


class LspServerConfig(_Table, frozen=True, kw_only=True):
    """A language server, or settings of a known one."""

    command: Annotated[str | None, Meta(description="program to start, which speaks LSP on its standard streams")] = (
        None
    )
    args: Annotated[tuple[str, ...], Meta(description="arguments of the program")] = ()
    env: Annotated[dict[str, str], Meta(description="variables of the program, besides those of Kedge's server")] = {}
    file_types: Annotated[
        tuple[str, ...], Meta(description="extensions of its files: `py`, or `py=python` with the language id")
    ] = ()
    root_markers: Annotated[
        tuple[str, ...], Meta(description="files that mark the root of a project, the most important first")
    ] = ()
    settings: Annotated[dict[str, Any], Meta(description="settings that the server is given")] = {}
    options: Annotated[dict[str, Any], Meta(description="options of its initialization")] = {}
    enabled: Annotated[bool, Meta(description="whether it is used")] = True

    def __repr__(self) -> str:
        return "LspServerConfig()"  # the rest may have secrets


class FetchConfig(_Table, frozen=True, kw_only=True):
    """What may be fetched from the web."""

    allow_private: Annotated[bool, Meta(description="allow addresses of this machine and its network")] = False


class SearchConfig(_Table, frozen=True, kw_only=True):
    """Web search; without a provider there is no such tool."""

    provider: Annotated[
        SearchProvider | None,
        Meta(description="service for the tool `web_search`; `model`: the search of the model's own provider"),
    ] = None
    url: Annotated[str | None, Meta(description="address of a SearXNG server, or another one of the service")] = None
    api_key: Annotated[
        str | None, Meta(description="API key of the service; use `${NAME}` to take it from the environment")
    ] = None
    cost_per_search: Annotated[
        Price | None, Meta(description="what a search costs, in dollars, if the service does not say")
    ] = None

    def __repr__(self) -> str:
        return f"SearchConfig({self.provider})"  # without the key


class CatalogConfig(_Table, frozen=True, kw_only=True):
    """The catalog of known models."""

    url: Annotated[
        str | None,
        Meta(description="https:// address of a catalog for `kedge models update`; nothing is fetched without it"),
    ] = None


class FilesConfig(_Table, frozen=True, kw_only=True):
    """File versions stored for undo."""

    max_bytes: Annotated[
        Annotated[int, Meta(ge=1024 * 1024)],
        Meta(description="most bytes of stored file versions; the oldest are deleted first"),
    ] = 1024 * 1024 * 1024


class TuiConfig(_Table, frozen=True, kw_only=True):
    """The terminal interface."""

    theme: Annotated[
        str, Meta(description="color theme; `auto` follows the terminal's background, `/theme` lists the others")
    ] = "auto"
    notifications: Annotated[
        Literal["auto", "bell", "off"],
        Meta(description="notify when a run ends or needs you and the window is not focused"),
    ] = "auto"
    keys: Annotated[
        dict[str, str], Meta(description='key bindings by action: `palette = "ctrl+k"`; F1 lists the actions')
    ] = {}


class Config(_Table, frozen=True, kw_only=True):
    """The configuration of Kedge."""

    model: Annotated[str | None, Meta(description="the model to use: PROVIDER/NAME", extra=STRICTER)] = None
    fallback_models: Annotated[
        tuple[str, ...],
        Meta(description="models to use instead if the model is at a limit, out of order or refused, in this order"),
    ] = ()
    small_model: Annotated[str | None, Meta(description="the model for session titles", extra=STRICTER)] = None
    reasoning_effort: Annotated[
        Effort | None, Meta(description="how much a model reasons before answering", extra=ANYONE)
    ] = None
    providers: Annotated[dict[str, ProviderConfig], Meta(description="model providers by name")] = {}
    agent: Annotated[AgentConfig, Meta(description="how the agent works")] = AgentConfig()
    permissions: Annotated[PermissionsConfig, Meta(description="what the agent may do without asking")] = (
        PermissionsConfig()
    )
    sandbox: Annotated[SandboxConfig, Meta(description="the sandbox for commands")] = SandboxConfig()
    credentials: Annotated[CredentialsConfig, Meta(description="where API keys are stored")] = CredentialsConfig()
    mcp: Annotated[
        dict[str, McpServerConfig], Meta(description="MCP servers by name; `${NAME}` is expanded as a server starts")
    ] = {}
    hooks: Annotated[HooksConfig, Meta(description="commands that run at events")] = HooksConfig()
    lsp: Annotated[dict[str, LspServerConfig], Meta(description="language servers by name")] = {}
    fetch: Annotated[FetchConfig, Meta(description="what may be fetched from the web")] = FetchConfig()
    search: Annotated[SearchConfig, Meta(description="web search")] = SearchConfig()
    catalog: Annotated[CatalogConfig, Meta(description="the catalog of known models")] = CatalogConfig()
    files: Annotated[FilesConfig, Meta(description="file versions stored for undo")] = FilesConfig()
    tui: Annotated[TuiConfig, Meta(description="the terminal interface")] = TuiConfig()
    plugins: Annotated[
        tuple[str, ...],
        Meta(description="directories in plugin layout, with skills, commands and agents: absolute, or from ~/ on"),
    ] = ()
    trusted: Annotated[
        tuple[str, ...],
        Meta(description="directories whose kedge.toml may run commands, name servers and grant permissions"),
    ] = ()


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> str:
    """Return the JSON schema for editors, the same as docs/config.schema.json."""
    schema = {"$schema": DIALECT, "title": "Kedge configuration", **msgspec.json.schema(Config)}
    return msgspec.json.format(msgspec.json.encode(_without_null(schema)), indent=2).decode() + "\n"


def _without_null(schema: Any) -> Any:
    """TOML has no null: a key that is not set is not there."""
    match schema:
        case {"anyOf": [inner, {"type": "null"}], **rest}:
            rest = {name: value for name, value in rest.items() if (name, value) != ("default", None)}
            return {**rest, **_without_null(inner)}
        case dict():
            fields = cast("dict[str, Any]", schema)
            return {name: _without_null(value) for name, value in fields.items()}
        case list() | tuple():
            return [_without_null(each) for each in cast("list[Any]", schema)]
        case _:
            return schema


Configure = Callable[[Path, Mapping[str, str]], Config]
"""Loads the configuration of a directory for a caller with these environment variables; may read files."""
