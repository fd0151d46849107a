"""A command at work: what it says is read as it comes, until the last of its processes has ended."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kedge.files.safe_open import remove_tree
from kedge.tools.port import ToolContext
from kedge.tools.process import spawn
from kedge.tools.process.output import Cleaner, Excerpt, Saved
from kedge.tools.process.spawn import PIECE, Started
from kedge.tools.sandbox.launch import reap_supervisor
from kedge.tools.sandbox.limits import Limits
from kedge.tools.sandbox.policy import LaunchSpec

log = logging.getLogger(__name__)

# After the shell's end: what it left in the background may keep its output open for ever.
DRAIN_S = 1.0
# How often those that were left in the background are looked for, at first and at last.
_LOOK_FIRST_S, _LOOK_MOST_S = 0.1, 5.0


class Command:
    """`exited` when its shell has ended and what it said was read; `over` when nothing that it started is left."""

    def __init__(
        self,
        started: Started,
        saved: Saved,
        on_text: Callable[[str], None],
        timeout_s: float | None,
        supervisor: str = "",
        limits: Limits | None = None,
    ) -> None:
        self.exit_code: int | None = None
        self.left: list[str] = []  # who was still alive when the shell had ended
        self.timed_out = False
        self.survivors: list[str] = []  # of its end: those that nothing ends
        self.exited = asyncio.Event()
        self.over = asyncio.Event()
        self.news = asyncio.Event()  # something was said since the excerpt was taken
        self.saved = saved
        self._on_text = on_text
        self._excerpt = Excerpt()
        self._lines = 0  # before the excerpt
        self._cleaner = Cleaner()
        self._supervisor = supervisor
        self._child, self._record, self._output, self._pipe, self._temporary = started
        self._limit_s = limits.timeout_s(timeout_s) if limits is not None else None
        self._began = time.monotonic()
        self._ended: float | None = None
        self._ending = asyncio.Lock()  # held while it is ended: whoever still dies then is not left
        self._tasks = [asyncio.create_task(self._work())]
        if self._limit_s is not None:  # of an unapproved command nothing goes on after its time
            self._tasks.append(asyncio.create_task(self._end_after(self._limit_s, self.over)))
        elif timeout_s is not None:
            self._tasks.append(asyncio.create_task(self._end_after(timeout_s, self.exited)))
        for task in self._tasks:
            task.add_done_callback(_log_failure)

    @classmethod
    async def start(
        cls,
        ctx: ToolContext,
        command: str,
        directory: Path,
        env: Mapping[str, str],
        on_text: Callable[[str], None],
        timeout_s: float | None,
        launch_spec: LaunchSpec | None = None,
        limits: Limits | None = None,
    ) -> Command:
        """`limits`: of a command that runs without approval and without a sandbox; a read-only sandbox has its own."""
        limits = limits or (launch_spec.limits if launch_spec else None)
        started = await spawn.start(ctx, command, directory, env, launch_spec, limits)
        supervisor = launch_spec.supervisor if launch_spec else ""
        return cls(started, Saved(ctx.scratch), on_text, timeout_s, supervisor, limits)

    @property
    def took_s(self) -> float:
        return (self._ended or time.monotonic()) - self._began

    @property
    def how_it_ended(self) -> str:
        """Of its shell, in a few words."""
        code = self.exit_code
        if self.timed_out:
            bound = "" if self._limit_s is None else f" ({self._limit_s:.0f} s without approval)"
            return f"ended: its time was up{bound}"
        if code is None:
            return "running"
        return f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"

    def take(self) -> str:
        """What was said since this was asked last, its middle cut out if it is long."""
        excerpt, self._excerpt = self._excerpt, Excerpt(lines_before=self._lines + self._excerpt.newlines)
        self._lines += excerpt.newlines
        if not self.over.is_set():  # nobody waits for what can't come any more
            self.news.clear()
        return excerpt.text(self.saved.where)

    async def keep(self) -> None:
        """Let it go on in the background, where only its file grows without end."""
        await self._record.keep()
        self._on_text = _nobody
        self.saved.spill()

    async def end(self) -> list[str]:
        """End all of it; returns who could not be ended."""
        async with self._ending:
            self.survivors = await self._record.end()
        return self.survivors

    async def abandon(self) -> None:
        """Read no further. Its processes are ended by whoever has them on record."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        pump = asyncio.create_task(self._pump())
        try:
            self.exit_code = await self._child.wait()
            await asyncio.wait({pump}, timeout=DRAIN_S)
            async with self._ending:
                self.left = await self._who_is_left(is_silent=pump.done())
            self._ended = time.monotonic()
            self.exited.set()
            await self._wait_for_the_rest(pump)
            await self._record.forget()
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            self._pipe.close()
            self.saved.close()
            self.exited.set()
            if self._temporary is not None:
                await asyncio.to_thread(remove_tree, self._temporary)
            self.over.set()
            self.news.set()

    async def _who_is_left(self, *, is_silent: bool) -> list[str]:
        """Without a supervisor: that one has the output open for as long as there are others."""
        if not self._supervisor:
            return await self._record.members()
        if is_silent:
            await reap_supervisor(self._child.pid)
        left = await self._record.members()
        return [each for each in left if not each.startswith(f"{self._supervisor} (")]

    async def _wait_for_the_rest(self, pump: asyncio.Task[None]) -> None:
        pause_s = _LOOK_FIRST_S
        left = self.left
        while left:
            # The end of the output is a good moment to look again; without one, there is only the clock.
            if pump.done():
                await asyncio.sleep(pause_s)
            else:
                await asyncio.wait({pump}, timeout=pause_s)
            pause_s = min(pause_s * 2, _LOOK_MOST_S)
            left = await self._record.members()

    async def _pump(self) -> None:
        while data := await self._output.read(PIECE):
            self._say(self._cleaner.feed(data))
        self._say(self._cleaner.feed(b"", is_last=True))

    def _say(self, text: str) -> None:
        if not text:
            return
        self._excerpt.add(text)
        self.saved.write(text)
        self.news.set()
        self._on_text(text)

    async def _end_after(self, timeout_s: float, last: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await last.wait()
        except TimeoutError:
            self.timed_out = True
            if await self.end():
                self.exited.set()  # what cannot be ended is not waited for


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("a command could not be followed to its end", exc_info=error)


def _nobody(text: str) -> None:
    del text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
