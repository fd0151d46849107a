"""`KeyQueue`: keys, pastes and clicks are handled in the order in which they were made.

Textual gives a key to the focused widget's queue, and a key that is bound to an action travels from there through the
queues of all parents. So the letters behind an Enter would be handled before it, and those behind a key that opens a
dialog would not reach the dialog. Here the next key waits until the one before has had its effect. Letters for the
editor need not wait for each other: they stay in order in its queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from textual import events
from textual.app import App
from textual.message_pump import MessagePump

MAX_ROUNDS = 10  # messages that cause messages; more than these belong to something else that is going on
MAX_LETTERS = 50  # that need not wait for each other: the editor handles them in much less than the following time
MAX_WAIT_S = 1.0  # for a widget that is busy: the keyboard must never stop

Input = events.Key | events.Paste | events.MouseEvent


class KeyQueue:
    """`handle` begins with a key; `settled` is called when it has had its effect.

    `is_text` says whether a key is only inserted into the text that has the focus.
    """

    def __init__(
        self,
        app: App[Any],
        handle: Callable[[Input], Awaitable[None]],
        settled: Callable[[], None],
        is_text: Callable[[Input], bool],
    ) -> None:
        self._app = app
        self._handle = handle
        self._is_text = is_text
        self._settled = settled
        self._waiting: deque[Input] = deque()
        self._working: asyncio.Task[None] | None = None

    def must_wait(self, event: Input) -> bool:
        """Whether the order matters. Movements and the wheel wait only for keys that are not handled yet."""
        is_movement = isinstance(event, events.MouseEvent) and not isinstance(event, events.MouseDown | events.MouseUp)
        return not is_movement or self._working is not None

    def add(self, event: Input) -> None:
        self._waiting.append(event)
        if self._working is None:
            self._working = asyncio.create_task(self._work(), name="keys")

    async def close(self) -> None:
        self._waiting.clear()
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait({self._working})

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._handle_next()
                await self._settle()
                self._settled()
        except Exception as error:  # noqa: BLE001 - as Textual handles the errors of all handlers
            self._app._handle_exception(error)  # pyright: ignore[reportPrivateUsage]
        finally:
            self._working = None

    async def _handle_next(self) -> None:
        """Handle the next key; if it is a letter for the editor, then those that follow it, too."""
        for _ in range(MAX_LETTERS):
            event = self._waiting.popleft()
            is_text = self._is_text(event)
            await self._handle(event)
            if not (is_text and self._waiting and self._is_text(self._waiting[0])):
                return

    async def _settle(self) -> None:
        """Wait until no widget of the screen has anything left to do."""
        for _ in range(MAX_ROUNDS):
            pumps = [self._app, *self._app.screen.walk_children(with_self=True)]
            try:
                async with asyncio.timeout(MAX_WAIT_S):
                    await asyncio.gather(*map(_finish_messages, pumps))
            except TimeoutError:
                return
            if not _have_messages(pumps) and self._app.screen is pumps[1]:
                return


def _have_messages(pumps: Iterable[MessagePump]) -> bool:
    return any(pump.message_queue_size for pump in pumps)


async def _finish_messages(pump: MessagePump) -> None:
    """Wait until a widget has handled the messages that it has now, or is gone."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = cast("asyncio.Task[None] | None", pump._task)  # pyright: ignore[reportPrivateUsage]
    if pump.is_running and pump.call_later(lambda: done.done() or done.set_result(None)):
        waiting: set[asyncio.Future[None]] = {done} if task is None else {done, task}  # it ends with the widget
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
