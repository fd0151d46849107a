"""A turn: history → step → calls → results → … until the model has nothing more to do. Prompts join it between steps.

What comes next is decided by the history alone, so that a turn that was killed anywhere goes on from its last commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from kedge.agent.api_keys import TurnKeys
from kedge.agent.deps import Parts
from kedge.agent.output_schema import OutputSchema
from kedge.agent.step import ContextFull, Limits, Steps
from kedge.agent.summary import Prepared, Why, is_nearly_full, summarise
from kedge.agent.system_prompt import Role, look_around, system_prompt
from kedge.agent.tool_calls import Calls, Denied
from kedge.agent.tool_context import TurnPlace
from kedge.agent.tool_params import spec_of
from kedge.agent.tool_results import known_files
from kedge.agent.turn_models import TurnModels, choose_effort
from kedge.agent.turn_state import (
    END_AT,
    Step,
    count_empty_answers,
    last_step,
    made_calls,
    rounds,
    with_empty_answer_named,
)
from kedge.config.rules import BadRule
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.files.environment import drop_invalid_variables, with_safe_path
from kedge.models.values import ModelInfo, StepRequest, ToolSpec
from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import FinishReason, Message
from kedge.protocol.runs import Mode
from kedge.tools.permissions.judge import Judge
from kedge.tools.permissions.policy import read_grants
from kedge.tools.port import Tool
from kedge.tools.registry import select_tools
from kedge.tools.sandbox.sandbox import can_sandbox_read_only

MAX_EMPTY_ANSWERS = 2  # in a row: one is asked for once more


class _Hands(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn works with; the same over all of its steps."""

    system: str
    specs: Sequence[ToolSpec]
    place: TurnPlace
    calls: Calls
    steps: Steps
    limits: Limits
    keys: TurnKeys


