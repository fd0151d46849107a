"""The models of one turn, their API keys, and the effort that they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from kedge.agent.language_service import LanguageServices
from kedge.agent.limits import CostQuestions
from kedge.agent.mcp_service import McpService
from kedge.agent.retry import ApiKeys, Attempts, RetryPolicy, bound_waits
from kedge.agent.titles import Titles
from kedge.config.schema import Config, Configure, Effort, ProviderConfig, SearchConfig
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.client import ModelClient
from kedge.models.errors import ConfigError, ModelError
from kedge.models.keys.credentials import Credentials
from kedge.models.provider_registry import find_provider
from kedge.models.providers import SEARCH_PROVIDERS
from kedge.models.selection.selector import ModelSelector, Selection
from kedge.models.values import Endpoint
from kedge.models.wires.hosted_search import SEARCH_PRICES, can_search
from kedge.protocol.messages import Message
from kedge.skills.library import LibraryReader
from kedge.tools.errors import ToolError
from kedge.tools.permissions.judge import Judge
from kedge.tools.port import Tool
from kedge.tools.process.command import WorkspaceJobs


class AgentDeps(msgspec.Struct, frozen=True, kw_only=True):
    models: ModelClient
    selector: ModelSelector
    credentials: Credentials
    environ: Mapping[str, str]  # for runs that were sent without an environment
    configure: Configure
    data_dir: Path
    tools: Sequence[Tool]
    jobs: WorkspaceJobs
    libraries: LibraryReader
    retry: RetryPolicy
    today: Callable[[], date]
    titles: Titles
    cost_questions: CostQuestions
    hook_sessions: set[str]  # of which this server has run the SessionStart hooks
    mcp: McpService
    languages: LanguageServices


class TurnModels:
    def __init__(self, deps: AgentDeps, ctx: TurnContext, env: Mapping[str, str], config: Config) -> None:
        self._deps = deps
        self._ctx = ctx
        self._env = env
        self._config = config
        self.retry = bound_waits(deps.retry, config, ctx.run)

    async def select_large(self, keys: ApiKeys, *, is_first: bool, falls_back: bool = False) -> Selection:
        """Select the model that does the work, with retries and waiting for a login as for a step.

        With `falls_back` it raises `ModelUnavailable` if the server that has to name a model is not available.

        Emits a notice of the reason if nobody named the model: in the session's first run (`is_first`), and in each run
        that got a model of this machine because nothing is set up.
        """
        attempts = Attempts(self._ctx, msgspec.structs.replace(self.retry, falls_back=falls_back), keys)
        selection: Selection | None = None
        while True:
            try:
                selection = selection or await self._select()
                endpoint = await self._deps.models.resolve_model(selection.endpoint)
                selection = msgspec.structs.replace(selection, endpoint=endpoint)
                if is_first and selection.origin == "default":
                    await self._notify(selection.description, {"model": endpoint.name, "is_detail": True})
                return selection
            except ModelError as error:
                if selection is None:
                    await attempts.wait(error)
                else:  # a server that is asked for its models may reject a key as well
                    endpoint = await attempts.prepare_next(error, selection.endpoint)
                    selection = msgspec.structs.replace(selection, endpoint=endpoint)

    async def select_named(self, name: str) -> Selection:
        """Select a model by name, with its API key. Raises `ModelError`."""
        selection = await self._deps.selector.select(
            name, self._env, self._config, directory=self._ctx.directory, report=self._notify
        )
        endpoint = await self._deps.models.resolve_model(selection.endpoint)
        return msgspec.structs.replace(selection, endpoint=endpoint)

    def start_title(self, history: Sequence[Message], large: Selection) -> None:
        """Let the small model name the session, beside the run."""
        if self._config.agent.titles:
            self._deps.titles.start(self._ctx, history, lambda: self.select_small(large))

    async def select_small(self, large: Selection) -> Endpoint | None:
        small = await self._deps.selector.select_small(large, self._env, self._config)
        return None if small is None else await self._deps.models.resolve_model(small.endpoint)

    async def choose_search_price(self, endpoint: Endpoint, judge: Judge) -> float | None:
        """Return what a search by the model's own provider costs; None if it may not or cannot search.

        Emits a notice if it cannot. Sub-agents emit none: their parent did.
        """
        config = self._config.search
        is_denied = judge.mode != "yolo" and any(rule.is_about("web_search", "search") for rule in judge.deny)
        if config.provider != "model" or is_denied:
            return None
        if not can_search(endpoint):
            if self._ctx.run.kind == "prompt":
                problem = f"{endpoint.name} has no web search of its own; search.provider can name a service instead."
                await self._notify(problem, {"model": endpoint.name})
            return None
        return SEARCH_PRICES.get(endpoint.wire, 0.0) if config.cost_per_search is None else config.cost_per_search

    async def report_other_effort(self, endpoint: Endpoint, *, has_tools: bool) -> None:
        """Emit a notice if the model does not get the requested effort. Sub-agents emit none: their parent did."""
        effort = self._ctx.effort
        if effort is None or self._ctx.run.kind != "prompt":
            return
        if (reason := explain_other_effort(endpoint, effort, has_tools=has_tools)) is not None:
            await self._notify(reason, {"effort": effort, "model": endpoint.name})

    async def _select(self) -> Selection:
        ctx = self._ctx
        selection = await self._deps.selector.select(
            ctx.model, self._env, self._config, directory=ctx.directory, report=self._notify
        )
        if selection.origin == "machine":
            await self._notify(selection.description, {"model": selection.endpoint.name})
        return selection

    async def _notify(self, message: str, details: dict[str, Any]) -> None:
        await self._ctx.append_event("notice", message=message, details=details)


def choose_effort(endpoint: Endpoint, config: Config, effort: Effort | None = None) -> Effort | None:
    """Return the effort of the run, of the model's settings, or the general one; None if the model takes none."""
    provider = config.providers.get(endpoint.provider)
    settings = provider and provider.models.get(endpoint.model)
    effort = effort or (settings and settings.reasoning_effort) or config.reasoning_effort
    return endpoint.info.clamp_effort(effort) if effort and endpoint.info.reasoning else None


