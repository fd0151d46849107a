"""Providers as data: the built-in ones, their URLs and environment variables; and the catalog of known models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kedge.config.schema import Effort, ProviderConfig, WireName
from kedge.models import catalog
from kedge.models.catalog import CatalogModel
from kedge.models.errors import ConfigError
from kedge.models.values import ModelInfo, env_prefix
from kedge.protocol.runs import EFFORTS

NO_SETTINGS = ProviderConfig()


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """`large` and `small` are the default models of those roles; empty: the first model that the server lists."""

    id: str
    title: str = ""  # display name
    wire: WireName = "chat"
    wire_elsewhere: WireName | None = None  # at other addresses than its own, if different
    base_url: str | None = None  # its own address; None: must be configured
    is_local: bool = False  # runs on this machine and needs no API key
    key_variables: tuple[str, ...] = ()  # if they differ from NAME_API_KEY; the first one set is used
    key_header: str = ""  # HTTP header for the API key; empty: the default of the wire
    url_name: str = ""  # variable for its address, if it differs from NAME_BASE_URL
    path: str = ""  # path of its API, which users may leave out of the address
    headers: Mapping[str, str] = {}
    extra_body: Mapping[str, Any] = {}
    large: str = ""
    small: str = ""
    names_are_yours: bool = False  # users name their models (deployments) themselves
    extension: str = ""  # name under which an installed package registered a wire for it
    models: Mapping[str, ModelInfo] = {}  # given by an installed package
    config: ProviderConfig = NO_SETTINGS

    @property
    def key_variable(self) -> str:
        """The environment variable that users are told to set."""
        return self.key_variables[0] if self.key_variables else f"{env_prefix(self.id)}_API_KEY"

    @property
    def url_variable(self) -> str:
        return self.url_name or f"{env_prefix(self.id)}_BASE_URL"

    @property
    def has_default(self) -> bool:
        """True if there is a model to use when none is named."""
        return not self.names_are_yours or bool(self.config.models)

    def __repr__(self) -> str:
        return f"Provider({self.id})"  # its configuration may contain an API key


# In the order of preference. The large models are good at code, neither the most expensive nor the cheapest; the small
# ones write good titles. Differences between servers of the chat wire are in `DIALECTS` (wires/chat.py).
BUILT_IN = (
    Provider(
        id="openai",
        title="OpenAI",
        wire="responses",
        wire_elsewhere="chat",
        base_url="https://api.openai.com/v1",
        large="gpt-6.1-sol",
        small="gpt-6-luna",
    ),
    Provider(
        id="anthropic",
        title="Anthropic",
        wire="anthropic",
        base_url="https://api.anthropic.com",
        large="claude-sonnet-5-5",
        small="claude-haiku-5-5",
    ),
    Provider(
        id="gemini",
        title="Google",
        wire="gemini",
        base_url="https://generativelanguage.googleapis.com",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        large="gemini-3.8-flash",
        small="gemini-3.5-flash-lite",
    ),
    Provider(
        id="openrouter",
        title="OpenRouter",
        base_url="https://openrouter.ai/api/v1",
        headers={"X-Title": "Kedge"},
        large="~anthropic/claude-sonnet-latest",
        small="openai/gpt-oss-20b",
    ),
    Provider(
        id="groq",
        title="Groq",
        base_url="https://api.groq.com/openai/v1",
        large="openai/gpt-oss-120b",
        small="openai/gpt-oss-20b",
    ),
    Provider(
        id="deepseek",
        title="DeepSeek",
        base_url="https://api.deepseek.com",
        large="deepseek-v4-pro",
        small="deepseek-flash",
    ),
    Provider(
        id="mistral",
        title="Mistral",
        base_url="https://api.mistral.ai/v1",
        large="mistral-medium-latest",
        small="mistral-small-latest",
    ),
    Provider(id="xai", title="xAI", base_url="https://api.x.ai/v1", large="grok-4.7", small="grok-4.3"),
    Provider(id="moonshot", title="Moonshot (Kimi)", base_url="https://api.moonshot.ai/v1", large="kimi-k3"),
    Provider(
        id="zai", title="Z.ai (GLM)", base_url="https://api.z.ai/api/paas/v4", large="glm-5.2", small="glm-4.5-air"
    ),
    Provider(
        id="qwen",
        title="Alibaba (Qwen)",
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        key_variables=("DASHSCOPE_API_KEY", "QWEN_API_KEY"),
        large="qwen3-coder-plus",
    ),
    Provider(
        id="together",
        title="Together",
        base_url="https://api.together.xyz/v1",
        large="openai/gpt-oss-120b",
        small="openai/gpt-oss-20b",
    ),
    Provider(
        id="fireworks",
        title="Fireworks",
        base_url="https://api.fireworks.ai/inference/v1",
        large="accounts/fireworks/models/gpt-oss-120b",
        small="accounts/fireworks/models/gpt-oss-20b",
    ),
    Provider(id="cerebras", title="Cerebras", base_url="https://api.cerebras.ai/v1", large="gpt-oss-120b"),
    Provider(
        id="azure",
        title="Azure OpenAI",
        wire="responses",
        key_variables=("AZURE_OPENAI_API_KEY",),
        key_header="api-key",
        url_name="AZURE_OPENAI_ENDPOINT",
        path="/openai/v1",
        names_are_yours=True,
    ),
    Provider(id="ollama", title="Ollama", base_url="http://127.0.0.1:11434/v1", is_local=True),
    Provider(id="lmstudio", title="LM Studio", base_url="http://127.0.0.1:1234/v1", is_local=True),
    Provider(id="llamacpp", title="llama.cpp", base_url="http://127.0.0.1:8080/v1", is_local=True),
    Provider(id="vllm", title="vLLM", base_url="http://127.0.0.1:8000/v1", is_local=True),
)
_VERSIONS: dict[WireName, str] = {"anthropic": "/v1", "gemini": "/v1beta"}  # added by the wire itself
LOCAL = "local"  # prefix of embedded models, which are no provider


def resolve_base_url(provider: Provider, env: Mapping[str, str]) -> str:
    """Return the configured URL, that of the environment, or the provider's own. Raises `ConfigError` without one."""
    variable = read_variable(env, provider.url_variable)
    if provider.config.base_url:
        return check_base_url(provider.config.base_url, f"providers.{provider.id}.base_url", provider)
    if variable is not None:
        return check_base_url(variable, provider.url_variable, provider)
    if provider.base_url is None:
        raise ConfigError(
            "bad_config",
            f"Provider {provider.id!r} has no address; set providers.{provider.id}.base_url or {provider.url_variable}",
        )
    return provider.base_url


