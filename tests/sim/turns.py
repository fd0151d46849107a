"""What turns do in the simulation: scripts made from the seed, played with random pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from kedge.engine.scripted import ScriptedTurn
from kedge.engine.turn import TurnContext
from kedge.protocol.messages import Message, Reasoning, Text, ToolCall
from kedge.protocol.runs import Usage
from kedge.store.errors import ClaimLost

STEPS = ("say", "tool", "ask", "question", "delegate", "task")

# Plain words, and what is more than one byte, one UTF-16 unit or one code point.
_WORDS = ("sea", "salt", "keel", "ünder", "мир", "⚓", "😀", "👩🏽‍🚀", "rope", '"quoted"', "back\\slash")


class Scripts:
    """Makes scripts for `ScriptedTurn`; every word in them is used once, so that lost or doubled text shows."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._made = 0
        self.weights = {line: rng.choice((0, 1, 1, 3)) for line in _LINES}
        self.weights["say"] = 3
        self.weights["limit"] = rng.choice((0, 1, 10))

    def script(self, *, depth: int = 0) -> str:
        lines = [self._line(depth) for _ in range(self._rng.choice((1, 1, 2, 2, 3, 4)))]
        return (" / " if depth else "\n").join(lines)

    def words(self, most: int = 6) -> str:
        return " ".join(self._word() for _ in range(self._rng.randint(1, most)))

    def _word(self) -> str:
        self._made += 1
        return f"{self._rng.choice(_WORDS)}{self._made}"

    def _line(self, depth: int) -> str:
        kind = self._rng.choices(_LINES, [self.weights[line] for line in _LINES])[0]
        if depth and kind in ("delegate", "brief", "zombie"):
            kind = "say"  # sub-agents of sub-agents are made by hand below, one level deep
        match kind:
            case "say":
                return f"say {self.words()}"
            case "retry":
                return f"retry {self.words()}"
            case "tool" | "ask":
                return f"{kind} grep {self.words()}"
            case "task":
                return f"task build {self.words()}"
            case "hanging tool":
                return f"tool grep {self.words(2)} hang"
            case "question":
                return f"question {self.words(2)}"
            case "delegate":
                return f"delegate {self.script(depth=depth + 1)}"
            case "brief":
                return f"tool brief {self.script(depth=depth + 1)}"
            case "sleep":
                return f"sleep {self._rng.choice((0, 0.01, 0.3, 2))}"
            case "limit":
                return f"limit {self._rng.choice((0, 0.01, 0.5, 3, 20, 100_000))}"
            case "stubborn":
                return f"stubborn {self._rng.choice((0.5, 2, 4, 8))}"
            case "fail" | "raise":
                return f"{kind} {self._word()}"
            case _:
                return kind


_LINES = (
    *("say", "retry", "tool", "ask", "task", "hanging tool", "question", "delegate", "brief", "sleep", "hang"),
    *("stubborn", "fail", "raise", "exit", "zombie", "limit"),
)


class SimTurn(ScriptedTurn):
    """Streams in pieces of any size, also in half characters, and knows a few more ways to misbehave:

    tool brief SCRIPT   a sub-agent that is given up after a moment
    zombie              swallows its cancellation and tries to go on writing
    """

    def __init__(
        self,
        rng: Random,
        returned: Callable[[str], None],
        wrote_late: Callable[[str], None],
        read: Callable[[str, list[Message]], None],
    ) -> None:
        super().__init__(pause=self._pause_a_while)
        self._rng = rng
        self._returned = returned
        self._wrote_late = wrote_late
        self._read = read

    async def __call__(self, ctx: TurnContext) -> None:
        await self._pause_a_while()
        self._read(ctx.run.session_id, await ctx.history())
        await super().__call__(ctx)
        self._returned(ctx.run.run_id)

    async def summarize(self, ctx: TurnContext) -> None:
        message = await ctx.begin_message(model="scripted", summary=True)
        message.open(Text("")).write("in short")
        await self._pause_a_while()
        await message.finish("end_turn")
        self._returned(ctx.run.run_id)

    async def _pause_a_while(self) -> None:
        await asyncio.sleep(self._rng.choice((0, 0, 0, 0.001, 0.01, 0.1, 0.4)))

    async def _step(self, ctx: TurnContext, verb: str, rest: str, call_id: str) -> None:
        if verb != "say":
            await super()._step(ctx, verb, rest, call_id)
            return
        message = await ctx.begin_message(model="scripted")
        if self._rng.random() < 0.3:
            thought = message.open(Reasoning(""))
            thought.write("hm")
            await self._pause_a_while()
            if self._rng.random() < 0.5:
                await thought.finish()
        text = message.open(Text(""))
        for slice_of in self._pieces(rest):
            text.write(slice_of)
            await self._pause_a_while()
        if self._rng.random() < 0.3:
            await text.finish()
            await self._pause_a_while()
        await message.finish("end_turn", usage=Usage(output_tokens=1))

    async def _call(self, ctx: TurnContext, verb: str, rest: str, message_id: str, call_id: str) -> None:
        name, _, script = rest.partition(" ")
        if (verb, name) != ("tool", "brief"):
            await super()._call(ctx, verb, rest, message_id, call_id)
            return
        tool = await ctx.begin_tool_result(message_id, call_id, name)
        try:
            async with asyncio.timeout(self._rng.choice((0, 0.002, 0.02, 0.5))):
                end = await ctx.delegate(script.replace(" / ", "\n"))
        except TimeoutError:
            await tool.finish("given up", is_error=True)
        else:
            await tool.finish(end.text or "nothing")  # an empty one would look like one that has just begun

    async def _act(self, ctx: TurnContext, verb: str, rest: str) -> None:
        if verb != "zombie":
            await super()._act(ctx, verb, rest)
            return
        try:
            await asyncio.sleep(self._rng.choice((0, 0.1, 5)))
        except asyncio.CancelledError:
            await self._write_on(ctx)

    async def _write_on(self, ctx: TurnContext) -> None:
        try:
            message = await ctx.begin_message()
            await message.add(ToolCall("late", "late", "", True))
        except ClaimLost:
            return
        self._wrote_late(ctx.run.run_id)

    def _pieces(self, text: str) -> list[str]:
        """The text cut anywhere, in UTF-16 units: as a careless provider may send it."""
        units = text.encode("utf-16-le")
        count = len(units) // 2
        cuts = sorted(self._rng.sample(range(1, count), min(self._rng.randint(0, 8), count - 1)))
        places = zip([0, *cuts], [*cuts, count], strict=True)
        return [units[2 * start : 2 * end].decode("utf-16-le", "surrogatepass") for start, end in places]


def expected_text(prompts: list[str]) -> str:
    """The answer of a turn that completed: what its last step said."""
    lines = [line.strip() for prompt in prompts for line in prompt.replace(";", "\n").splitlines()]
    steps = [line for line in lines if line.split(" ")[0] in STEPS]
    verb, _, rest = steps[-1].partition(" ") if steps else ("", "", "")
    return rest if verb == "say" else ""


def said(prompts: list[str]) -> list[str]:
    """All texts that these scripts may say."""
    lines = [line.strip().partition(" ") for prompt in prompts for line in prompt.replace(";", "\n").splitlines()]
    return [rest for verb, _, rest in lines if verb in ("say", "retry")]
