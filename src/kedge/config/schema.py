"""What can be configured. These structs are the schema: names, types, defaults and the words of `kedge config schema`.

Everything has a default, so that `Config()` is a product that works.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Mode = Literal["plan", "ask", "auto-edit", "yolo"]
WireName = Literal["chat", "anthropic"]
Effort = Literal["minimal", "low", "medium", "high"]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class ModelConfig(_Table, frozen=True, kw_only=True):
    """What is not in the catalog, or is different here. Prices are in dollars for a million tokens."""

    context_window: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    input_price: Annotated[float, msgspec.Meta(ge=0)] | None = None
    output_price: Annotated[float, msgspec.Meta(ge=0)] | None = None
    cache_read_price: Annotated[float, msgspec.Meta(ge=0)] | None = None
    cache_write_price: Annotated[float, msgspec.Meta(ge=0)] | None = None
    images: bool | None = None
    tools: bool | None = None
    reasoning_effort: Effort | None = None


class ProviderConfig(_Table, frozen=True, kw_only=True):
    """A provider of one's own, or another setting of a known one."""

    wire: WireName | None = None
    base_url: str | None = None
    api_key: str | None = None  # write "${NAME}" to take it from the environment
    api_key_command: str | None = None  # prints the key
    headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}
    models: dict[str, ModelConfig] = {}


class AgentConfig(_Table, frozen=True, kw_only=True):
    max_steps: Annotated[int, msgspec.Meta(ge=1)] = 200
    max_cost: Annotated[float, msgspec.Meta(gt=0)] | None = None  # of one run, in dollars
    summarize_at: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.85  # of the context window
    titles: bool = True  # let the small model name sessions
    context_files: tuple[str, ...] = (
        "AGENTS.md",
        "CLAUDE.md",
        "GEMINI.md",
        ".cursorrules",
        ".github/copilot-instructions.md",
    )


class PermissionsConfig(_Table, frozen=True, kw_only=True):
    mode: Mode = "ask"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class Config(_Table, frozen=True, kw_only=True):
    model: str | None = None  # does the work: provider/name
    small_model: str | None = None  # writes titles and summaries
    reasoning_effort: Effort | None = None
    providers: dict[str, ProviderConfig] = {}
    agent: AgentConfig = AgentConfig()
    permissions: PermissionsConfig = PermissionsConfig()
    trusted: tuple[str, ...] = ()  # directories whose kedge.toml may run commands, name servers and grant permissions
