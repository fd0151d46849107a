"""The agent: executes every kind of run, lists models, and manages logins."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kedge.agent.language_service import LanguageServices
from kedge.agent.limits import AUTO_NEEDS_MAX_COST, CostQuestions
from kedge.agent.logins import Logins
from kedge.agent.mcp_service import McpService
from kedge.agent.retry import RetryPolicy
from kedge.agent.summary import SummarizeTurn
from kedge.agent.titles import Titles
from kedge.agent.tool_context import CallContext, TurnScope, remove_old_scratch, remove_scratch
from kedge.agent.tool_params import describe_tool
from kedge.agent.turn import AgentTurn
from kedge.agent.turn_models import AgentDeps
from kedge.config.schema import Config, Configure
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import Turn, TurnContext
from kedge.engine.workspace_host import WorkspaceHost
from kedge.files.environment import drop_invalid_variables
from kedge.models import catalog
from kedge.models.client import ModelClient
from kedge.models.embedded.models import EmbeddedModels
from kedge.models.errors import ConfigError
from kedge.models.keys.credentials import CREDENTIALS_FILE, Credentials
from kedge.models.provider_registry import require_provider
from kedge.models.providers import LOCAL
from kedge.models.selection.listing import Listing
from kedge.models.selection.selector import LocalServers, ModelSelector
from kedge.models.values import ModelInfo
from kedge.protocol.address import data_dir as default_data_dir
from kedge.protocol.api import Offered, SessionContext
from kedge.protocol.errors import Invalid, KedgeError
from kedge.protocol.runs import Mode, RunKind, RunOptions
from kedge.skills.library import Library, LibraryReader
from kedge.store.port import StoredContext
from kedge.tools.errors import ToolError
from kedge.tools.port import Tool
from kedge.tools.process.command import WorkspaceJobs
from kedge.tools.registry import TOOLS

if TYPE_CHECKING:
    from kedge.agent.mcp_access import McpAccess


class Agent:
    """Creates and owns the services of turns. `environ` is used for runs that were sent without an environment."""

    def __init__(
        self,
        models: ModelClient | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        data_dir: Path | None = None,
        configure: Configure,
        tools: Sequence[Tool] = TOOLS,
        selector: ModelSelector | None = None,
        retry: RetryPolicy | None = None,
        today: Callable[[], date] = lambda: datetime.now().astimezone().date(),
    ) -> None:
        data_dir = self._data_dir = data_dir or Path(default_data_dir())
        self._embedded = EmbeddedModels(data_dir)
        self._models = models or ModelClient(local=self._embedded)
        self._environ = environ
        self._configure = configure
        catalog.use_data_dir(data_dir)
        selector = selector or ModelSelector(Credentials(data_dir / CREDENTIALS_FILE), self._embedded, LocalServers())
        self._selector = selector
        self._listing = Listing(self._models, selector)
        self._tools = tools
        self.titles = Titles(self._models)
        self._logins = Logins(selector.credentials, self._models, environ, self._configure)
        self.jobs = WorkspaceJobs()
        self._mcp = McpService(
            configure, environ, lambda config: self._get_mcp_access().make_http_transport(config), data_dir
        )
        self._mcp_access: McpAccess | None = None
        self._mcp_lock = threading.Lock()  # transports are made in threads
        self._libraries = LibraryReader()
        self._languages = LanguageServices(configure, environ)
        turn = AgentTurn(
            AgentDeps(
                models=self._models,
                selector=selector,
                credentials=selector.credentials,
                environ=environ,
                configure=self._configure,
                data_dir=data_dir,
                tools=tools,
                jobs=self.jobs,
                libraries=self._libraries,
                retry=retry or RetryPolicy(),
                today=today,
                titles=self.titles,
                cost_questions=CostQuestions(),
                hook_sessions=set(),
                mcp=self._mcp,
                languages=self._languages,
            )
        )
        self.turns: Mapping[RunKind, Turn] = {
            "prompt": turn,
            "agent": turn,
            "shell": ShellTurn(data_dir, self.jobs, environ),
            "summarize": SummarizeTurn(self._models, turn.prepare),
        }

    async def default_model(self, directory: Path, env: Mapping[str, str] | None = None) -> str | None:
        """Return the model of a run that names none, as `provider/name`; without the name if the provider chooses."""
        env = self._environ if env is None else env
        try:
            config = await asyncio.to_thread(self._configure, directory, env)
            return (await self._selector.find(None, env, config)).endpoint.name
        except (ConfigError, KedgeError):  # a run will say what is wrong
            return None

    async def models(self, directory: Path, env: Mapping[str, str] | None = None) -> Offered:
        """Return all models that a run in the directory could use, and why others cannot be used."""
        env = self._environ if env is None else env
        config = await asyncio.to_thread(self._configure, directory, env)
        return await self._listing.list_all(env, config)

    async def library(self, directory: Path, env: Mapping[str, str] | None = None) -> Library:
        """Return the skills, commands and agents of a directory. Raises `BadConfig`."""
        env = self._environ if env is None else env

        def read() -> Library:
            return self._libraries.read(directory, env, self._configure(directory, env))

        return await asyncio.to_thread(read)

    async def context(
        self, stored: StoredContext, model: str | None, directory: Path, env: Mapping[str, str] | None = None
    ) -> SessionContext:
        """Return what fills the context window of a session, for its model or else the default one."""
        env = self._environ if env is None else env
        config = await asyncio.to_thread(self._configure, directory, env)
        info, name = ModelInfo(), model
        try:
            endpoint = (await self._selector.find(model, env, config)).endpoint
        except (ConfigError, KedgeError):  # a run will say what is wrong
            pass
        else:
            info, name = endpoint.info, endpoint.name
        from kedge.agent.context_report import report_context  # at its first use

        report = partial(report_context, stored, info, name, self._tools, config.agent.summarize_at)
        return await asyncio.to_thread(report)

    async def logins(self) -> Logins:
        return self._logins

    async def languages(self) -> LanguageServices:
        return self._languages

    async def mcp(self) -> McpAccess:
        return self._get_mcp_access()

    def _get_mcp_access(self) -> McpAccess:
        """Created on first use: a run without MCP servers does not need it."""
        with self._mcp_lock:
            if self._mcp_access is None:
                from kedge.agent.mcp_access import McpAccess
                from kedge.models.keys.secrets import McpSecrets

                secrets = McpSecrets(self._data_dir / CREDENTIALS_FILE)
                self._mcp_access = McpAccess(self._mcp, self._configure, self._environ, secrets)
            return self._mcp_access

    async def config_changed(self, workspace_id: str, directory: Path, host: WorkspaceHost) -> None:
        await self._mcp.config_changed(workspace_id, directory, host)
        await self._languages.config_changed(workspace_id, directory)

    async def workspace_deleted(self, workspace_id: str) -> None:
        await self._mcp.close_workspace(workspace_id)
        await self._languages.close_workspace(workspace_id)

    async def check_model(self, model: str, directory: Path) -> None:
        """Raise `Invalid` if there is no provider of the model's name."""
        provider = model.partition("/")[0]
        try:
            config = await asyncio.to_thread(self._configure, directory, self._environ)
        except KedgeError:  # a run will say what is wrong
            return
        try:
            if provider != LOCAL:
                require_provider(provider, config, model)
        except ConfigError as error:
            raise Invalid("invalid_model", error.text) from error

    async def check_mode(self, mode: Mode, options: RunOptions, directory: Path, env: Mapping[str, str] | None) -> None:
        """Raise `Invalid` if a run with these options cannot work in the mode: `auto` needs a limit on cost."""
        if mode == "auto" and options.max_cost is None:
            config = await asyncio.to_thread(self._configure, directory, self._environ if env is None else env)
            if config.agent.max_cost is None:
                raise Invalid("max_cost_required", AUTO_NEEDS_MAX_COST)

    async def warm_up(self) -> None:
        """Load what the first run would otherwise wait for."""
        await asyncio.to_thread(lambda: [describe_tool(tool) for tool in self._tools])
        await asyncio.to_thread(remove_old_scratch, self._data_dir)

    async def session_deleted(self, session_id: str) -> None:
        await asyncio.to_thread(remove_scratch, self._data_dir, session_id)

    async def close(self) -> None:
        if self._mcp_access is not None:
            await self._mcp_access.close()
        await asyncio.gather(self._mcp.close(), self._languages.close())
        await self.titles.close()
        await self.jobs.close()
        await self._models.close()
        await self._embedded.close()


