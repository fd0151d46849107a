"""Request bodies, queries and responses of the HTTP API (section 3 of the contract)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from kedge.protocol.bounds import MAX_KEY_CHARS, MAX_REASON_CHARS, RUN_ID
from kedge.protocol.messages import Message
from kedge.protocol.requests import PermissionAction, PermissionRequest, QuestionRequest
from kedge.protocol.runs import (
    Attachment,
    Effort,
    Mode,
    Model,
    OnBusy,
    Permissions,
    Run,
    RunOptions,
    RunState,
    RunStatus,
)
from kedge.protocol.sessions import ListedSession, Session, Title, Workspace

Seq = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
MAX_PAGE = 1000  # rows of one response
Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]
# The engine checks ids and paths; these patterns are only for the OpenAPI document.
RunId = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{RUN_ID}$"})]
AbsolutePath = Annotated[str, msgspec.Meta(description="of a directory", extra_json_schema={"pattern": "^/[^\0]*$"})]
# For a search: longer than anybody types. SQLite fails at fifty times as much.
Query = Annotated[str, msgspec.Meta(max_length=1_000)]
MAX_WAIT_S = 600  # proxies close a silent request earlier; then the client asks again


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok", "stopping"]


Nonce = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", description="random, in hexadecimal")]
PeerAddress = Annotated[str, msgspec.Meta(max_length=300, description="HOST:PORT as the client connected to it")]


class ProofQuery(msgspec.Struct, frozen=True):
    nonce: Nonce
    address: PeerAddress = ""


class Proof(msgspec.Struct, frozen=True):
    """HMAC-SHA256, keyed by the token, over a label, the nonce and `address`, with NUL bytes between them."""

    proof: str
    address: str


class Bounds(msgspec.Struct, frozen=True):
    """The limits (P17) that `GET /v1/version` reports."""

    body_bytes: int
    prompt_bytes: int
    attachments: int
    image_bytes: int
    output_schema_bytes: int
    rules: int
    open_runs_per_session: int
    turns: int
    title_chars: int
    denial_reason_chars: int
    error_chars: int
    request_head_seconds: float
    tcp_connections: int
    tcp_connections_without_token: int
    page: int
    wait_seconds: int
    log_age_seconds: float
    log_bytes: int
    receipts_after_deletion_seconds: float


class Version(msgspec.Struct, frozen=True):
    version: str
    api: Literal["v1"]
    bounds: Bounds


# Only for the OpenAPI document: characters that an HTTP header accepts. It is checked when it is stored.
ApiKey = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[!-~]+$", "maxLength": MAX_KEY_CHARS})]
DenialReason = Annotated[
    str, msgspec.Meta(max_length=MAX_REASON_CHARS, description="of a denial: the model gets it, and the turn goes on")
]
ProviderId = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class LoginBody(msgspec.Struct, frozen=True, kw_only=True):
    """An API key of a provider, checked at `base_url` (empty: the provider's default; null: from the environment).

    The environment is `env`, the caller's variables, or else the server's own. The configuration is that of the
    workspace, or else the user's."""

    provider_id: ProviderId
    api_key: ApiKey
    check: bool = True
    base_url: str | None = None
    env: dict[str, str] | None = None
    workspace_id: str | None = None

    def __repr__(self) -> str:
        return f"LoginBody({len(self.api_key)} characters)"


class StoredCredential(msgspec.Struct, frozen=True, kw_only=True):
    provider_id: str
    stored_in: Literal["file", "keyring"]
    last_four: str | None  # characters of the key; null for a short one


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a provider's API key; the first one is used, unless it is rejected."""

    provider_id: str
    source: Literal["config", "environment", "login", "command"]
    is_used: bool = True
    last_four: str | None = None
    stored_in: Literal["file", "keyring"] | None = None  # of a login
    variable: str | None = None  # in the server's environment; a run has its caller's


class LoginProvider(msgspec.Struct, frozen=True, kw_only=True):
    """`needs_key` is false for local providers. The variables are those of its API key and address."""

    provider_id: str
    title: str
    needs_key: bool
    key_variable: str
    url_variable: str


class CredentialsQuery(msgspec.Struct, frozen=True):
    workspace_id: str | None = None


class CredentialList(msgspec.Struct, frozen=True):
    """`providers` are all those with a login."""

    credentials: list[Credential]
    providers: list[LoginProvider]


class ControlBody(msgspec.Struct, frozen=True):
    command: Literal["shutdown", "shutdown_if_idle"]


class Controlled(msgspec.Struct, frozen=True):
    stopping: bool


class WorkspaceBody(msgspec.Struct, frozen=True):
    path: AbsolutePath


class Workspaces(msgspec.Struct, frozen=True):
    workspaces: list[Workspace]


class FilesQuery(msgspec.Struct, frozen=True):
    q: Query = ""
    limit: Limit = 50


class Files(msgspec.Struct, frozen=True):
    """Names of files and directories (ending in a slash), best match first; `cut`: not all files were searched."""

    files: list[str]
    cut: bool


class EventsQuery(msgspec.Struct, frozen=True):
    after: Seq | None = None
    log_id: str | None = None
    session_id: str | None = None


class LogQuery(msgspec.Struct, frozen=True):
    after: Seq = 0
    limit: Limit = MAX_PAGE


class LogAnswer(msgspec.Struct, frozen=True):
    events: list[msgspec.Raw]
    head: int
    log_id: str


class SessionBody(msgspec.Struct, frozen=True):
    title: Title = ""


class SessionsQuery(msgspec.Struct, frozen=True):
    q: Query = ""
    limit: Limit = MAX_PAGE


class AllSessionsQuery(SessionsQuery, frozen=True):
    """Of the sessions of all directories."""


class Sessions(msgspec.Struct, frozen=True):
    sessions: list[Session]


class ListedSessions(msgspec.Struct, frozen=True):
    sessions: list[ListedSession]


ContextKind = Literal[
    "system",
    "instructions",
    "tools",
    "mcp_tools",
    "notes",
    "summary",
    "prompts",
    "answers",
    "reasoning",
    "tool_results",
]


class ContextPart(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of content in the next request. `instructions`: files like AGENTS.md; `tool_results`: with the calls."""

    kind: ContextKind
    tokens: int
    chars: int


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """What fills the model's context window. Tokens of the parts are estimated; with `estimated`, the sum is, too."""

    model: str | None
    context_window: int | None
    used_tokens: int
    free_tokens: int | None
    summarize_at_tokens: int | None
    estimated: bool
    parts: list[ContextPart]


class MessagesQuery(msgspec.Struct, frozen=True):
    after: str | None = None
    limit: Limit = MAX_PAGE


class Messages(msgspec.Struct, frozen=True):
    messages: list[Message]
    as_of_seq: int


class AgentState(msgspec.Struct, frozen=True):
    is_busy: bool
    is_ready: bool
    model: str | None


class SubmitBody(msgspec.Struct, frozen=True, kw_only=True):
    session_id: str
    prompt: str
    run_id: RunId | None = None
    attachments: tuple[Attachment, ...] = ()
    on_busy: OnBusy = "queue"
    permissions: Permissions = "ask"
    model: Model | None = None
    options: RunOptions = RunOptions()
    env: dict[str, str] | None = None


class SummarizeBody(msgspec.Struct, frozen=True, kw_only=True):
    run_id: RunId | None = None
    on_busy: OnBusy = "queue"
    model: Model | None = None
    env: dict[str, str] | None = None


class ShellBody(msgspec.Struct, frozen=True, kw_only=True):
    command: Annotated[str, msgspec.Meta(description="a command of the user, run without asking")]
    run_id: RunId | None = None
    on_busy: OnBusy = "queue"
    env: dict[str, str] | None = None


class RunsQuery(msgspec.Struct, frozen=True):
    session_id: str | None = None
    state: RunState | None = None
    prefix: Annotated[str, msgspec.Meta(max_length=128, description="the beginning of the IDs")] = ""
    limit: Limit = MAX_PAGE


class Runs(msgspec.Struct, frozen=True):
    """In order of acceptance; if there are more than `limit`, the newest."""

    runs: list[RunStatus]


class RunQuery(msgspec.Struct, frozen=True):
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] | None = None


class ModeBody(msgspec.Struct, frozen=True):
    """The mode of a run from its next tool call on, and of all runs that share its turn."""

    mode: Mode


class MoveBody(msgspec.Struct, frozen=True, kw_only=True):
    """Move a queued prompt directly in front of the queued prompt `before`; null: to the end."""

    run_id: str
    before: str | None


class PromoteBody(msgspec.Struct, frozen=True, kw_only=True):
    """Send a queued prompt into the running turn (`steer`), or have it interrupt that turn."""

    run_id: str
    on_busy: Literal["steer", "interrupt"] = "steer"


class JobsQuery(msgspec.Struct, frozen=True):
    """With `wait`, the answer comes when other jobs than `running` (ids, separated by commas) are running."""

    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] | None = None
    running: Annotated[str, msgspec.Meta(max_length=2_000)] = ""