def explain_other_effort(endpoint: Endpoint, effort: Effort, *, has_tools: bool) -> str | None:
    """Return a line for people if the model is asked for another effort or for none; None if it gets this one."""
    if not endpoint.info.reasoning:
        setting = f'reasoning_effort in [providers.{endpoint.provider}.models."{endpoint.model}"]'
        return f"Effort {effort} is ignored: {endpoint.name} is not known to support it. If it does, set {setting}"
    if has_tools and endpoint.wire == "chat" and endpoint.info.effort_with_tools != "any":
        return f"Effort {effort} is ignored: {endpoint.name} takes none together with tools over Chat Completions"
    if (known := endpoint.info.clamp_effort(effort)) != effort:
        return f"Effort {known} instead of {effort}: {endpoint.name} knows {', '.join(endpoint.info.efforts)}"
    return None


async def find_search_key(credentials: Credentials, config: SearchConfig, env: Mapping[str, str]) -> str | None:
    """Return the API key of the configured search service; None if it needs none. Raises `ToolError`."""
    provider = SEARCH_PROVIDERS.get(config.provider or "")
    if provider is None:
        return None
    provider = msgspec.structs.replace(provider, config=ProviderConfig(api_key=config.api_key))
    try:
        key = await credentials.find_key(provider, env)
    except ConfigError as error:
        raise ToolError(f"The API key of {provider.id} cannot be used: {error.text}.", "Tell the user.") from error
    if key is None:
        advice = f"Tell the user to set {provider.key_variable}, or to run: kedge login {provider.id}"
        raise ToolError(f"The search service {provider.id} needs an API key.", advice)
    return key


class TurnApiKeys:
    """Implements `kedge.agent.retry.ApiKeys` for one turn."""

    def __init__(
        self,
        ctx: TurnContext,
        selector: ModelSelector,
        credentials: Credentials,
        env: Mapping[str, str],
        config: Config,
    ) -> None:
        self._ctx = ctx
        self._selector = selector
        self._credentials = credentials
        self._env = env
        self._config = config
        self._rejected: set[str] = set()
        self._logins = credentials.count_all_logins()  # by provider: the number of logins that the known keys include

    async def refresh(self, endpoint: Endpoint) -> Endpoint:
        if self._credentials.count_logins(endpoint.provider) == self._count_known(endpoint.provider):
            return endpoint
        self._mark_known(endpoint.provider)
        try:
            return await self._selector.refresh_key(endpoint, self._env, self._config, self._rejected)
        except ConfigError:  # the key in use is good until a provider rejects it
            return endpoint

    async def renew(self, rejected: Endpoint) -> Endpoint | None:
        self._mark_known(rejected.provider)
        renewed = await self._selector.renew_key(rejected, self._env, self._config, self._rejected)
        return self._remember(rejected, renewed)

    async def wait_for_login(self, rejected: Endpoint, error: ModelError) -> Endpoint | None:
        limit_s = self._config.credentials.wait_s
        if self._ctx.run.permissions != "ask" or not limit_s or find_provider(rejected.provider, self._config) is None:
            return None
        count = self._count_known(rejected.provider)
        await self._ctx.append_event(
            "re_authenticate",
            error=error.text,
            code=error.code,
            provider_id=rejected.provider,
            message=f"Log in to continue the run: kedge login {rejected.provider}",
            details={"wait_s": limit_s},
        )
        key: str | None = None
        async with self._ctx.lend_slot():
            try:
                async with asyncio.timeout(limit_s):
                    key = await self._credentials.wait_for_login(rejected.provider, count)
            except TimeoutError:
                pass
        if key is None:
            raise TurnFailed(f"{error.text}; nobody logged in within {limit_s:g} s", error.code) from error
        self._mark_known(rejected.provider)
        return self._remember(rejected, msgspec.structs.replace(rejected, api_key=key))

    def _count_known(self, provider_id: str) -> int:
        return self._logins.get(provider_id, 0)

    def _mark_known(self, provider_id: str) -> None:
        self._logins[provider_id] = self._credentials.count_logins(provider_id)

    def _remember(self, rejected: Endpoint, renewed: Endpoint | None) -> Endpoint | None:
        if rejected.api_key:
            self._rejected.add(rejected.api_key)
        if renewed is not None and renewed.api_key:  # a person entered it again, so it may be good now
            self._rejected.discard(renewed.api_key)
        return renewed
