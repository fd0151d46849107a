"""A turn that executes its prompt as a script: it stands in for an agent in `kedge story` and in tests.

A prompt is a script, one command a line (or after a `;`):

    say TEXT            an assistant message, streamed word by word
    tool NAME OUTPUT    a message with a tool call, then the call, which streams OUTPUT
    ask NAME OUTPUT     the same, after asking for permission
    question TEXT       asks a person; the answer becomes the result
    task NAME OUTPUT    a tool call that goes on after a restart, from the word at which it was
    process COMMAND     a tool call that runs a shell command in a process group of its own
    delegate SCRIPT     a sub-agent with that script (` / ` instead of `;`); its text becomes the result
    retry TEXT          an attempt that streams TEXT and fails, appends a retry event; the script continues
    summarize TEXT      a summary, streamed; first in its script, since a resumed turn does not see earlier messages
    use TOKENS          adds usage outside of the steps
    wait GATE           waits until a test opens the gate
    limit SECONDS       waits as for a provider's rate limit; not again in a turn that was resumed from a wait
    sleep SECONDS · hang · stubborn SECONDS (ignores cancellation)
    fail TEXT · raise TEXT · exit

Commands that create a message are steps. A resumed turn continues after the last committed step, and never repeats a
tool call that had started, but for a `task`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kedge.engine.errors import TurnFailed
from kedge.engine.message_writer import MessageWriter
from kedge.engine.turn import TurnContext
from kedge.protocol.messages import Message, Text, ToolCall, ToolResult
from kedge.protocol.runs import Usage, Waiting


class Gates:
    """Named points where a scripted turn waits, so that a test can play an exact sequence."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Event] = {}
        self._reached: dict[str, asyncio.Event] = {}

    def open(self, name: str) -> None:
        self._open.setdefault(name, asyncio.Event()).set()

    async def reached(self, name: str) -> None:
        await self._reached.setdefault(name, asyncio.Event()).wait()

    async def wait(self, name: str) -> None:
        self._reached.setdefault(name, asyncio.Event()).set()
        await self._open.setdefault(name, asyncio.Event()).wait()


