"""What can be configured. These structs are the schema: names, types, defaults and the words of `kedge config schema`.

Everything has a default, so that `Config()` is a product that works. A key says itself what a file of a workspace that
nobody trusts may do with it (`ANYONE`, `STRICTER`, or nothing), so that a key added tomorrow is closed until it says
otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from kedge.protocol.runs import Effort, Mode

WireName = Literal["chat", "responses", "anthropic", "gemini"]
SandboxMode = Literal["off", "auto", "landlock", "bubblewrap"]

ANYONE = {"untrusted": "yes"}  # harmless, whoever wrote it
STRICTER = {"untrusted": "stricter"}  # anyone may narrow what the user set, never widen it
RULES = {"rules": True}  # each text is a permission rule

Count = Annotated[int, Meta(ge=1)]
Price = Annotated[float, Meta(ge=0)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class ModelConfig(_Table, frozen=True, kw_only=True):
    """What is not in the catalog, or is different here. Prices are in dollars for a million tokens."""

    context_window: Annotated[Count | None, Meta(description="tokens that the model can read", extra=ANYONE)] = None
    max_output_tokens: Annotated[Count | None, Meta(description="tokens of one answer", extra=ANYONE)] = None
    input_price: Annotated[Price | None, Meta(description="of what is read")] = None
    output_price: Annotated[Price | None, Meta(description="of what is written")] = None
    cache_read_price: Annotated[Price | None, Meta(description="of what is read from the cache")] = None
    cache_write_price: Annotated[Price | None, Meta(description="of what is written to the cache")] = None
    images: Annotated[bool | None, Meta(description="whether it sees images", extra=ANYONE)] = None
    tools: Annotated[bool | None, Meta(description="whether it calls tools", extra=ANYONE)] = None
    reasoning_effort: Annotated[Effort | None, Meta(description="how much it thinks first", extra=ANYONE)] = None


class ProviderConfig(_Table, frozen=True, kw_only=True):
    """A provider of one's own, or another setting of a known one."""

    wire: Annotated[
        WireName | None,
        Meta(description="what it speaks: Chat Completions, OpenAI's Responses, Anthropic's Messages, Gemini"),
    ] = None
    base_url: Annotated[str | None, Meta(description="where it is: http(s)://HOST[:PORT][/PATH]")] = None
    api_key: Annotated[
        str | None, Meta(description="its key; `${NAME}` takes it from the environment, where it belongs")
    ] = None
    api_key_command: Annotated[str | None, Meta(description="a command that prints the key")] = None
    headers: Annotated[dict[str, str], Meta(description="sent with each request")] = {}
    extra_body: Annotated[dict[str, Any], Meta(description="added to the body of each request")] = {}
    ca_file: Annotated[
        str | None, Meta(description="a PEM file with certificates that it may show, beside those the machine believes")
    ] = None
    models: Annotated[dict[str, ModelConfig], Meta(description="its models, by their names")] = {}

    def __repr__(self) -> str:
        return f"ProviderConfig({self.wire or 'known'})"  # keys and headers are nobody's business


class AgentConfig(_Table, frozen=True, kw_only=True):
    """How the agent works."""

    max_steps: Annotated[Count, Meta(description="a run stops after so many steps", extra=STRICTER)] = 200
    max_cost: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="of one run, in dollars; it stops there", extra=STRICTER)
    ] = None
    summarize_at: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        Meta(description="the part of the context window that is filled before it is summarised", extra=ANYONE),
    ] = 0.85
    titles: Annotated[bool, Meta(description="let the small model name sessions", extra=ANYONE)] = True
    context_files: Annotated[
        tuple[str, ...], Meta(description="files read as instructions, wherever they lie on the way up", extra=STRICTER)
    ] = (
        "AGENTS.md",
        "CLAUDE.md",
        "GEMINI.md",
        ".cursorrules",
        ".github/copilot-instructions.md",
    )


class PermissionsConfig(_Table, frozen=True, kw_only=True):
    """What the agent may do without asking."""

    mode: Annotated[Mode, Meta(description="from only looking to doing everything", extra=STRICTER)] = "ask"
    allow: Annotated[tuple[str, ...], Meta(description="what is done without asking", extra=RULES)] = ()
    deny: Annotated[
        tuple[str, ...], Meta(description="what is never done; every layer adds to it", extra={**ANYONE, **RULES})
    ] = ()
    unapproved: Annotated[
        Literal["sandbox", "ask"],
        Meta(
            description="what a command that only seems to read does: run in a read-only sandbox, or ask",
            extra=STRICTER,
        ),
    ] = "sandbox"


