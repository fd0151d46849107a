"""The hooks of a turn: runs those of an event, combines what they want, and stores what they decided.

A decision is committed in the note of its message before it has an effect, so that it is not asked for again after a
crash. A hook that a crash interrupted before that runs again, with the same `tool_use_id` (P13).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kedge import failpoints
from kedge.agent.hooks.command import run_command
from kedge.agent.hooks.plugins import strip_root
from kedge.agent.hooks.wire import (
    MAX_CONTEXT_CHARS,
    HookEvent,
    HookOutput,
    describe_mode,
    describe_response,
    find_match,
    list_names,
    read_output,
    translate_input,
)
from kedge.agent.notes import CallVerdict, RequestVerdict, SessionNotes
from kedge.agent.tool_context import read_file_digests
from kedge.agent.turn_state import Step, read_call_input
from kedge.config.schema import Config, HookConfig, HooksConfig
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.files.diffs import diff
from kedge.files.environment import drop_invalid_variables, with_safe_path
from kedge.files.states import compute_digest
from kedge.models.wires.history import is_summary
from kedge.protocol.messages import Message, ToolCall, ToolResult, text_of
from kedge.protocol.runs import Mode
from kedge.protocol.text_safety import shorten, visible_line
from kedge.protocol.tool_input import correct_params

MAX_STOP_ROUNDS = 5  # in which Stop hooks let a run go on: a hook that is never content must not run for ever
MAX_COMPARED_BYTES = 1024 * 1024
MAX_DIFF_CHARS = 4_000  # of what a hook changed in a file, for the model
_HIDDEN = ("KEDGE_TOKEN", "KEDGE_FAILPOINT")
_EVENTS = {field.encode_name: field.name for field in msgspec.structs.fields(HooksConfig)}
_NOT_GIVEN: Mapping[str, tuple[str, ...]] = {"SessionStart": ("turn_id",), "PreCompact": ("permission_mode",)}


class _Result(NamedTuple):
    hook: HookConfig
    output: HookOutput


class Hooks:
    """`mode` returns the permission mode of the run at that moment."""

    def __init__(self, ctx: TurnContext, config: Config, environ: Mapping[str, str], mode: Callable[[], Mode]) -> None:
        self.model = ctx.model or config.model or ""
        self.notes: SessionNotes | None = None
        self._ctx = ctx
        self._config = config
        self._environ = environ
        self._mode = mode
        self._env: Mapping[str, str] | None = None
        self._parent_session_id: str | None = None
        self._observers: set[asyncio.Task[None]] = set()
        self._is_sub_agent = ctx.run.kind == "agent"

    # prompts

    async def begin_session(self, history: Sequence[Message], seen: set[str]) -> None:
        """Run the SessionStart hooks, if this is the session's first step, its first in this server, or follows a
        summary. `seen`: sessions of which this server has run them."""
        if self._is_sub_agent or not history or not self._of("SessionStart"):
            return
        last = history[-1]
        prompt = next((each for each in reversed(history) if each.role == "user" and not each.summary), None)
        if not any(message.role == "assistant" for message in history):
            source, target = "startup", prompt
        elif is_summary(last):
            source, target = "compact", last
        else:
            source, target = "resume", None if self._ctx.run.session_id in seen else prompt
        seen.add(self._ctx.run.session_id)
        if target is None or ((note := self._notes.of(target.id)) is not None and note.has_started):
            return
        results = await self._run("SessionStart", [source], lambda _: {"source": source})
        await self._add_context(target.id, results, has_started=True)
        await self._report("SessionStart", results)
        _check_stopped(results)

    async def submit_prompts(self, history: Sequence[Message]) -> None:
        """Run the UserPromptSubmit hooks for each prompt of this turn. Raises `TurnFailed` if one blocks the run's."""
        if self._ctx.run.kind != "prompt":
            return
        run_ids = {self._ctx.run.run_id, *(run.run_id for run in self._ctx.joined)}
        for message in history:
            if message.role != "user" or message.summary or message.run_id not in run_ids:
                continue
            note = self._notes.of(message.id)
            if note is not None and note.is_submitted:
                is_blocked, reason = note.is_blocked, ""
            elif self._of("UserPromptSubmit"):
                prompt = text_of(message.parts)
                results = await self._run("UserPromptSubmit", [], lambda _, prompt=prompt: {"prompt": prompt})
                is_blocked, reason = _combine(results).decision == "deny", _combine(results).reason
                await self._add_context(message.id, results, is_submitted=True, is_blocked=is_blocked)
                await self._report("UserPromptSubmit", results)
                _check_stopped(results)
                if is_blocked and message.run_id != self._ctx.run.run_id:
                    await self._notify(f"A hook blocked a prompt: {reason}", "UserPromptSubmit")
            else:
                continue
            if is_blocked and message.run_id == self._ctx.run.run_id:
                raise TurnFailed(f"A hook blocked the prompt{f': {reason}' if reason else '.'}", "hook_blocked")

    # calls

    async def judge_call(self, message_id: str, call: ToolCall) -> CallVerdict:
        """Return what the PreToolUse hooks decided about a call of the step `message_id`."""
        if (note := self._notes.of(message_id)) is not None and call.id in note.calls:
            return note.calls[call.id]
        names = self._names(call.name)
        if not self._matching("PreToolUse", names):
            return CallVerdict()
        given = read_call_input(call)
        payload = self._describe_call(call, given)
        results = await self._run("PreToolUse", names, lambda name: {**payload(name), "tool_use_id": call.id}, call)
        wanted = _combine(results)
        stops = next((each.output.stops for each in results if each.output.stops is not None), None)
        verdict = CallVerdict(
            decision="deny" if stops is not None else wanted.decision,
            reason=wanted.reason or stops or "",
            input=None if wanted.input is None else {**given, **correct_params(call.name, wanted.input)},
            context=wanted.context,
            stops=stops,
        )
        failpoints.hit("hook.decided")
        await self._notes.change(message_id, calls={call.id: verdict})
        await self._report("PreToolUse", results)
        if verdict.decision == "deny":
            await self._notify(f"A hook denied {call.name}: {verdict.reason}", "PreToolUse")
        elif verdict.input is not None:
            await self._notify(f"A hook changed the input of {call.name}.", "PreToolUse")
        return verdict

    async def decide_request(
        self, message_id: str, call: ToolCall, given: Mapping[str, Any], subject: str
    ) -> RequestVerdict:
        """Return what the PermissionRequest hooks decided about a request to a person: about `subject` of a call."""
        key = f"{call.id}:{hashlib.sha256(subject.encode('utf-8', 'replace')).hexdigest()[:16]}"
        if (note := self._notes.of(message_id)) is not None and key in note.requests:
            return note.requests[key]
        names = self._names(call.name)
        if not self._matching("PermissionRequest", names):
            return RequestVerdict()
        results = await self._run("PermissionRequest", names, self._describe_call(call, given), call)
        wanted = _combine(results)
        decision = wanted.decision if wanted.decision in ("allow", "deny") else ""
        verdict = RequestVerdict(decision=decision, reason=wanted.reason)
        await self._notes.change(message_id, requests={key: verdict})
        await self._report("PermissionRequest", results)
        if verdict.decision:
            done = "allowed" if verdict.decision == "allow" else "denied"
            why = f": {verdict.reason}" if verdict.reason else "."
            await self._notify(f"A hook {done} {call.name}{why}", "PermissionRequest")
        _check_stopped(results)
        return verdict

    async def handle_result(
        self, step: Step, call: ToolCall, message_id: str, result: ToolResult, *, is_read_only: bool = False
    ) -> None:
        """Run the PostToolUse hooks after the result of a call was committed, as message `message_id`."""
        event: HookEvent = "PostToolUseFailure" if result.is_error else "PostToolUse"
        names = self._names(call.name)
        if not self._matching(event, names):
            return
        note = self._notes.of(step.message.id)
        verdict = None if note is None else note.calls.get(call.id)
        given = read_call_input(call) if verdict is None or verdict.input is None else verdict.input
        files = list(read_file_digests(result.metadata)) if not is_read_only and call.name != "bash" else []
        path = Path(files[0]) if len(files) == 1 else None
        before = None if path is None else await asyncio.to_thread(_read_file, path)
        payload = self._describe_call(call, given)

        def describe(name: str) -> dict[str, Any]:
            known: dict[str, Any] = {**payload(name), "tool_use_id": call.id}
            if result.is_error:
                return {**known, "error": result.content, "is_interrupt": False}
            return {**known, "tool_response": describe_response(call.name, name, known["tool_input"], result.content)}

        async with self._watch_files(not is_read_only):
            results = await self._run(event, names, describe, call)
        wanted = _combine(results)
        texts = [wanted.reason if wanted.decision == "deny" else "", wanted.context]
        edited: dict[str, str] = {}
        if path is not None:
            change, digest = await asyncio.to_thread(_describe_change, path, before, call.name)
            texts.append(change)
            edited = {str(path): digest} if digest else {}
        context = "\n\n".join(filter(None, texts))
        failpoints.hit("hook.handled")
        await self._notes.change(message_id, context=context, is_handled=True, edited=edited)
        await self._report(event, results)
        if wanted.decision == "deny":
            await self._notify(f"A hook after {call.name} says: {wanted.reason}", event)
        _check_stopped(results)

    def edited_with(self, message_id: str) -> Mapping[str, str]:
        """Return the digests of files that hooks changed after a result, as the model was told."""
        note = self._notes.of(message_id)
        return {} if note is None else note.edited

    async def handle_earlier_results(self, history: Sequence[Message], step: Step) -> None:
        """Run the PostToolUse hooks of results that an earlier server committed, if their end was not committed."""
        calls = {call.id: call for call in step.calls}
        for message in history:
            note = self._notes.of(message.id)
            if message.role != "tool" or message.run_id != self._ctx.run.run_id or (note and note.is_handled):
                continue
            for part in message.parts:
                if isinstance(part, ToolResult) and not part.is_error and part.tool_call_id in calls:
                    await self.handle_result(step, calls[part.tool_call_id], message.id, part)

    # the end, summaries, people

    async def may_stop(self, history: Sequence[Message], step: Step) -> bool:
        """Return whether a run may end with its answer. If not, the model gets the reason and goes on."""
        note = self._notes.of(step.message.id)
        if note is not None and note.stop is not None:
            return not note.stop
        event: HookEvent = "SubagentStop" if self._is_sub_agent else "Stop"
        if not self._of(event):
            return True
        own = [self._notes.of(each.id) for each in history if each.run_id == self._ctx.run.run_id]
        rounds = sum(1 for each in own if each is not None and each.stop)
        if rounds >= MAX_STOP_ROUNDS:
            await self._notify(f"The run ends, although hooks let it go on {rounds} times.", event)
            return True
        extra = {"stop_hook_active": rounds > 0, "last_assistant_message": step.text or None}
        if self._is_sub_agent:
            extra["agent_transcript_path"] = None
        async with self._watch_files(not self._is_sub_agent):
            results = await self._run(event, ["agent"], lambda _: extra)
        wanted = _combine(results)
        stops = next((each.output.stops for each in results if each.output.stops is not None), None)
        goes_on = wanted.decision == "deny" and stops is None
        await self._notes.change(step.message.id, stop=wanted.reason if goes_on else "")
        await self._report(event, results)
        if goes_on:
            await self._notify(f"A hook lets the run go on: {wanted.reason}", event)
        return not goes_on

    async def complete_run(self, error: str | None, text: str) -> None:
        extra = {"state": "completed" if error is None else "failed", "error": error}
        if self._ctx.run.kind == "prompt" and self._of("RunComplete"):
            about = {**extra, "last_assistant_message": text or None}
            await self._report("RunComplete", await self._run("RunComplete", [], lambda _: about))

    async def check_summary(self, *, is_asked: bool) -> str | None:
        """Run the PreCompact hooks; return why the conversation must not be summarized, or None."""
        trigger = "manual" if is_asked else "auto"
        if not self._matching("PreCompact", [trigger]):
            return None
        results = await self._run("PreCompact", [trigger], lambda _: {"trigger": trigger})
        await self._report("PreCompact", results)
        wanted = _combine(results)
        stops = next((each.output.stops for each in results if each.output.stops is not None), None)
        return stops if stops is not None else wanted.reason if wanted.decision == "deny" else None

    def announce_request(self, kind: str, message: str) -> None:
        """Run the Notification hooks beside the request: it does not wait for them."""
        if not self._matching("Notification", [kind]):
            return

        async def run() -> None:
            extra = {"message": message, "title": "Kedge", "notification_type": kind}
            await self._report("Notification", await self._run("Notification", [kind], lambda _: extra))

        task = asyncio.create_task(run())
        self._observers.add(task)
        task.add_done_callback(self._observers.discard)

    async def close(self) -> None:
        """Stop waiting for hooks that only observe; their processes end with the turn."""
        for task in self._observers:
            task.cancel()
        await asyncio.gather(*self._observers, return_exceptions=True)

    # running

    @property
    def _notes(self) -> SessionNotes:
        assert self.notes is not None
        return self.notes

    def _of(self, event: HookEvent) -> Sequence[HookConfig]:
        return getattr(self._config.hooks, _EVENTS[event])

    def _matching(self, event: HookEvent, names: Sequence[str]) -> list[tuple[HookConfig, str]]:
        """Return the hooks of an event, each command once, with the name that its matcher matches."""
        found: dict[str, tuple[HookConfig, str]] = {}
        for hook in self._of(event):
            if (name := find_match(hook.matcher, names) if names else "") is not None:
                found.setdefault(hook.command, (hook, name))
        return list(found.values())

    def _names(self, tool: str) -> list[str]:
        return list_names(tool, self._config.mcp)

    def _describe_call(self, call: ToolCall, given: Mapping[str, Any]) -> Callable[[str], dict[str, Any]]:
        root = self._ctx.directory

        def describe(name: str) -> dict[str, Any]:
            shown = dict(given)
            if name != call.name and isinstance(path := shown.get("path"), str):
                home = path.startswith("~/")
                shown["path"] = str(Path(path).expanduser() if home else root / path)  # absolute, as in other agents
            return {"tool_name": name, "tool_input": translate_input(call.name, name, shown)}

        return describe

    async def _run(
        self,
        event: HookEvent,
        names: Sequence[str],
        describe: Callable[[str], Mapping[str, Any]],
        call: ToolCall | None = None,
    ) -> list[_Result]:
        """Run the hooks of an event in parallel; return what each wants, in the order of the configuration."""
        env = await self._build_env(event, call)
        base = await self._describe_run(event)

        async def run(hook: HookConfig, name: str) -> _Result:
            payload = msgspec.json.encode({**base, **describe(name)}) + b"\n"
            done = await run_command(self._ctx, hook, self._ctx.directory, env, payload)
            return _Result(hook, read_output(event, hook, done))

        return list(await asyncio.gather(*(run(*each) for each in self._matching(event, names))))

    @contextlib.asynccontextmanager
    async def _watch_files(self, may_change: bool) -> AsyncGenerator[None]:
        """Record what hooks change in the workspace as changes of the run, so that an undo takes them back."""
        if not may_change:
            yield
            return
        env = await self._build_env("PostToolUse", None)
        async with self._ctx.watch_files(env, self._config.files.max_bytes):
            yield

    async def _describe_run(self, event: HookEvent) -> dict[str, Any]:
        run = self._ctx.run
        described: dict[str, Any] = {
            "session_id": run.session_id,
            "transcript_path": None,
            "cwd": str(self._ctx.directory),
            "hook_event_name": event,
            "model": self.model,
            "permission_mode": describe_mode(self._mode(), run.permissions),
            "turn_id": run.run_id,
        }
        if self._is_sub_agent:
            if self._parent_session_id is None:
                self._parent_session_id = (await self._ctx.session()).parent_session_id or run.session_id
            described |= {"session_id": self._parent_session_id, "agent_id": run.session_id, "agent_type": "agent"}
        return {name: value for name, value in described.items() if name not in _NOT_GIVEN.get(event, ())}

    async def _build_env(self, event: HookEvent, call: ToolCall | None) -> dict[str, str]:
        """Return the server's environment with variables about the event; never that of the run's caller."""
        directory = self._ctx.directory
        if self._env is None:
            clean = drop_invalid_variables({k: v for k, v in self._environ.items() if k not in _HIDDEN})
            self._env = await asyncio.to_thread(with_safe_path, clean, directory)
        about = {
            "PWD": str(directory),
            "CLAUDE_PROJECT_DIR": str(directory),
            "KEDGE_PROJECT_DIR": str(directory),
            "KEDGE_HOOK_EVENT": event,
            "KEDGE_SESSION_ID": self._ctx.run.session_id,
            "KEDGE_RUN_ID": self._ctx.run.run_id,
        }
        return {**self._env, **about, **({} if call is None else {"KEDGE_TOOL": call.name})}

    async def _add_context(self, message_id: str, results: Sequence[_Result], **fields: Any) -> None:
        known = self._notes.of(message_id)
        texts = [known.context if known else "", *(each.output.context for each in results)]
        await self._notes.change(message_id, context="\n\n".join(filter(None, texts)), **fields)

    async def _report(self, event: HookEvent, results: Sequence[_Result]) -> None:
        for hook, output in results:
            if output.failure:
                name = shorten(" ".join(strip_root(hook.command).split()), 60)
                await self._notify(f"The {event} hook `{name}` did not work: {output.failure}", event)
            if output.message:
                await self._notify(output.message, event)

    async def _notify(self, message: str, event: HookEvent) -> None:
        await self._ctx.append_event("notice", message=visible_line(message)[:500], details={"hook": event})