class ScriptedTurn:
    def __init__(self, gates: Gates | None = None, pause: Callable[[], Awaitable[None]] | None = None) -> None:
        self._gates = gates or Gates()
        self._pause = pause or (lambda: asyncio.sleep(0))

    async def __call__(self, ctx: TurnContext) -> None:
        script = [line for run in [ctx.run, *ctx.joined] for line in _lines(run.prompt)]
        history = await ctx.history()
        done = [m for m in history if m.run_id == ctx.run.run_id and m.role == "assistant" and not m.summary]
        steps = 0
        while script:
            verb, _, rest = script.pop(0).partition(" ")
            if verb in _STEPS:
                steps += 1
                if steps <= len(done):
                    await self._complete(ctx, verb, rest, done[steps - 1], history)
                else:
                    await self._step(ctx, verb, rest, f"call-{steps}")
                script += [line for run in await ctx.join() for line in _lines(run.prompt)]
            elif steps >= len(done):
                await self._act(ctx, verb, rest)

    async def _step(self, ctx: TurnContext, verb: str, rest: str, call_id: str) -> None:
        message = await ctx.begin_message(model="scripted")
        if verb == "say":
            await self._say(message, rest)
            return
        name = rest.partition(" ")[0] if verb in ("tool", "ask", "task") else verb
        call = message.open(ToolCall(call_id, name, "", False))
        call.write(rest)
        await self._pause()
        await message.finish("tool_use", usage=Usage(output_tokens=1))
        await self._call(ctx, verb, rest, message.id, call_id)

    async def _say(self, message: MessageWriter, words: str) -> None:
        text = message.open(Text(""))
        for word in words.split(" "):
            text.write(word if not text.text else f" {word}")
            await self._pause()
        await message.finish("end_turn", usage=Usage(output_tokens=1))

    async def _complete(self, ctx: TurnContext, verb: str, rest: str, message: Message, history: list[Message]) -> None:
        """Run the calls of a step from before a restart that had not started then."""
        results = [m for m in history if m.role == "tool" and m.run_id == ctx.run.run_id]
        answered = {part.tool_call_id for m in results for part in m.parts if isinstance(part, ToolResult)}
        for part in message.parts:
            if isinstance(part, ToolCall) and part.id not in answered:
                await self._call(ctx, verb, rest, message.id, part.id)

    async def _call(self, ctx: TurnContext, verb: str, rest: str, message_id: str, call_id: str) -> None:
        name, _, output = rest.partition(" ")
        match verb:
            case "ask":
                answer = await ctx.ask_permission(
                    message_id, call_id, tool=name, action="run", description=f"run {name}", params={"output": output}
                )
                is_allowed = answer.action != "deny"
                tool = await ctx.begin_tool_result(message_id, call_id, name)
                await tool.finish(output if is_allowed else "refused", is_error=not is_allowed)
            case "question":
                answer = await ctx.ask_question(message_id, call_id, [{"question": rest}])
                tool = await ctx.begin_tool_result(message_id, call_id, verb)
                await tool.finish(f"{answer.action}: {answer.answers}")
            case "task":
                tool = await ctx.begin_tool_result(message_id, call_id, name)
                words = output.split(" ")
                for done in range(int(await tool.state() or 0), len(words)):
                    tool.write(f"{words[done]} ")
                    await tool.keep_state(b"%d" % (done + 1))
                    await self._pause()
                    if words[done] == "hang":
                        await asyncio.Event().wait()
                await tool.keep_state(None)
                await tool.finish(f"{output} ")
            case "process":
                tool = await ctx.begin_tool_result(message_id, call_id, verb)
                process = await asyncio.create_subprocess_shell(rest, start_new_session=True)
                group = await ctx.record_process(process.pid)
                code = await process.wait()
                await group.forget()
                await tool.finish(f"exit {code}", is_error=code != 0)
            case "delegate":
                tool = await ctx.begin_tool_result(message_id, call_id, verb)
                end = await ctx.delegate(rest.replace(" / ", "\n"), title="sub-agent")
                await tool.finish(end.text or end.error or "cancelled", is_error=bool(end.error or end.cancelled))
            case _:
                tool = await ctx.begin_tool_result(message_id, call_id, name)
                for word in output.split(" "):
                    tool.write(f"{word} ")
                    await self._pause()
                    if word == "hang":
                        await asyncio.Event().wait()
                await tool.finish(f"{output} ")

    async def _act(self, ctx: TurnContext, verb: str, rest: str) -> None:
        match verb:
            case "retry":
                message = await ctx.begin_message(model="scripted")
                message.open(Text("")).write(rest)
                await message.finish("interrupted")
                await ctx.append_event("retry", error="the stream was dropped")
            case "summarize":
                await self._say(await ctx.begin_message(model="scripted", summary=True), rest)
            case "use":
                await ctx.add_usage(Usage(output_tokens=int(rest)))
            case "wait":
                await self._gates.wait(rest)
            case "limit" if ctx.run.waiting is not None:
                pass
            case "limit":
                await ctx.wait(Waiting("rate_limit", ctx.now() + float(rest)))
            case "sleep":
                await asyncio.sleep(float(rest))
            case "hang":
                await asyncio.Event().wait()
            case "stubborn":
                await _ignore_cancellation(float(rest))
            case "fail":
                raise TurnFailed(rest, "scripted")
            case "raise":
                raise RuntimeError(rest)
            case "exit":
                raise SystemExit(3)
            case _:
                raise TurnFailed(f"the script has no command {verb!r}", "scripted")


_STEPS = frozenset({"say", "tool", "ask", "question", "process", "delegate", "task"})


def _lines(prompt: str) -> list[str]:
    return [line.strip() for line in prompt.replace(";", "\n").splitlines() if line.strip()]


async def _ignore_cancellation(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        try:
            await asyncio.sleep(end - loop.time())
        except asyncio.CancelledError:
            continue