_NOT_STARTED = 126  # the exit code of shells for a command that they cannot run


class ShellTurn:
    """The turn of a run of kind `shell`. It lasts until the command exits or is canceled."""

    def __init__(self, data_dir: Path, jobs: WorkspaceJobs, environ: Mapping[str, str]) -> None:
        self._data_dir = data_dir
        self._jobs = jobs
        self._environ = environ

    async def __call__(self, ctx: TurnContext) -> None:
        writer = ctx.begin_command()
        if writer is None:
            raise TurnFailed(
                "The server stopped while this command was running. It may have had effects and was not run again.",
                "interrupted",
            )
        scope = TurnScope(
            ctx,
            env=drop_invalid_variables(self._environ if ctx.env is None else ctx.env),
            config=Config(),  # the user's own command is not restricted by the configuration
            data_dir=self._data_dir,
            jobs=self._jobs.of(ctx.workspace_id),
            sees_images=False,
        )
        from kedge.tools.builtin.bash import run_user_command  # at its first use

        try:
            async with ctx.watch_files(scope.env, scope.config.files.max_bytes):
                output, code = await run_user_command(CallContext(ctx, scope, "", writer, None), ctx.run.prompt)
        except ToolError as error:
            output, code = error.text, _NOT_STARTED
        await writer.finish(output, code)
