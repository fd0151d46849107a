"""The calls of one step: those that only read run side by side, those that change something one after the other.

A call asks for permission before it starts: a call that only waits for a person has not started (P13). Whatever goes
wrong with it becomes a result that the model can learn from; each result is committed as soon as it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from kedge.agent import tool_params
from kedge.agent.tool_context import CallContext, TurnPlace
from kedge.agent.tool_results import bounded, clean, files_of
from kedge.agent.turn_state import DENIED, WARN_AT, WARNING, Made, rounds
from kedge.engine.errors import TurnFailed
from kedge.engine.message_writer import ToolWriter
from kedge.engine.turn import TurnContext
from kedge.protocol.messages import RefusalReason, ToolCall
from kedge.protocol.requests import Answer
from kedge.protocol.text_safety import visible_line
from kedge.store.errors import ClaimLost
from kedge.tools.errors import ToolError
from kedge.tools.permissions.judge import Judge
from kedge.tools.permissions.policy import Allow, Ask, Deny
from kedge.tools.port import Access, Output, RunAs, Tool

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_SIDE_BY_SIDE = 10  # calls; more would only wait for each other's disk


CUT_OFF = (
    "This call was cut off at the output limit before it was complete, so it was not run."
    " Make smaller calls: write a long file in several steps."
)

_NO_SANDBOX = (
    "Refused: the sandbox that is configured for commands is unavailable here ({why}), and nobody can approve running"
    " without it. Do without this command."
)


class Denied(Exception):
    """A person said no: the turn ends here."""


class _Permission(NamedTuple):
    """How a permitted call may run."""

    may_run_unsandboxed: bool = False
    changes_nothing: bool = False  # a command that is known to be read-only
    run_as: RunAs = "approved"
    readable: tuple[str, ...] = ()
    path: Path | None = None  # what was judged; each tool touches one path at most


class _Ready(NamedTuple):
    tool: Tool
    params: msgspec.Struct
    permission: _Permission
    answer: Answer | None = None


class Calls:
    """For one turn: its tools, their place, and who judges what they want."""

    def __init__(self, ctx: TurnContext, place: TurnPlace, tools: Mapping[str, Tool], judge: Judge) -> None:
        self._ctx = ctx
        self._place = place
        self._tools = tools
        self._judge = judge
        self._made: list[Made] = []

    async def run(self, message_id: str, calls: Sequence[ToolCall], made: Sequence[Made], *, is_cut_off: bool) -> None:
        """Give each of these calls its result. `made` are those before them; `is_cut_off`: the step's end is missing.

        Raises `Denied` when a person refused one: what was not run by then never is.
        """
        self._made = list(made)
        for batch in self._batches(calls):
            await _side_by_side([self._work(message_id, call, is_cut_off=is_cut_off) for call in batch])

    def _batches(self, calls: Sequence[ToolCall]) -> list[list[ToolCall]]:
        batches: list[list[ToolCall]] = []
        is_open = False  # for one more beside the last
        for call in calls:
            tool = self._tools.get(call.name)
            is_read_only = tool is None or tool.is_read_only
            if is_open and is_read_only and len(batches[-1]) < MAX_SIDE_BY_SIDE:
                batches[-1].append(call)
            else:
                batches.append([call])
            is_open = is_read_only
        return batches

    async def _work(self, message_id: str, call: ToolCall, *, is_cut_off: bool) -> None:
        ready = await self._ready(message_id, call, is_cut_off=is_cut_off)
        writer = await self._ctx.begin_tool_result(message_id, call.id, call.name)
        if isinstance(ready, _Ready):
            context = CallContext(self._ctx, self._place, call.id, writer, ready.answer)
            context.may_run_unsandboxed = ready.permission.may_run_unsandboxed
            context.run_as, context.readable_paths = ready.permission.run_as, ready.permission.readable
            context.approved_path = ready.permission.path
            output = await _contained(call.name, lambda: self._run(ready, context))
        else:
            output = ready
        await self._finish(call, writer, output)

    async def _run(self, ready: _Ready, context: CallContext) -> Output:
        """What a tool may change without saying so is watched: two looks at the whole workspace."""
        if ready.permission.changes_nothing or ready.tool.facts.changes != "anything":
            return await ready.tool.run(context, ready.params)
        env, max_bytes = self._place.env, self._place.config.files.max_bytes
        async with self._ctx.watch_files(env, max_bytes):
            return await ready.tool.run(context, ready.params)

    async def _ready(self, message_id: str, call: ToolCall, *, is_cut_off: bool) -> _Ready | Output:
        tool = self._tools.get(call.name)
        if tool is None:
            return Output(content=tool_params.unknown_tool(call.name, self._tools), is_error=True)
        try:
            given = tool_params.decoded(tool, call.input)
        except ToolError as error:
            return Output(content=CUT_OFF if is_cut_off else error.text, is_error=True)
        if is_cut_off and not call.input.strip():
            return Output(content=CUT_OFF, is_error=True)
        return await _contained(call.name, lambda: self._asked(message_id, call, tool, given))

    async def _asked(self, message_id: str, call: ToolCall, tool: Tool, given: msgspec.Struct) -> _Ready | Output:
        """Everything that a person has to do with a call, before it starts."""
        permission = await self._get_permission(message_id, call, tool, given)
        if isinstance(permission, Output):
            return permission
        if tool.list_questions is None:
            return _Ready(tool, given, permission)
        answer = await self._ctx.ask_question(message_id, call.id, clean(tool.list_questions(given)))
        return _Ready(tool, given, permission, answer)

    async def _get_permission(
        self, message_id: str, call: ToolCall, tool: Tool, given: msgspec.Struct
    ) -> _Permission | Output:
        """Get permission for every access of the call, or the result that says why it was refused."""
        if tool.list_access is None:
            return _Permission()
        accesses = await tool.list_access(self._place, given)
        has_waited = False
        run_as: RunAs = "approved"
        readable: tuple[str, ...] = ()
        for access in accesses:
            decision = await asyncio.to_thread(self._judge.judge, tool.name, access)  # a long command takes a while
            if isinstance(decision, Allow):
                run_as, readable = decision.run_as, decision.readable
                continue
            if isinstance(decision, Deny):
                return _refuse(f"Refused: {decision.why}", decision.by, decision.rule)
            has_waited = True
            if (refusal := await self._ask_permission(message_id, call, access, decision)) is not None:
                return refusal
            run_as, readable = "sandboxed" if self._judge.mode == "plan" else "approved", decision.readable
        if has_waited and _subjects(accesses) != _subjects(await tool.list_access(self._place, given)):
            # A link may have changed meanwhile, and the new target was not approved.
            return Output(
                content=f"What `{tool.name}` would touch changed meanwhile. Make the call again.", is_error=True
            )
        if run_as == "sandboxed":
            return _Permission(changes_nothing=True, run_as=run_as, readable=readable, path=_path(accesses))
        is_harmless = await asyncio.to_thread(self._judge.changes_nothing, tool.name, accesses)
        return _Permission(
            may_run_unsandboxed=any(access.sandbox_problem for access in accesses),
            changes_nothing=is_harmless,
            run_as=run_as,
            path=_path(accesses),
        )

    async def _ask_permission(self, message_id: str, call: ToolCall, access: Access, asked: Ask) -> Output | None:
        """Ask the user for permission; None if it was given."""
        if access.sandbox_problem and self._ctx.run.permissions == "allow":
            # A user who allows everything relies on the configured sandbox.
            return _refuse(_NO_SANDBOX.format(why=access.sandbox_problem), "no_sandbox")
        answer = await self._ctx.ask_permission(
            message_id,
            call.id,
            tool=call.name,
            action=access.kind,
            description=visible_line(clean(access.description)),
            params=clean(asked.params(access.params)),
            path=clean(access.subject) if access.kind in ("read", "write") else None,
        )
        if answer.action == "allow_session":
            self._judge.grant(asked.rules)
        if answer.action in ("allow", "allow_session"):
            return None
        if answer.by == "run":
            why = "it needs the user's permission, and this run has nobody to ask"
            return _refuse(f"Refused ({access.description}): {why}.", "unattended")
        return Output(
            content=f"Refused by the user ({access.description}). Wait for the user's next message.",
            is_error=True,
            metadata={DENIED: answer.by},
        )

    async def _finish(self, call: ToolCall, writer: ToolWriter, output: Output) -> None:
        output = bounded(output)
        content = output.content
        self._made.append(Made(call.name, call.input, content))
        if (repeated := rounds(self._made)) >= WARN_AT:
            content += WARNING.format(rounds=repeated)
        await writer.finish(content, is_error=output.is_error, metadata=output.metadata, images=output.images)
        self._place.known_files.update(files_of(output.metadata))
        if output.metadata and DENIED in output.metadata:
            raise Denied


def _refuse(content: str, reason: RefusalReason, rule: str | None = None) -> Output:
    """A result for a call that was not asked about. The content is for the model, the metadata for interfaces."""
    metadata = {"refused": reason} if rule is None else {"refused": reason, "rule": rule}
    return Output(content=content, is_error=True, metadata=metadata)


def _subjects(accesses: Sequence[Access]) -> list[tuple[str, str]]:
    return [(access.kind, access.subject) for access in accesses]


def _path(accesses: Sequence[Access]) -> Path | None:
    return next((Path(access.subject) for access in accesses if access.kind in ("read", "write")), None)


async def _contained(name: str, work: Callable[[], Awaitable[T]]) -> T | Output:
    """The boundary around a tool: what it raises is a result, and never the end of the run."""
    try:
        return await work()
    except ToolError as error:
        return Output(content=error.text, is_error=True)
    except (ClaimLost, TurnFailed):
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return Output(content=f"`{name}` was cancelled from inside; this is a fault of the tool.", is_error=True)
    except Exception as error:
        log.exception("the tool %s failed", name)
        problem = f"`{name}` failed with an internal error ({type(error).__name__}: {error})"
        return Output(content=f"{problem}. It may have had effects; try another way.", is_error=True)


async def _side_by_side(works: Sequence[Coroutine[None, None, None]]) -> None:
    if len(works) == 1:
        await works[0]
        return
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the first one ended the others