class JobOutputQuery(msgspec.Struct, frozen=True):
    """Output from the byte `after` on, else the last of it; with `wait`, as soon as there is some, or the job ended."""

    after: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] | None = None


class Cancelled(msgspec.Struct, frozen=True):
    cancelled: list[str]


class Queue(msgspec.Struct, frozen=True):
    prompts: list[Run]


class Deleted(msgspec.Struct, frozen=True):
    deleted: bool


class PendingPermissions(msgspec.Struct, frozen=True):
    permissions: list[PermissionRequest]


class SessionGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a person allowed for the rest of a session; `id` is that of the permission request."""

    id: str
    tool: str
    description: str
    rules: list[str]


class SessionGrants(msgspec.Struct, frozen=True):
    grants: list[SessionGrant]


class GrantBody(msgspec.Struct, frozen=True):
    id: str
    action: PermissionAction
    reason: DenialReason | None = None


class PendingQuestions(msgspec.Struct, frozen=True):
    questions: list[QuestionRequest]


class AnswerBody(msgspec.Struct, frozen=True):
    id: str
    answers: list[Any]


class RequestBody(msgspec.Struct, frozen=True):
    id: str


ConfigLayer = Literal["default", "system", "user", "workspace", "environment"]
ConfigScope = Annotated[Literal["global", "workspace"], msgspec.Meta(description="the user's file, or kedge.toml")]
ConfigKey = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000, description="names joined by dots")]


class ConfigValue(msgspec.Struct, frozen=True):
    """A value and its source; only the end of a secret is shown."""

    key: str
    value: Any
    layer: ConfigLayer
    name: str | None  # of the file or the variable
    line: int | None


class ConfigIgnored(msgspec.Struct, frozen=True):
    """A key of a workspace's file that is ignored, and why."""

    file: str
    line: int
    key: str
    why: str