def choose_wire(provider: Provider, url: str) -> WireName:
    return provider.wire if url == provider.base_url else provider.wire_elsewhere or provider.wire


def read_variable(env: Mapping[str, str], name: str) -> str | None:
    """Return the value of a variable; None if it is unset or blank."""
    return env.get(name, "").strip() or None


# Services of the tool `web_search` that need an API key. It is kept and found like that of a model's provider.
SEARCH_PROVIDERS = {
    name: Provider(id=name, title=f"{title} (web search)", key_variables=(f"{name.upper()}_API_KEY",))
    for name, title in {"exa": "Exa", "parallel": "Parallel", "tavily": "Tavily", "brave": "Brave Search"}.items()
}


def find_env_key(provider: Provider, env: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name and value of the environment variable with the provider's API key."""
    for name in provider.key_variables or (provider.key_variable,):
        if (key := read_variable(env, name)) is not None:
            return name, key
    return None


def check_base_url(url: str, source: str, provider: Provider) -> str:
    """Return the URL in the form that the wire needs; raise `ConfigError`, which names `source`, if it is not valid."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port  # raises ValueError if it is no number
    except ValueError:
        parts = None
    is_plain = parts is not None and not (parts.username or parts.password or parts.query or parts.fragment)
    is_printable = url.isprintable() and " " not in url.strip()
    if parts is None or not is_plain or parts.scheme not in ("http", "https") or not parts.hostname or not is_printable:
        # The value may contain a password, so it is not shown.
        problem = f"{source} must be http(s)://HOST[:PORT][/PATH], with the API key in {provider.key_variable}"
        raise ConfigError("bad_config", problem)
    checked = url.strip().rstrip("/")
    if provider.path and parts.path.rstrip("/") in ("", *_path_prefixes(provider.path)):
        return f"{parts.scheme}://{parts.netloc}{provider.path}"
    # The vendors' own tools write the URL without the version, others with it: accept both.
    return checked.removesuffix(_VERSIONS[provider.wire]) if provider.wire in _VERSIONS else checked


def _path_prefixes(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:end]) for end in range(2, len(names))]


# Suffix of a dated edition of a model.
_EDITION = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)(-v\d+(:\d+)?)?")


def catalog_date() -> str:
    return catalog.current().date


def list_catalog() -> Mapping[str, Mapping[str, ModelInfo]]:
    """Return the models of each provider by name."""
    return {**catalog.current().vendors, **catalog.current().hosts}


def find_vendor(model: str) -> str | None:
    """Return the maker of a model, or None if it is not in the catalog."""
    # An update cannot change whose models the known ones are.
    for vendors in (catalog.built_in().vendors, catalog.current().vendors):
        for vendor, models in vendors.items():
            if find_known_name(model, models):
                return vendor
    return None


def find_model_info(model: str, config: ProviderConfig, provider: str = "", own: ModelInfo | None = None) -> ModelInfo:
    """Return the properties of a provider's model.

    Taken from `own` (a provider package), else the provider's catalog entry, else the entry of the maker by the model's
    own name, because gateways offer the same models. Unknown models have the defaults.
    """
    entry = own or _find_entry(model, provider)
    known = {name: getattr(entry, name) for name in ModelInfo.__struct_fields__} if entry else {}
    if (settings := config.models.get(model)) is not None:
        changes = {name: getattr(settings, name, None) for name in ModelInfo.__struct_fields__}
        known |= {name: value for name, value in changes.items() if value is not None}
        if (effort := settings.reasoning_effort) is not None:  # nothing is known against the others of an unknown model
            efforts: tuple[Effort, ...] = known["efforts"] if known.get("reasoning") else EFFORTS
            known |= {"reasoning": True, "efforts": (*efforts, *({effort} - {*efforts}))}
    return ModelInfo(**known)


def _find_entry(model: str, provider: str) -> CatalogModel | None:
    own = catalog.current().hosts.get(provider) or catalog.current().vendors.get(provider, {})
    if key := find_known_name(model, own):
        return own[key]
    name = model.rpartition("/")[2]  # gateways write "maker/model"
    for spelling in dict.fromkeys((name, name.replace(".", "-"))):  # some write "claude-sonnet-4.5"
        for models in catalog.current().vendors.values():
            if key := find_known_name(spelling, models):
                return models[key]
    return None


def find_known_name(name: str, models: Mapping[str, CatalogModel]) -> str | None:
    """Return the longest catalog name that `name` is an edition of."""
    if name in models:
        return name
    matches = [key for key in models if name.startswith(key) and _EDITION.fullmatch(name[len(key) :])]
    return max(matches, key=len, default=None)