class AgentTurn:
    """The turn of a prompt, and that of a sub-agent."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def __call__(self, ctx: TurnContext) -> None:
        await _Turn(self._parts, ctx, await _output_schema(ctx)).work()

    async def prepare(self, ctx: TurnContext, history: list[Message]) -> Prepared:
        """What a step would be taken with now, for a run that only summarises."""
        return await _Turn(self._parts, ctx, None).prepared(history)


class _Turn:
    def __init__(self, parts: Parts, ctx: TurnContext, schema: OutputSchema | None) -> None:
        self._parts = parts
        self._ctx = ctx
        self._run_id = ctx.run.run_id
        self._schema = schema
        self._hands: _Hands | None = None

    async def work(self) -> None:
        history = await self._ctx.history()
        while True:
            step = last_step(history, self._run_id)
            if step is not None and step.is_denied:
                return  # a person's no ends the turn; what they say next begins another
            if step is not None and step.open_calls:
                try:
                    await self._call(step, history)
                except Denied:
                    return
            elif step is not None and not step.calls and self._is_answer(step, history):
                if not await self._ctx.join():
                    return
            else:
                await self._step(history, is_first=step is None)
            history = await self._ctx.history()

    async def _call(self, step: Step, history: list[Message]) -> None:
        hands = await self._ready(history)
        hands.place.known_files.clear()
        hands.place.known_files.update(known_files(history))
        made = made_calls(history, self._run_id)
        await hands.calls.run(step.message.id, step.open_calls, made, is_cut_off=step.is_cut_off)

    async def _step(self, history: list[Message], *, is_first: bool) -> None:
        hands = await self._ready(history)
        if not is_first:
            _check_circles(history, self._run_id)
            if await self._ctx.join():
                history = await self._ctx.history()
        await hands.limits.check()
        if is_nearly_full(history, hands.steps.endpoint.info, hands.place.config.agent):
            await self._summarise(history, "full")
            history = await self._ctx.history()
        asked = history
        if count_empty_answers(history, self._run_id):
            await self._tell_of_empty_answer()
            asked = with_empty_answer_named(history)
        try:
            await hands.steps.take(self._request(hands, asked))
        except ContextFull as full:
            if not any(message.role == "assistant" for message in history):  # the prompt alone is too much
                raise TurnFailed(full.error.text, full.error.code) from full
            await self._summarise(history, "refused")

    async def _summarise(self, history: list[Message], why: Why) -> None:
        await summarise(self._ctx, self._parts.models, await self.prepared(history), why=why, retry=self._parts.retry)

    async def prepared(self, history: list[Message]) -> Prepared:
        hands = await self._ready(history)
        return Prepared(hands.steps.endpoint, self._request(hands, history), hands.keys)

    def _request(self, hands: _Hands, history: Sequence[Message]) -> StepRequest:
        endpoint = hands.steps.endpoint
        return StepRequest(
            system=hands.system,
            history=history if self._schema is None else self._schema.with_corrections(history, self._run_id),
            tools=hands.specs,
            max_output_tokens=endpoint.info.max_output_tokens,
            effort=choose_effort(endpoint, hands.place.config, self._ctx.effort),
        )

    def _is_answer(self, step: Step, history: Sequence[Message]) -> bool:
        """Whether a step without calls is the run's answer; raises where it cannot be one."""
        if step.is_cut_off:  # half an answer is there to be read, and is no success that a script could build on
            raise TurnFailed((_HALF_AN_ANSWER if step.text else _NO_ANSWER)[step.reason], step.reason)
        if empty := count_empty_answers(history, self._run_id):
            if empty >= MAX_EMPTY_ANSWERS:
                raise TurnFailed(
                    "the model's answer was empty, twice; ask again, or choose another model", "empty_answer"
                )
            return False
        return self._schema is None or self._schema.check(history, self._run_id)

    async def _tell_of_empty_answer(self) -> None:
        details = {"attempt": MAX_EMPTY_ANSWERS, "of": MAX_EMPTY_ANSWERS, "delay_s": 0.0}
        await self._ctx.append_event(
            AgentEvent(
                type="retry",
                run_id="",
                session_id="",
                error="the model's answer was empty",
                code="empty_answer",
                details=details,
            )
        )

    async def _ready(self, history: list[Message]) -> _Hands:
        """What the turn works with, put together when it is first needed."""
        if self._hands is None:
            self._hands = await self._made_ready(history)
        return self._hands

    async def _made_ready(self, history: list[Message]) -> _Hands:
        parts, ctx = self._parts, self._ctx
        env = drop_invalid_variables(parts.environ if ctx.env is None else ctx.env)
        config = await asyncio.to_thread(parts.configure, ctx.directory, env)
        # A command that prints a key, and whatever fetches a model, must not be found in the workspace.
        outside = await asyncio.to_thread(with_safe_path, env, ctx.directory)
        keys = TurnKeys(ctx, parts.selector, parts.credentials, outside, config)
        models = TurnModels(parts, ctx, outside, config)
        large = await models.select_large(keys, is_first=len(history) == 1)
        endpoint = large.endpoint
        if config.agent.titles:
            parts.titles.begin(ctx, history, lambda: models.select_small(large))
        place = TurnPlace(
            ctx,
            env=env,
            config=config,
            data_dir=parts.data_dir,
            jobs=parts.jobs.of(ctx.workspace_id),
            sees_images=endpoint.info.images,
        )
        judge = await _judge(ctx, place)
        place.is_hidden = judge.hidden
        place.sandbox = msgspec.structs.replace(place.sandbox, is_planning=judge.mode == "plan")
        tools = await self._tools(place, endpoint.info, judge.mode)
        await models.report_ignored_effort(endpoint, has_tools=bool(tools))
        return _Hands(
            system=await self._system(place, endpoint.info, judge.mode, has_tools=bool(tools)),
            specs=[spec_of(tool) for tool in tools],
            place=place,
            calls=Calls(ctx, place, {tool.name: tool for tool in tools}, judge),
            steps=Steps(ctx, parts.models, endpoint, parts.retry, keys),
            limits=Limits(ctx, config, endpoint),
            keys=keys,
        )

    async def _tools(self, place: TurnPlace, info: ModelInfo, mode: Mode) -> Sequence[Tool]:
        if not info.tools or info.is_tiny:
            return ()
        run = self._ctx.run
        can_sandbox = mode != "plan" or await asyncio.to_thread(can_sandbox_read_only)
        return select_tools(run.kind, run.permissions, mode, self._parts.tools, can_sandbox=can_sandbox)

    async def _system(self, place: TurnPlace, info: ModelInfo, mode: Mode, *, has_tools: bool) -> str:
        ctx, parts = self._ctx, self._parts
        around = await look_around(
            parts.repositories, place.session_id, place.directory, place.env, place.config, parts.today()
        )
        role = Role(
            is_sub_agent=ctx.run.kind == "agent",
            is_tiny=info.is_tiny,
            has_tools=has_tools,
            mode=mode,
            is_attended=ctx.run.permissions == "ask",
            own=ctx.options.system,
            output_schema=self._schema and self._schema.told,
        )
        return system_prompt(role, around)


_HALF_AN_ANSWER: dict[FinishReason, str] = {
    "max_tokens": "the answer was cut off at the model's output limit; ask for less at once, or raise the limit",
    "content_filter": "the provider's content filter stopped the answer in its middle; say it in other words",
}
_NO_ANSWER: dict[FinishReason, str] = {
    "max_tokens": "the model reached its output limit before it said anything; ask for less, or raise it",
    "content_filter": "the provider's content filter stopped the answer before it began; say it in other words",
}


async def _judge(ctx: TurnContext, place: TurnPlace) -> Judge:
    try:
        return Judge(
            place.config.permissions,
            ctx.options,
            ctx.run.permissions,
            directory=ctx.directory,
            scratch=place.scratch,
            home=place.env.get("HOME"),
            grants=read_grants(await ctx.grants()),
            is_skipped=ctx.skips_permissions,
            env=place.env,
        )
    except BadRule as error:
        raise TurnFailed(str(error), "bad_config") from error


async def _output_schema(ctx: TurnContext) -> OutputSchema | None:
    """Checked first of all: a wrong schema is refused before anything is spent."""
    schema = ctx.options.output_schema
    return None if schema is None else await asyncio.to_thread(OutputSchema, schema)


def _check_circles(history: Sequence[Message], run_id: str) -> None:
    made = made_calls(history, run_id)
    if (repeated := rounds(made)) >= END_AT:
        raise TurnFailed(
            f"stopped: the model called {made[-1].name} {repeated} times in a circle with the same result;"
            " tell it what to do instead",
            "repeats",
        )
