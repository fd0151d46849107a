"""The turn of a prompt: model steps and tool calls, until the model answers. New prompts join between steps.

The next action depends on the history alone, so that a turn killed at any point continues from its last commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from kedge.agent.catalog import describe_tools, list_agents, list_skills, max_catalog_chars
from kedge.agent.context_files import find_shown_files
from kedge.agent.context_window import explain_small_window, fit_request, is_nearly_full, max_result_chars
from kedge.agent.fallback import ModelChoice
from kedge.agent.limits import RunLimits
from kedge.agent.retry import ModelUnavailable, RetryPolicy
from kedge.agent.step import ContextFull, StepRunner
from kedge.agent.summary import PreparedStep, SummaryReason, SummaryRefused, summarize
from kedge.agent.surroundings import SessionSurroundings, read_surroundings
from kedge.agent.system_prompt import Role, build_system_prompt, describe_for_model
from kedge.agent.text_calls import TextCall, find_text_calls, may_write_calls_as_text
from kedge.agent.tool_calls import Denied, ToolRunner
from kedge.agent.tool_context import MAX_CHARS, TurnScope
from kedge.agent.turn_mode import TurnMode
from kedge.agent.turn_models import AgentDeps, TurnApiKeys, TurnModels, choose_effort, find_search_key
from kedge.agent.turn_state import (
    STOP_AT_REPEATS,
    Step,
    add_empty_answer_note,
    count_empty_answers,
    count_repeats,
    find_circle,
    find_last_step,
    find_past_calls,
)
from kedge.config.rules import BadRule
from kedge.config.schema import Config, HooksConfig
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.files.environment import drop_invalid_variables, with_safe_path
from kedge.models.values import Endpoint, ModelInfo, StepRequest, ToolSpec
from kedge.protocol.errors import KedgeError
from kedge.protocol.messages import FinishReason, Message
from kedge.protocol.runs import Mode
from kedge.skills.library import Library
from kedge.tools.permissions.judge import Judge
from kedge.tools.permissions.policy import read_grants
from kedge.tools.port import Tool
from kedge.tools.registry import load_language_tools, select_tools

if TYPE_CHECKING:
    from kedge.agent.hooks.hooks import Hooks
    from kedge.agent.mcp_tools import SessionTools
    from kedge.agent.output_schema import OutputSchema


MAX_EMPTY_ANSWERS = 2  # in a row: the model is asked again once


class _TurnBase(msgspec.Struct, frozen=True, kw_only=True):
    """What does not depend on the model."""

    env: Mapping[str, str]
    config: Config
    keys: TurnApiKeys
    models: TurnModels
    limits: RunLimits
    choice: ModelChoice
    hooks: Hooks | None


class _TurnSetup(msgspec.Struct, frozen=True, kw_only=True):
    system: str
    surroundings: SessionSurroundings
    tools: Sequence[ToolSpec]
    scope: TurnScope
    mode: TurnMode
    tool_runner: ToolRunner
    step_runner: StepRunner
    limits: RunLimits
    keys: TurnApiKeys
    retry: RetryPolicy
    callable_tools: Mapping[str, Tool]
    search_price: float | None  # of a search by the model's provider; None: it may not search
    mcp: SessionTools | None

    @property
    def all_tools(self) -> Sequence[ToolSpec]:
        return self.tools if self.mcp is None else [*self.tools, *self.mcp.specs]

    def find_text_calls(self, endpoint: Endpoint, text: str) -> Sequence[TextCall]:
        return find_text_calls(text, self.callable_tools) if may_write_calls_as_text(endpoint) else ()


class AgentTurn:
    def __init__(self, deps: AgentDeps) -> None:
        self._deps = deps

    async def __call__(self, ctx: TurnContext) -> None:
        schema = ctx.options.output_schema  # compiled at the start: an invalid one is refused before any cost
        compiled = None
        if schema is not None:
            from kedge.agent.output_schema import OutputSchema  # most runs have none

            compiled = await asyncio.to_thread(OutputSchema, schema)
        turn = _Turn(self._deps, ctx, compiled)
        try:
            await turn.run()
        except (TurnFailed, KedgeError) as error:
            await turn.finish_hooks(error.text if isinstance(error, TurnFailed) else error.message)
            raise
        await turn.finish_hooks(None)

    async def prepare(self, ctx: TurnContext, history: list[Message]) -> PreparedStep:
        """Return the step that would come next, for a run that only summarizes."""
        return await _Turn(self._deps, ctx, None, falls_back=False).prepare(history)


class _Turn:
    def __init__(
        self, deps: AgentDeps, ctx: TurnContext, schema: OutputSchema | None, *, falls_back: bool = True
    ) -> None:
        self._deps = deps
        self._ctx = ctx
        self._run_id = ctx.run.run_id
        self._schema = schema
        self._falls_back = falls_back
        self._base: _TurnBase | None = None
        self._judge: Judge | None = None
        self._library = Library()
        self._setup: _TurnSetup | None = None
        self._told_mode: Mode | None = None  # in which the model was told what it may do

    @property
    def _run_ids(self) -> set[str]:
        """The ids of the run and of those that joined it."""
        return {self._run_id, *(run.run_id for run in self._ctx.joined)}

    async def run(self) -> None:
        history = await self._ctx.history()
        step = find_last_step(history, self._run_id)
        if step is not None and step.results and (hooks := await self._get_hooks(history)) is not None:
            await hooks.handle_earlier_results(history, step)
        while True:
            step = find_last_step(history, self._run_id)
            if step is not None and step.is_denied:
                return  # the person's next prompt begins another turn
            try:
                if step is not None and step.open_calls:
                    await self._run_calls(step, history)
                elif step is not None and not step.calls and self._is_answer(step, history):
                    hooks = await self._get_hooks(history)
                    if hooks is not None and not await hooks.may_stop(history, step):
                        await self._run_step(history, is_first=False)
                    elif not await self._ctx.join():
                        return
                else:
                    await self._run_step(history, is_first=step is None)
            except Denied:
                return
            except ModelUnavailable as failed:
                await (await self._get_base()).choice.change(failed)
                self._setup = None
            history = await self._ctx.history()

    async def finish_hooks(self, error: str | None) -> None:
        """Run the hooks for the end of the run, and stop waiting for those that only observe."""
        if self._base is None or (hooks := self._base.hooks) is None:
            return
        text = ""
        if error is None:
            step = find_last_step(await self._ctx.history(), self._run_id)
            text = "" if step is None else step.text
        await hooks.complete_run(error, text)
        await hooks.close()

    async def prepare(self, history: list[Message]) -> PreparedStep:
        setup = await self._get_setup(history)
        request = self._build_request(setup, history)
        hooks = await self._get_hooks(history)
        prompts = setup.surroundings.notes.prompts
        return PreparedStep(
            setup.step_runner.endpoint, request, setup.keys, setup.retry, setup.scope.jobs, hooks, prompts
        )

    async def _run_calls(self, step: Step, history: list[Message]) -> None:
        setup = await self._get_setup(history)
        setup.scope.learn_history(history)
        setup.scope.known_files.update(setup.surroundings.notes.list_edited(history))
        setup.scope.shown_instructions = setup.surroundings.list_digests() | find_shown_files(history)
        past_calls = find_past_calls(history, self._run_id)
        await setup.tool_runner.run(step, past_calls)

    async def _run_step(self, history: list[Message], *, is_first: bool) -> None:
        setup = await self._get_setup(history)
        await self._follow_mode(setup)
        if not is_first:
            _check_repeats(history, self._run_id)
            if await self._ctx.join():
                history = await self._ctx.history()
        await setup.limits.check()
        if (hooks := await self._get_hooks(history)) is not None:
            await hooks.begin_session(history, self._deps.hook_sessions)
            await hooks.submit_prompts(history)
        if setup.mcp is not None:
            await setup.mcp.update()
        is_tiny = setup.step_runner.endpoint.info.is_tiny
        if self._ctx.run.kind == "prompt" and self._library.has_slash_commands and not is_tiny and self._judge:
            from kedge.agent.slash_commands import PromptExpander

            expander = PromptExpander(setup.surroundings.notes, setup.scope, self._judge, setup.tool_runner)
            await expander.expand(history, self._run_ids)
        if is_nearly_full(history, setup.step_runner.endpoint.info, setup.scope.config.agent):
            with contextlib.suppress(SummaryRefused):  # there may be room for another step
                await self._summarize(history, "full")
            history = await self._ctx.history()
            if hooks is not None:
                await hooks.begin_session(history, self._deps.hook_sessions)
        if not setup.step_runner.endpoint.info.is_tiny:
            await setup.surroundings.note_changes(history)
        messages = history
        if count_empty_answers(history, self._run_id):
            await self._announce_empty_answer()
            messages = add_empty_answer_note(history)
        try:
            request = self._build_request(setup, messages)
            # An answer that must match a schema is JSON, and never a call.
            find_calls = setup.find_text_calls if self._schema is None else None
            await setup.step_runner.run(fit_request(request, setup.step_runner.endpoint), find_calls)
            (await self._get_base()).choice.note_answer()
        except ContextFull as full:
            if not any(message.role == "assistant" for message in history):  # the prompt alone is too long
                advice = "send a shorter prompt, or use a model with a larger context window"
                raise TurnFailed(f"{full.error.text}; {advice}", full.error.code) from full
            await self._summarize(history, "refused")

    async def _follow_mode(self, setup: _TurnSetup) -> None:
        """Apply the mode that the run has now; if it is another one, the model is told with the next request."""
        if (mode := await setup.mode.follow()) == self._told_mode:
            return
        assert self._judge is not None
        endpoint = setup.step_runner.endpoint
        setup.limits.check_price(endpoint)
        tools = self._select_tools(endpoint.info, setup.scope.config)
        permissions = await describe_for_model(self._ctx.run, setup.scope, self._judge, tools)
        setup.surroundings.change_permissions(permissions)
        self._told_mode = mode

    async def _load_config(self) -> Config:
        env = (await self._get_base()).env
        return await asyncio.to_thread(self._deps.configure, self._ctx.directory, env)

    async def _summarize(self, history: list[Message], reason: SummaryReason) -> None:
        if (problem := find_circle(await self._ctx.summarized())) is not None:
            raise TurnFailed(problem, "repeats")
        await summarize(self._ctx, self._deps.models, await self.prepare(history), reason=reason)

    def _build_request(self, setup: _TurnSetup, history: Sequence[Message]) -> StepRequest:
        endpoint = setup.step_runner.endpoint
        history = setup.surroundings.notes.add_to(history)
        return StepRequest(
            system=setup.system,
            history=history if self._schema is None else self._schema.add_corrections(history, self._run_id),
            tools=setup.all_tools,
            effort=choose_effort(endpoint, setup.scope.config, self._ctx.effort),
            search_price=setup.search_price,
        )

    def _is_answer(self, step: Step, history: Sequence[Message]) -> bool:
        """Return whether a step without calls is the run's answer; raise `TurnFailed` if it cannot be one."""
        if step.is_cut_off:  # people can read half an answer, but scripts must not take it for a success
            raise TurnFailed((_CUT_OFF_ANSWER if step.text else _NO_ANSWER)[step.reason], step.reason)
        if step.is_paused:  # the provider goes on with its own searches
            return False
        if empty := count_empty_answers(history, self._run_id):
            if empty >= MAX_EMPTY_ANSWERS:
                raise TurnFailed(
                    "The model's answer was empty twice. Try again, or choose another model.", "empty_answer"
                )
            return False
        return self._schema is None or self._schema.check_answer(history, self._run_id)

    async def _announce_empty_answer(self) -> None:
        details = {"attempt": MAX_EMPTY_ANSWERS, "of": MAX_EMPTY_ANSWERS, "delay_s": 0.0}
        await self._ctx.append_event(
            "retry", error="the model's answer was empty", code="empty_answer", details=details
        )

    async def _get_hooks(self, history: list[Message]) -> Hooks | None:
        """Return the hooks with the session's notes, or None if none are configured."""
        if (hooks := (await self._get_base()).hooks) is not None and hooks.notes is None:
            hooks.notes = (await self._get_setup(history)).surroundings.notes
        return hooks

    def _create_hooks(self, config: Config) -> Hooks | None:
        if config.hooks == HooksConfig() and not config.plugins:
            return None
        from kedge.agent.hooks.hooks import Hooks
        from kedge.agent.hooks.plugins import add_plugin_hooks

        config = msgspec.structs.replace(config, hooks=add_plugin_hooks(config, self._deps.environ))

        return Hooks(self._ctx, config, self._deps.environ, lambda: (self._judge or config.permissions).mode)

    async def _get_setup(self, history: list[Message]) -> _TurnSetup:
        if self._setup is None:
            self._setup = await self._build_setup(history)
        await self._learn_window(self._setup)
        return self._setup

    async def _learn_window(self, setup: _TurnSetup) -> None:
        """Ask a server of the user's own for the context window, which some decide at the first request."""
        known = setup.step_runner.endpoint
        endpoint = setup.step_runner.endpoint = await self._deps.models.add_window(known)
        setup.scope.max_result_chars = min(max_result_chars(endpoint.info), MAX_CHARS)
        if endpoint is not known and (problem := explain_small_window(endpoint, setup.system, setup.all_tools)):
            await self._ctx.append_event("notice", message=problem, details={"model": endpoint.name})

    async def _get_base(self) -> _TurnBase:
        if self._base is None:
            deps, ctx = self._deps, self._ctx
            env = drop_invalid_variables(deps.environ if ctx.env is None else ctx.env)
            config = await asyncio.to_thread(deps.configure, ctx.directory, env)
            # Commands that print an API key or download a model must not be found in the workspace.
            outside = await asyncio.to_thread(with_safe_path, env, ctx.directory)
            library = self._library = await asyncio.to_thread(deps.libraries.read, ctx.directory, env, config)
            ctx.publish_skills(library.state, library.home)
            if ctx.run.model is None and library.has_slash_commands:
                from kedge.agent.slash_commands import find_model

                ctx.model = find_model(ctx.run, library) or ctx.model
            keys = TurnApiKeys(ctx, deps.selector, deps.credentials, outside, config)
            models = TurnModels(deps, ctx, outside, config)
            limits = RunLimits(ctx, config, deps.cost_questions)
            names = config.fallback_models if self._falls_back else ()
            choice = ModelChoice(ctx, models, keys, limits, names)
            self._base = _TurnBase(
                env=env,
                config=config,
                keys=keys,
                models=models,
                limits=limits,
                choice=choice,
                hooks=await asyncio.to_thread(self._create_hooks, config),
            )
        return self._base

    async def _build_setup(self, history: list[Message]) -> _TurnSetup:
        deps, ctx = self._deps, self._ctx
        base = await self._get_base()
        endpoint = (await base.choice.select(history)).endpoint
        base.limits.check_price(endpoint)
        retry = msgspec.structs.replace(base.models.retry, falls_back=base.choice.falls_back)
        scope = TurnScope(
            ctx,
            env=base.env,
            config=base.config,
            data_dir=deps.data_dir,
            jobs=deps.jobs.of(ctx.workspace_id),
            sees_images=endpoint.info.images,
        )
        scope.find_search_key = lambda: find_search_key(deps.credentials, base.config.search, base.env)
        scope.max_result_chars = min(max_result_chars(endpoint.info), MAX_CHARS)  # also bounds instruction files
        # The same after a change of model: it knows what the user has allowed meanwhile.
        scope.library = self._library
        judge = self._judge = self._judge or await _create_judge(ctx, scope)
        judge.skill_directories = [skill.origin.directory for skill in self._library.skills.values()]
        if self._library.has_slash_commands:
            from kedge.agent.slash_commands import list_active_rules

            judge.grant(list_active_rules(history, self._run_ids, self._library))
        mode = TurnMode(ctx, scope, judge, base.limits, self._load_config)
        self._told_mode = await mode.follow()
        base.limits.check_price(endpoint)  # mode `auto` may have read a limit
        tools = self._select_tools(endpoint.info, base.config)
        surroundings = await self._load_surroundings(scope, judge, tools, history)
        tools = [tool for tool in tools if surroundings.has_skills or tool.name != "skill"]
        languages = await deps.languages.open(ctx, base.config) if tools and surroundings.first.languages else None
        scope.languages = languages and languages.features
        if languages is not None:
            tools += select_tools(ctx.run.kind, ctx.run.permissions, load_language_tools())
        await base.models.report_other_effort(endpoint, has_tools=bool(tools))
        if base.hooks is not None:
            base.hooks.model, base.hooks.notes = endpoint.name, surroundings.notes
        mcp = await self._open_mcp(base.config, endpoint.info) if tools else None
        by_name = ChainMap({tool.name: tool for tool in tools}, {} if mcp is None else mcp.by_name)
        return _TurnSetup(
            system=self._build_system(surroundings, endpoint.info, has_tools=bool(tools)),
            surroundings=surroundings,
            tools=describe_tools(tools, surroundings.agents),
            scope=scope,
            mode=mode,
            tool_runner=ToolRunner(ctx, scope, by_name, judge, mode, base.hooks, mcp, languages),
            callable_tools=by_name,
            search_price=await base.models.choose_search_price(endpoint, judge) if tools else None,
            mcp=mcp,
            step_runner=StepRunner(ctx, deps.models, endpoint, retry, base.keys),
            limits=base.limits,
            keys=base.keys,
            retry=retry,
        )

    def _select_tools(self, info: ModelInfo, config: Config) -> Sequence[Tool]:
        if not info.tools or info.is_tiny:
            return ()
        run = self._ctx.run
        can_search = config.search.provider not in (None, "model")
        return select_tools(
            run.kind, run.permissions, self._deps.tools, can_search=can_search, names=self._ctx.options.tools
        )

    async def _open_mcp(self, config: Config, info: ModelInfo) -> SessionTools | None:
        """Sub-agents only read, which no server can promise: they get no tools of MCP servers."""
        if self._ctx.run.kind == "agent":
            return None
        return await self._deps.mcp.open_session(
            self._ctx,
            config.mcp,
            window=info.context_window,
            percent=config.agent.mcp_tools_percent,
        )

    async def _load_surroundings(
        self, scope: TurnScope, judge: Judge, tools: Sequence[Tool], history: list[Message]
    ) -> SessionSurroundings:
        ctx = self._ctx
        permissions = await describe_for_model(ctx.run, scope, judge, tools)
        is_new = not any(message.role == "assistant" for message in history)
        current = await read_surroundings(
            scope.directory,
            scope.env,
            scope.config,
            self._deps.today(),
            scratch=scope.scratch,
            permissions=permissions,
            max_bytes=scope.max_result_chars,
            skills=list_skills(scope.library) if any(tool.name == "skill" for tool in tools) else (),
            agents=list_agents(scope.library, scope.config.agent.writers)
            if any(tool.name == "agent" for tool in tools)
            else (),
        )
        if is_new and tools and await self._deps.languages.find_installed(ctx.directory, scope.config):
            current = msgspec.structs.replace(current, languages=True)
        return await SessionSurroundings.load(ctx, current, scope.env, is_new=is_new)

    def _build_system(self, surroundings: SessionSurroundings, info: ModelInfo, *, has_tools: bool) -> str:
        ctx = self._ctx
        role = Role(
            is_sub_agent=ctx.run.kind == "agent",
            is_tiny=info.is_tiny,
            has_tools=has_tools,
            is_attended=ctx.run.permissions == "ask",
            own=ctx.options.system,
            output_schema=self._schema and self._schema.text,
        )
        return build_system_prompt(role, surroundings.first, max_catalog_chars(info))