class ConfigFile(msgspec.Struct, frozen=True):
    path: str
    layer: ConfigLayer
    exists: bool
    trusted: bool


class ConfigAnswer(msgspec.Struct, frozen=True):
    values: list[ConfigValue]
    ignored: list[ConfigIgnored]
    files: list[ConfigFile]


class ConfigSetBody(msgspec.Struct, frozen=True):
    scope: ConfigScope
    key: ConfigKey
    value: str | int | float | bool | list[Any]


class ConfigRemoveBody(msgspec.Struct, frozen=True):
    scope: ConfigScope
    key: ConfigKey


class ConfigModelBody(msgspec.Struct, frozen=True):
    scope: ConfigScope
    model: Model
    small: bool = False  # the model that writes titles of sessions


Role = Literal["large", "small"]
Source = Literal["catalog", "config", "package", "server", "local"]


class OfferedModel(msgspec.Struct, frozen=True, kw_only=True):
    """Unknown values are null. Prices are in dollars per million tokens."""

    name: str  # PROVIDER/NAME, as `-m` takes it
    context_window: int | None
    max_output_tokens: int | None
    input_price: float | None
    output_price: float | None
    cache_read_price: float | None
    cache_write_price: float | None
    images: bool
    tools: bool
    reasoning: bool  # accepts an effort
    efforts: list[Effort]  # that it knows
    source: Source  # where the model is listed
    roles: list[Role]  # used by default for these


class OfferedProvider(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is one line for the user: the source of the API key, or what to do."""

    id: str
    title: str
    usable: bool
    why: str
    models: list[OfferedModel]


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is used by runs that name none, and `small_model` writes titles of sessions."""

    model: str | None
    small_model: str | None
    why: str
    catalog_date: str
    providers: list[OfferedProvider]
    catalog_source: str | None = None  # of an update that a person stored; null: the catalog is the release's