class SandboxConfig(_Table, frozen=True, kw_only=True):
    """What holds the commands that the agent runs."""

    mode: Annotated[
        SandboxMode, Meta(description="what holds commands; `auto` takes the best there is", extra=STRICTER)
    ] = "off"
    network: Annotated[bool, Meta(description="whether held commands have one", extra=STRICTER)] = True
    writable: Annotated[
        tuple[str, ...], Meta(description="directories that held commands may write, beside the workspace")
    ] = ()
    hidden: Annotated[
        tuple[str, ...],
        Meta(
            description="what held commands may not read, beside the usual secrets; every layer adds to it",
            extra=ANYONE,
        ),
    ] = ()
    readable: Annotated[tuple[str, ...], Meta(description="usual secrets that held commands may read")] = ()
    unix_sockets: Annotated[
        bool, Meta(description="whether held commands have Unix sockets; needs bubblewrap", extra=STRICTER)
    ] = False
    ask: Annotated[bool, Meta(description="ask about held commands, as about others", extra=STRICTER)] = True


class CredentialsConfig(_Table, frozen=True, kw_only=True):
    """Where logins are kept, and how long they are waited for."""

    store: Annotated[
        Literal["file", "keyring"],
        Meta(description="where `kedge login` keeps keys: a file of yours alone, or the system's keyring"),
    ] = "file"
    wait_s: Annotated[
        Annotated[float, Meta(ge=0)],
        Meta(description="how long a run that a person watches waits for a new login when its key is refused; 0: not"),
    ] = 600


class FetchConfig(_Table, frozen=True, kw_only=True):
    """What may be fetched from the web."""

    allow_private: Annotated[bool, Meta(description="also addresses inside this machine and its network")] = False


class FilesConfig(_Table, frozen=True, kw_only=True):
    """What is kept of files, so that changes can be undone."""

    max_bytes: Annotated[
        Annotated[int, Meta(ge=1024 * 1024)],
        Meta(description="of all versions in the data directory; beyond it the oldest go first"),
    ] = 1024 * 1024 * 1024


class TuiConfig(_Table, frozen=True, kw_only=True):
    """How the terminal interface looks and listens."""

    theme: Annotated[str, Meta(description="`auto` follows the terminal's background; `/theme` lists the others")] = (
        "auto"
    )
    notifications: Annotated[
        Literal["auto", "bell", "off"], Meta(description="when a run ends or asks and the window is not focused")
    ] = "auto"
    keys: Annotated[
        dict[str, str], Meta(description='other keys for an action: `palette = "ctrl+k"`; F1 lists them')
    ] = {}


class Config(_Table, frozen=True, kw_only=True):
    """The configuration of Kedge."""

    model: Annotated[str | None, Meta(description="does the work: PROVIDER/NAME", extra=STRICTER)] = None
    small_model: Annotated[str | None, Meta(description="names sessions", extra=STRICTER)] = None
    reasoning_effort: Annotated[Effort | None, Meta(description="how much a model thinks first", extra=ANYONE)] = None
    providers: Annotated[dict[str, ProviderConfig], Meta(description="providers of models, by their names")] = {}
    agent: Annotated[AgentConfig, Meta(description="how the agent works")] = AgentConfig()
    permissions: Annotated[PermissionsConfig, Meta(description="what it may do without asking")] = PermissionsConfig()
    sandbox: Annotated[SandboxConfig, Meta(description="what holds the commands that it runs")] = SandboxConfig()
    credentials: Annotated[CredentialsConfig, Meta(description="where logins are kept")] = CredentialsConfig()
    fetch: Annotated[FetchConfig, Meta(description="what may be fetched from the web")] = FetchConfig()
    files: Annotated[FilesConfig, Meta(description="what is kept of files")] = FilesConfig()
    tui: Annotated[TuiConfig, Meta(description="the terminal interface")] = TuiConfig()
    trusted: Annotated[
        tuple[str, ...],
        Meta(description="directories whose kedge.toml may run commands, name servers and grant rights"),
    ] = ()


# The schema as others use it: a JSON schema for editors, the same as docs/config.schema.json.


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> str:
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