_CUT_OFF_ANSWER: dict[FinishReason, str] = {
    "max_tokens": "The answer was cut off at the model's output limit. Ask for a shorter answer, or raise the limit.",
    "content_filter": "The provider's content filter stopped the answer. Rephrase the prompt.",
}
_NO_ANSWER: dict[FinishReason, str] = {
    "max_tokens": "The model reached its output limit before it answered. Ask for less, or raise the limit.",
    "content_filter": "The provider's content filter blocked the answer. Rephrase the prompt.",
}


async def _create_judge(ctx: TurnContext, scope: TurnScope) -> Judge:
    try:
        return Judge(
            scope.config.permissions,
            ctx.options,
            ctx.run.permissions,
            directory=ctx.directory,
            scratch=scope.scratch,
            home=scope.env.get("HOME"),
            grants=read_grants(await ctx.grants()),
            is_skipped=ctx.skips_permissions,
            env=scope.env,
        )
    except BadRule as error:
        raise TurnFailed(str(error), "bad_config") from error


def _check_repeats(history: Sequence[Message], run_id: str) -> None:
    past_calls = find_past_calls(history, run_id)
    if (repeats := count_repeats(past_calls)) >= STOP_AT_REPEATS:
        raise TurnFailed(
            f"Stopped: the model called {past_calls[-1].name} {repeats} times with the same result."
            " Tell it what to do differently.",
            "repeats",
        )
