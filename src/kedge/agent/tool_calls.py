"""Runs the tool calls of a step: read-only calls in parallel, all others one after the other.

Permission is requested before a call starts, because a call that waits for a person has not started (P13). Every error
becomes a result that the model can learn from; each result is committed as soon as it exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from kedge.agent.call_access import find_path, find_paths, join_accesses, join_decisions, list_subjects
from kedge.agent.call_results import add_hook_note, contain_errors, deny, deny_for_person, fail
from kedge.agent.context_files import NESTED, format_file, read_nested_files, read_written_file
from kedge.agent.notes import CallVerdict
from kedge.agent.tool_context import CallContext, NoWriter, TurnScope, clean, limit_output
from kedge.agent.tool_params import decode_params, explain_unknown_tool
from kedge.agent.turn_mode import TurnMode
from kedge.agent.turn_state import (
    REPEAT_WARNING,
    WARN_AT_REPEATS,
    PastCall,
    Step,
    count_repeats,
    ends_turn,
    read_call_input,
)
from kedge.engine.errors import TurnFailed
from kedge.engine.message_writer import ToolWriter
from kedge.engine.turn import TurnContext
from kedge.protocol.messages import ToolCall, ToolResult
from kedge.protocol.requests import BY_MODE, BY_RUN, Answer
from kedge.protocol.text_safety import visible_line
from kedge.protocol.tool_input import correct_params, parse_tool_input
from kedge.tools.errors import ToolError
from kedge.tools.permissions.describe import explain_refusal
from kedge.tools.permissions.judge import Judge
from kedge.tools.permissions.policy import PLANNING, Allow, Ask, Decision, Deny
from kedge.tools.port import Access, Output, RunAs, Tool

if TYPE_CHECKING:
    from kedge.agent.hooks.hooks import Hooks
    from kedge.lsp.workspace import WorkspaceLanguages

log = logging.getLogger(__name__)

T = TypeVar("T")

COMMAND_TIMEOUT_S = 50.0  # of a command in the text of a skill, which waits for its output

MAX_PARALLEL_CALLS = 10  # more would only wait for each other's disk


CUT_OFF = (
    "This call was cut off at the output limit before it was complete, so it was not run."
    " Make smaller calls: write a long file in several steps."
)
_CUT_OFF_SUMMARY = "Not run: the model's output limit was reached before the call was complete."

_BEHIND_SUMMARY = "Not run: a call before it was interrupted."
_BEHIND = f"{_BEHIND_SUMMARY} Check what that one did, then make this call again if it is still right."

_NO_SANDBOX = (
    "Refused: the sandbox that is configured for commands is unavailable here ({why}), and nobody can approve running"
    " without it. Do without this command."
)


class Denied(Exception):
    """A person denied a call without a reason: the turn ends."""


class _Permission(NamedTuple):
    may_run_unsandboxed: bool = False
    changes_nothing: bool = False  # a command that is known to be read-only
    run_as: RunAs = "approved"
    readable: tuple[str, ...] = ()
    path: Path | None = None  # the path that was checked; the first one of a tool that changes several files
    paths: frozenset[Path] = frozenset()  # all of them
    directory: Path | None = None  # where a command starts


class _ApprovedCall(NamedTuple):
    tool: Tool
    params: msgspec.Struct
    permission: _Permission
    verdict: CallVerdict
    answer: Answer | None = None
    commands: Mapping[str, _ApprovedCall | Output] = {}  # by line: those that the call runs, or why one is denied


class _Instructions(NamedTuple):
    """Context files that follow a result: their text for the model, and their digests by path."""

    text: str = ""
    digests: Mapping[str, str] = {}


class FoundTools(Protocol):
    """Tools that are not in the request, but can be called."""

    def unwrap(self, call: ToolCall) -> ToolCall: ...  # the call that a call of another tool stands for
    async def find(self, name: str) -> Tool | None: ...


class ToolRunner:
    """`found`: where tools are looked up that are not among `tools`."""

    def __init__(
        self,
        ctx: TurnContext,
        scope: TurnScope,
        tools: Mapping[str, Tool],
        judge: Judge,
        mode: TurnMode,
        hooks: Hooks | None = None,
        found: FoundTools | None = None,
        languages: WorkspaceLanguages | None = None,
    ) -> None:
        self._languages = languages
        self._found = found
        self._ctx = ctx
        self._scope = scope
        self._tools = tools
        self._judge = judge
        self._hooks = hooks
        self._mode = mode
        self._past_calls: list[PastCall] = []

    async def run(self, step: Step, past_calls: Sequence[PastCall]) -> None:
        """Run the calls of a step that have no results yet, and write their results.

        The calls behind one that was interrupted are not run: they may depend on it. Raises `Denied` when a person
        denied a call without a reason; the calls after it are not run.
        """
        self._past_calls = list(past_calls)
        is_behind = False
        for batch in self._split_batches(step.calls):
            works = [self._run_call(step, call, is_behind=is_behind) for call in batch if call.id not in step.results]
            await _run_in_parallel(works)
            is_behind = is_behind or any(step.is_interrupted(call) for call in batch)

    def _split_batches(self, calls: Sequence[ToolCall]) -> list[list[ToolCall]]:
        batches: list[list[ToolCall]] = []
        is_last_read_only = False
        for call in calls:
            tool = self._tools.get(call.name)
            is_found = self._found is not None and (tool is None or self._found.unwrap(call) is not call)
            is_read_only = not is_found and (tool is None or (tool.is_read_only and not self._is_for_writer(call)))
            if is_last_read_only and is_read_only and len(batches[-1]) < MAX_PARALLEL_CALLS:
                batches[-1].append(call)
            else:
                batches.append([call])
            is_last_read_only = is_read_only
        return batches

    def _is_for_writer(self, call: ToolCall) -> bool:
        """Return whether a call delegates to an agent that may change things."""
        writers = self._scope.config.agent.writers
        if call.name != "agent" or not writers:
            return False
        from kedge.skills.tool_names import is_writer

        given = correct_params(call.name, parse_tool_input(call.input) or {})
        agent = self._scope.library.agents.get(str(given.get("agent", "")))
        return agent is not None and is_writer(agent, writers)

    async def _run_call(self, step: Step, call: ToolCall, *, is_behind: bool) -> None:
        message_id = step.message.id
        if is_behind:
            approved = fail(_BEHIND, _BEHIND_SUMMARY)
        else:
            approved = await self._prepare(message_id, call, is_cut_off=step.is_cut_off)
        writer = await self._ctx.begin_tool_result(message_id, call.id, call.name)
        if isinstance(approved, _ApprovedCall):
            context = CallContext(self._ctx, self._scope, call.id, writer, approved.answer, message_id)
            context.may_run_unsandboxed = approved.permission.may_run_unsandboxed
            context.run_as, context.readable_paths = approved.permission.run_as, approved.permission.readable
            if approved.tool.changes_several:
                context.approved_paths = approved.permission.paths
            else:
                context.approved_path = approved.permission.path
            context.commands = {
                line: partial(self._run_permitted, call.id, line, command)
                for line, command in approved.commands.items()
            }
            output = await contain_errors(call.name, lambda: self._run_tool(approved, context))
            output = add_hook_note(output, approved.verdict)
            instructions = _Instructions() if output.is_error else await self._find_instructions(approved)
        else:
            output, instructions = approved, _Instructions()
        result = await self._finish(call, writer, output, instructions)
        if self._hooks is not None and isinstance(approved, _ApprovedCall):
            is_read_only = approved.permission.changes_nothing or approved.tool.is_read_only
            await self._hooks.handle_result(step, call, writer.id, result, is_read_only=is_read_only)
            self._scope.known_files.update(self._hooks.edited_with(writer.id))
        if ends_turn(output.metadata):
            raise Denied

    async def _run_tool(self, approved: _ApprovedCall, context: CallContext) -> Output:
        """Run the tool. If it may change any file, compare the workspace before and after to record the changes."""
        permission = approved.permission
        if permission.changes_nothing or approved.tool.facts.changes != "anything":
            if self._languages is not None and approved.tool.facts.changes == "files":
                await self._languages.prepare(permission.paths)
            output = await approved.tool.run(context, approved.params)
            if self._languages is None or output.is_error:
                return output
            if permission.path is not None and approved.tool.is_read_only:
                self._languages.touch(permission.path)
            if approved.tool.facts.changes == "files":
                output = await self._languages.add_new_errors(output, self._scope)
            return output
        env, max_bytes = self._scope.env, self._scope.config.files.max_bytes
        async with self._ctx.watch_files(env, max_bytes) as changed:
            output = await approved.tool.run(context, approved.params)
        if self._languages is not None:
            self._languages.note_changes(changed)
        return output

    async def _find_instructions(self, approved: _ApprovedCall) -> _Instructions:
        """Return the instructions of the directory in which the call worked, unless the model has seen them."""
        scope, permission = self._scope, approved.permission
        names, known = scope.config.agent.context_files, scope.shown_instructions
        if (touched := permission.path or permission.directory) is None:
            return _Instructions()
        files = await asyncio.to_thread(
            *(read_nested_files, scope.directory, touched, names, frozenset(known.values()), scope.is_hidden),
            scope.max_result_chars // 4,
        )
        shown = [file for file in files if file.digest not in known.values()]  # a parallel call may have shown one
        digests = {file.path: file.digest for file in shown}
        if permission.path is not None and not approved.tool.is_read_only:  # the model knows what it has written
            digests |= await asyncio.to_thread(read_written_file, scope.directory, permission.path, names)
        known |= digests
        return _Instructions(NESTED + "\n\n".join(map(format_file, shown)) if shown else "", digests)

    async def _prepare(self, message_id: str, call: ToolCall, *, is_cut_off: bool) -> _ApprovedCall | Output:
        """Decode the call and get its permission; return the result of a call that cannot run."""
        if self._found is not None:
            call = self._found.unwrap(call)
        tool = self._tools.get(call.name)
        if tool is None and self._found is not None:
            tool = await self._found.find(call.name)
        if tool is None:
            return fail(explain_unknown_tool(call.name, self._tools), f"There is no tool {call.name[:100]}.")
        try:
            params = decode_params(tool, call.input)
        except ToolError as error:
            return fail(CUT_OFF, _CUT_OFF_SUMMARY) if is_cut_off else fail(error.text, error.summary)
        if is_cut_off and not call.input.strip():
            return fail(CUT_OFF, _CUT_OFF_SUMMARY)
        verdict = CallVerdict()
        if self._hooks is not None:
            verdict = await self._hooks.judge_call(message_id, call)
            if verdict.stops is not None:
                raise TurnFailed(f"A hook ended the run: {verdict.stops}", "hook_stopped")
            if verdict.decision == "deny":
                return deny(f"Refused by a hook of the user: {verdict.reason}", "hook")
            if verdict.input is not None:
                try:
                    params = decode_params(tool, msgspec.json.encode(verdict.input).decode())
                except ToolError as error:
                    problem = f"A hook of the user changed the input of `{tool.name}`, and it is invalid now."
                    return fail(f"{problem} {error.text}", problem.replace("`", ""))
        return await contain_errors(call.name, lambda: self._approve(message_id, call, tool, params, verdict))

    async def _approve(
        self, message_id: str, call: ToolCall, tool: Tool, params: msgspec.Struct, verdict: CallVerdict
    ) -> _ApprovedCall | Output:
        """Ask people, if needed: for permission, and the questions that the tool itself asks."""
        permission = await self._get_permission(message_id, call, tool, params, verdict)
        if isinstance(permission, Output):
            return permission
        if tool.list_rules is not None:
            self._judge.grant(tool.list_rules(self._scope, params))
        if tool.list_commands is not None:
            commands: dict[str, _ApprovedCall | Output] = {}
            for number, line in enumerate(await tool.list_commands(self._scope, params), 1):
                commands[line] = command = await self._permit_command(message_id, call.id, number, line)
                if isinstance(command, Output) and ends_turn(command.metadata):
                    return command
            return _ApprovedCall(tool, params, permission, verdict, commands=commands)
        if tool.list_questions is None:
            return _ApprovedCall(tool, params, permission, verdict)
        if self._hooks is not None and self._ctx.run.permissions == "ask":
            self._hooks.announce_request("elicitation_dialog", "Kedge has a question.")
        answer = await self._ctx.ask_question(message_id, call.id, clean(tool.list_questions(params)))
        return _ApprovedCall(tool, params, permission, verdict, answer)

    async def run_command(
        self, message_id: str, call_id: str, number: int, line: str, start: Callable[[], Awaitable[None]]
    ) -> str:
        """Run a command of a text that a person called, if it is permitted; return its output, or why it was not run.

        `number` is its place in the text; `start` is awaited before it starts. Raises `Denied` when a person denied it
        without a reason.
        """
        command = await self._permit_command(message_id, call_id, number, line)
        if isinstance(command, Output) and ends_turn(command.metadata):
            raise Denied
        await start()
        return await self._run_permitted(call_id, line, command)

    async def _permit_command(self, message_id: str, call_id: str, number: int, line: str) -> _ApprovedCall | Output:
        """Return a command of a text as a call of `bash`, or the result that says why it was denied."""
        params = msgspec.json.encode({"command": line, "timeout": COMMAND_TIMEOUT_S}).decode()
        call = ToolCall(f"{call_id}-{number}", "bash", params, finished=True)
        return await self._prepare(message_id, call, is_cut_off=False)

    async def _run_permitted(self, call_id: str, line: str, command: _ApprovedCall | Output) -> str:
        if isinstance(command, Output):
            return f"[Not run: {line}: {command.content}]"
        context = CallContext(self._ctx, self._scope, call_id, NoWriter(), None)
        context.may_run_unsandboxed = command.permission.may_run_unsandboxed
        context.run_as, context.readable_paths = command.permission.run_as, command.permission.readable
        output = await contain_errors("bash", lambda: self._run_tool(command, context))
        return (await asyncio.to_thread(limit_output, output, self._scope)).content

    async def _get_permission(
        self, message_id: str, call: ToolCall, tool: Tool, params: msgspec.Struct, verdict: CallVerdict
    ) -> _Permission | Output:
        """Return the permission for every access of the call, or the result that says why it was denied."""
        if await self._mode.follow() == "plan" and tool.facts.changes in ("files", "processes"):
            return deny(f"Refused: {PLANNING}. Describe the change in your plan instead.", "mode")
        accesses: Sequence[Access] = () if tool.list_access is None else await tool.list_access(self._scope, params)
        if not accesses and verdict.decision == "ask":
            access = Access(kind="execute", subject=tool.name, description=f"call {tool.name}")
            asked = _ask_for_hook(verdict)
            answer = await self._ask_permission(message_id, call, tool, access, asked, is_hooks=True)
            if isinstance(answer, Output):
                return answer
        if tool.list_access is None:
            return _Permission()
        has_waited = False
        run_as: RunAs = "approved"
        readable: tuple[str, ...] = ()
        for access in [join_accesses(accesses)] if tool.changes_several and len(accesses) > 1 else accesses:
            decision = await self._judge_access(tool, access)
            if isinstance(decision, Allow) and verdict.decision == "ask":
                has_waited = True
                asked = await self._ask_permission(
                    message_id, call, tool, access, _ask_for_hook(verdict), is_hooks=True
                )
                decision = decision if isinstance(asked, Allow) else asked
            elif isinstance(decision, Ask) and verdict.decision == "allow" and _may_hook_allow(access, decision):
                decision = self._allow_asked(decision)
            elif isinstance(decision, Ask):
                has_waited = True
                decision = await self._ask_permission(message_id, call, tool, access, decision)
            if isinstance(decision, Output):
                return decision
            if isinstance(decision, Deny):
                return deny(f"Refused: {decision.why} {decision.others}".rstrip(), decision.by, rule=decision.rule)
            run_as, readable = decision.run_as, decision.readable
        if has_waited and list_subjects(accesses) != list_subjects(await tool.list_access(self._scope, params)):
            # A link may point elsewhere by now, which nobody has allowed.
            problem = f"What `{tool.name}` would touch changed meanwhile."
            return fail(f"{problem} Make the call again.", problem.replace("`", ""))
        if run_as == "sandboxed":
            return _Permission(
                changes_nothing=True,
                run_as=run_as,
                readable=readable,
                path=find_path(accesses),
                paths=find_paths(accesses),
                directory=self._find_directory(accesses),
            )
        changes_nothing = await asyncio.to_thread(self._judge.changes_nothing, tool.name, accesses)
        return _Permission(
            may_run_unsandboxed=any(access.sandbox_problem for access in accesses),
            changes_nothing=changes_nothing,
            run_as=run_as,
            path=find_path(accesses),
            paths=find_paths(accesses),
            directory=self._find_directory(accesses),
        )

    def _find_directory(self, accesses: Sequence[Access]) -> Path | None:
        given = next((access.params.get("working_dir") for access in accesses if access.kind == "execute"), None)
        return Path(self._scope.directory, given) if isinstance(given, str) else None

    async def _judge_access(self, tool: Tool, access: Access) -> Decision:
        # In a thread: a long command takes a while to analyze.
        parts = access.parts or (access,)
        return join_decisions([await asyncio.to_thread(self._judge.judge, tool.name, part) for part in parts])

    def _allow_asked(self, asked: Ask) -> Allow:
        run_as: RunAs = "sandboxed" if self._judge.mode == "plan" else "approved"
        return Allow(why="somebody allowed it", run_as=run_as, readable=asked.readable)

    async def _ask_permission(
        self, message_id: str, call: ToolCall, tool: Tool, access: Access, asked: Ask, *, is_hooks: bool = False
    ) -> Allow | Deny | Output:
        """Ask a person for permission; return it, or the result of a call that was denied.

        If the mode of the run is switched meanwhile to one that allows or forbids the call, that is the answer.
        `is_hooks`: a hook wants the person to be asked, so no mode can allow it.
        """
        if access.sandbox_problem and self._ctx.run.permissions == "allow":
            # A user who allows everything relies on the configured sandbox.
            return deny(_NO_SANDBOX.format(why=access.sandbox_problem), "no_sandbox")
        if self._hooks is not None:
            given = read_call_input(call)
            decided = await self._hooks.decide_request(message_id, call, given, f"{access.kind} {access.subject}")
            if decided.decision == "deny":
                return deny(f"Refused by a hook of the user: {decided.reason}", "hook")
            if decided.decision == "allow" and _may_hook_allow(access, asked):
                return self._allow_asked(asked)
            if self._ctx.run.permissions == "ask":
                what = visible_line(clean(access.description))
                self._hooks.announce_request("permission_prompt", f"Kedge needs your permission: {what}")
        if is_hooks and self._ctx.run.permissions == "allow":  # the hook wants a person, and this run asks nobody
            return deny(clean(explain_refusal(asked)), "unattended")
        asked_in = self._judge.mode

        async def decide() -> Answer | None:
            if await self._mode.follow() == asked_in:
                return None
            match await self._judge_access(tool, access):
                case Allow() if not is_hooks:
                    return Answer(action="allow", by=BY_MODE)
                case Deny():
                    return Answer(action="deny", by=BY_MODE)
                case _:
                    return None

        answer = await self._ctx.ask_permission(
            message_id,
            call.id,
            decide=decide,
            tool=call.name,
            action=access.kind,
            description=visible_line(clean(access.description)),
            params=clean(asked.params(access.params)),
            path=clean(access.subject) if access.kind in ("read", "write") else None,
        )
        if answer.by == BY_MODE:
            decision = await self._judge_access(tool, access)
            if not isinstance(decision, Ask):
                return decision
            # The run had that mode for a moment, perhaps before a crash: nobody has allowed what it would ask now.
            return deny("Refused: the mode of this run did not allow it. Call it again if you still need it.", "mode")
        if answer.action in ("allow", "allow_session", "allow_always"):
            # A turn keeps the configuration that it began with, so a rule that was just written is granted, too.
            remembered = {"allow_session": asked.rules, "allow_always": asked.always_rules}
            self._judge.grant(remembered.get(answer.action, ()))
            return self._allow_asked(asked)
        if answer.by == BY_RUN:
            return deny(clean(explain_refusal(asked)), "unattended", allow_rules=list(asked.rules))
        return deny_for_person(access.description, answer)

    async def _finish(
        self, call: ToolCall, writer: ToolWriter, output: Output, instructions: _Instructions
    ) -> ToolResult:
        if len(output.content) > self._scope.max_result_chars:  # written to a file
            output = await asyncio.to_thread(limit_output, output, self._scope)
        else:
            output = limit_output(output, self._scope)
        content, metadata = output.text, output.metadata
        self._past_calls.append(PastCall.of(call, content))
        if (repeats := count_repeats(self._past_calls)) >= WARN_AT_REPEATS:
            content += REPEAT_WARNING.format(repeats=repeats)
        content += instructions.text
        if instructions.digests:
            metadata = {**(metadata or {}), "instructions": instructions.digests}
        if len(content) > len(output.content):
            metadata = {**(metadata or {}), "shown_chars": len(output.content)}
        await writer.finish(content, is_error=output.is_error, metadata=metadata, images=output.images)
        self._scope.learn_files(output.metadata)
        return ToolResult(call.id, call.name, output.content, output.is_error, metadata)


def _may_hook_allow(access: Access, asked: Ask) -> bool:
    """A hook's consent replaces a question, but not the sandbox, nor a deny rule that may be about the command."""
    return not (access.sandbox_problem or access.unsandboxed or asked.may_be_denied)


def _ask_for_hook(verdict: CallVerdict) -> Ask:
    return Ask.of([f"a hook asks: {verdict.reason}"])


async def _run_in_parallel(works: Sequence[Coroutine[None, None, None]]) -> None:
    if len(works) == 1:
        await works[0]
        return
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the first error canceled the others