def _combine(results: Sequence[_Result]) -> HookOutput:
    """Return one output: a denial wins over a question, and that over an allowance; the last input wins."""
    outputs = [each.output for each in results]
    for decision in ("deny", "ask", "allow"):
        if reasons := [each.reason for each in outputs if each.decision == decision]:
            break
    else:
        decision, reasons = "", []
    return HookOutput(
        decision=decision,
        reason="\n".join(dict.fromkeys(filter(None, reasons))),
        context="\n\n".join(filter(None, (each.context for each in outputs)))[: MAX_CONTEXT_CHARS * 2],
        input=next((each.input for each in reversed(outputs) if each.input is not None), None),
    )


def _check_stopped(results: Sequence[_Result]) -> None:
    """Raise `TurnFailed` if a hook ends the run (`"continue": false`)."""
    for each in results:
        if each.output.stops is not None:
            raise TurnFailed(f"A hook ended the run: {each.output.stops}", "hook_stopped")


def _read_file(path: Path) -> bytes | None:
    try:
        if path.stat().st_size > MAX_COMPARED_BYTES:
            return None
        return path.read_bytes()
    except OSError:
        return None


def _describe_change(path: Path, before: bytes | None, tool: str) -> tuple[str, str]:
    """Return what hooks changed in a file, for the model, and its new digest if the model is told everything."""
    after = _read_file(path)
    if after == before:
        return "", ""
    title = f"After this {tool}, a hook changed {path}"
    if before is None or after is None:
        return f"{title}. View it again before you edit it.", ""
    try:
        change = diff(before.decode(), after.decode(), path.name).text
    except UnicodeDecodeError:
        return f"{title}. View it again before you edit it.", ""
    if len(change) > MAX_DIFF_CHARS:
        return f"{title} in many places. View it again before you edit it.", ""
    return f"{title}:\n{change}", compute_digest(after)
