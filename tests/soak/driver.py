"""One of fifty: somebody who works in a session, does everything that can be done there, and goes on in a new one."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from random import Random

from kedge.protocol.runs import OnBusy
from tests.soak.api import WorkspaceApi
from tests.soak.commands import Commands
from tests.soak.plans import Deed, Deeds
from tests.soak.record import Body
from tests.support.model_control import ModelControl

MAX_OPEN = 4  # runs that a driver leaves open before it waits for one of them
PATIENCE_S = 20.0  # for a run, before its driver ends it: it may be one that never ends by itself
HURRY_S = 1.0  # before one that is known to wait for something is helped, or ended
MODELS = (None, None, None, "openai/fake-model", "anthropic/fake-model", "gemini/fake-model")
ON_BUSY: tuple[OnBusy, ...] = ("queue", "queue", "queue", "steer", "steer", "interrupt", "reject")


@dataclasses.dataclass
class Tally:
    """What was done, by name."""

    done: Counter[str] = dataclasses.field(default_factory=Counter[str])


class Driver:
    def __init__(
        self,
        name: str,
        api: WorkspaceApi,
        deeds: Deeds,
        rng: Random,
        models: ModelControl,
        commands: Commands,
        tally: Tally,
    ) -> None:
        self.name = name
        self._api = api
        self._deeds = deeds
        self._rng = rng
        self._models = models
        self._commands = commands
        self._tally = tally
        self._session_id = ""
        self._open: deque[tuple[str, Deed]] = deque()
        self._last: tuple[str, Body] | None = None
        self._commanding: asyncio.Task[None] | None = None
        self._sessions = 0
        self._is_over = asyncio.Event()
        self._actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.prompt, 45),
            (self.prompt_again, 8),
            (self.other_body, 2),
            (self.cancel_session, 4),
            (self.cancel_run, 4),
            (self.clear_queue, 2),
            (self.cancel_idle, 2),
            (self.arrange, 5),
            (self.switch_mode, 3),
            (self.revoke, 2),
            (self.undo, 5),
            (self.fork, 2),
            (self.summarize, 2),
            (self.shell, 4),
            (self.look, 5),
            (self.nonsense, 2),
            (self.command, 5),
            (self.new_session, 3),
        ]

    async def work(self, actions: int, is_over: asyncio.Event) -> None:
        """So many actions, or until it is over; then all that it sent comes to an end."""
        self._is_over = is_over
        self._session_id = await self._api.new_session(self.name)
        for _ in range(actions):
            if is_over.is_set():
                break
            await self._api.server.up.wait()
            (act,) = self._rng.choices([act for act, _ in self._actions], [weight for _, weight in self._actions])
            self._tally.done[act.__name__.replace("_", " ")] += 1
            await act()
            await self._make_room()
        while self._open:
            await self._wait_for_oldest()

    # prompts

    async def prompt(self) -> None:
        deed = self._deeds.draw(self._rng)
        self._tally.done[f"prompt: {deed.kind}"] += 1
        body = Body(
            session_id=self._session_id,
            prompt=deed.prompt,
            on_busy=self._rng.choice(ON_BUSY),
            permissions=deed.permissions,
            model=self._rng.choice(MODELS),
        )
        await self._submit(deed, body)

    async def prompt_again(self) -> None:
        """The same id with the same body, perhaps while the first is still on its way, or long after its end."""
        if self._last is None:
            return
        run_id, body = self._last
        await asyncio.gather(*(self._api.send(run_id, body) for _ in range(self._rng.choice((1, 1, 3)))))

    async def other_body(self) -> None:
        if self._last is not None and self._last[1].prompt:
            run_id, body = self._last
            await self._api.send(run_id, dataclasses.replace(body, prompt=body.prompt + " else"))

    async def shell(self) -> None:
        deed = self._deeds.shell(self._rng)
        await self._submit(deed, Body(self._session_id, deed.prompt, "shell"))

    async def summarize(self) -> None:
        await self._submit(Deed("summarize", "", ending="any"), Body(self._session_id, "", "summarize"))

    async def _submit(self, deed: Deed, body: Body) -> None:
        run_id = self._api.new_run_id(deed)
        if self._rng.random() < 0.1:  # two at once: one of them is told that it came again
            await asyncio.gather(self._api.send(run_id, body), self._api.send(run_id, body))
        sent = await self._api.send_until_answered(run_id, body)
        self._last = (run_id, body)
        if sent.asked.status == 202:
            self._open.append((run_id, deed))

    # cancels

    async def cancel_session(self) -> None:
        """Then, at once, a prompt that it must not touch (P6)."""
        await self._api.cancel_session(self._session_id)
        if self._rng.random() < 0.5:
            await self.prompt()

    async def cancel_run(self) -> None:
        if self._open:
            run_id, _ = self._rng.choice(self._open)
            await self._api.cancel_run(run_id)

    async def clear_queue(self) -> None:
        await self._api.clear_queue(self._session_id)

    async def cancel_idle(self) -> None:
        while self._open:
            await self._wait_for_oldest()
        await self._api.cancel_session(self._session_id)
        await self.prompt()

    # the queue, modes and grants

    async def arrange(self) -> None:
        """Move a prompt that may be queued, or promote it."""
        if not self._open:
            return
        where, (run_id, _) = f"{self._api.path}/agent/sessions/{self._session_id}/prompts", self._rng.choice(self._open)
        if self._rng.random() < 0.5:
            before = self._rng.choice([None, *(other for other, _ in self._open)])
            await self._api.other("move", "POST", f"{where}/move", {"run_id": run_id, "before": before})
        elif self._rng.random() < 0.7:
            await self._api.other("promote", "POST", f"{where}/promote", {"run_id": run_id})
        else:
            body = {"run_id": run_id, "on_busy": "interrupt"}
            await self._api.other("interrupt with", "POST", f"{where}/promote", body)

    async def switch_mode(self) -> None:
        """Stricter, and back: a run that may do more than it was sent with would leave marks of its own."""
        if self._open:
            run_id, _ = self._rng.choice(self._open)
            where = f"{self._api.path}/runs/{run_id}/mode"
            for mode in self._rng.choice((("ask", "auto-edit"), ("plan", "ask"), ("yolo",))):
                await self._api.other("mode", "POST", where, {"mode": mode})

    async def revoke(self) -> None:
        where = f"{self._api.path}/sessions/{self._session_id}/grants"
        answer = await self._api.other("grants", "GET", where)
        if answer.status == 200 and answer.body["grants"]:
            grant = self._rng.choice(answer.body["grants"])["id"]
            await self._api.other("revoke", "DELETE", f"{where}/{grant}")

    # the conversation

    async def undo(self) -> None:
        where = f"{self._api.path}/sessions/{self._session_id}"
        restore = self._rng.choice(("both", "both", "files", "conversation"))
        await self._api.other("undo", "POST", f"{where}/undo", {"restore": restore})
        if self._rng.random() < 0.5:
            await self._api.other("redo", "POST", f"{where}/redo", {})

    async def fork(self) -> None:
        """And sometimes goes on in the fork."""
        where = f"{self._api.path}/sessions/{self._session_id}/fork"
        answer = await self._api.other("fork", "POST", where, {})
        if answer.status == 200 and self._rng.random() < 0.5:
            await self._leave_session(is_deleted=False)
            self._session_id = answer.body["id"]

    async def look(self) -> None:
        page = await self._api.page(self._session_id)
        if page is not None:
            self._api.record.pages.append(page)
        await self._api.other("status", "GET", f"{self._api.path}/agent/sessions/{self._session_id}")

    async def nonsense(self) -> None:
        """What is wrong is told so, and changes nothing."""
        where = self._api.path
        await self._api.send("nonsense", Body(self._session_id, "  "))
        await self._api.send("nonsense", Body("nowhere", "hello"))
        await self._api.cancel_run("nonsense")
        await self._api.reply("permission", "nonsense", "allow", "a api")
        await self._api.other("unknown session", "GET", f"{where}/sessions/nowhere")

    async def new_session(self) -> None:
        await self._leave_session(is_deleted=self._rng.random() < 0.6)
        self._sessions += 1
        self._session_id = await self._api.new_session(f"{self.name}.{self._sessions}")

    async def command(self) -> None:
        """`kedge run`, in this session or in one of its own; its driver goes on meanwhile."""
        if self._commanding is None or self._commanding.done():
            rng = Random(self._rng.random())
            session_id = self._session_id if rng.random() < 0.5 else None
            self._commanding = self._commands.begin(self._api, self._deeds, rng, session_id)

    # open runs

    async def _make_room(self) -> None:
        while self._open and self._api.has_ended(self._open[0][0]):
            self._open.popleft()
        while len(self._open) > self._rng.randint(0, MAX_OPEN):
            await self._wait_for_oldest()

    async def _wait_for_oldest(self) -> None:
        """What waits for something is given it, or ended; whatever else takes too long is ended, too. When all is over,
        the rest is left to end by itself."""
        run_id, deed = self._open[0]
        patience_s = HURRY_S if deed.is_long or deed.gate else PATIENCE_S
        while not await self._api.ended(run_id, HURRY_S) and patience_s > HURRY_S and not self._is_over.is_set():
            patience_s -= HURRY_S
        is_waiting = deed.is_long or deed.gate
        if not self._api.has_ended(run_id) and (is_waiting or not self._is_over.is_set()):
            if deed.gate and self._rng.random() < 0.6:
                await asyncio.to_thread(self._models.release, deed.gate)
                self._open[0] = (run_id, deed._replace(gate=""))
                return
            await self._end(run_id)
        self._open.popleft()

    async def _leave_session(self, *, is_deleted: bool) -> None:
        if is_deleted:
            await self._api.delete_session(self._session_id)
        for run_id, deed in self._open:
            if not is_deleted and (deed.gate or deed.is_long):
                await self._end(run_id)
        self._open.clear()
        self._last = None if is_deleted and self._rng.random() < 0.5 else self._last

    async def _end(self, run_id: str) -> None:
        """Cancelled for sure: asked until there is an answer."""
        while True:
            await self._api.server.up.wait()
            answer = await self._api.cancel_run(run_id)
            if answer.status in (200, 404):
                break
            await asyncio.sleep(0.1)
        deed = self._api.record.works[run_id]
        if deed.process and await self._api.ended(run_id, PATIENCE_S):
            left = await self._api.server.gone({deed.process})
            self._api.record.left_after_cancel.extend(left)
