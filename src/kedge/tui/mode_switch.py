"""`ModeSwitch`: chooses the mode of the next prompt, which is that of the running turn, too.

A key goes through the modes one by one, so a mode counts for the running turn only when the key rests: on the way to
another one, no request may be allowed. `yolo` asks once, and `auto` needs a limit on cost.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from kedge.client.errors import ClientError
from kedge.protocol.runs import MODES, Mode

if TYPE_CHECKING:
    from kedge.tui.port import Chat

SETTLE_S = 0.6
NEEDS_LIMIT = "Mode auto needs a limit on cost: kedge config set agent.max_cost 5"
_YOLO_TEXT = "Mode yolo runs every command and changes every file without asking, outside the workspace, too."


class ModeSwitch:
    def __init__(self, screen: Chat) -> None:
        self._screen = screen
        self.wanted: Mode | None = None  # chosen, and not applied yet
        self.is_yolo_confirmed = screen.mode == "yolo"  # on the command line
        self._timer: asyncio.TimerHandle | None = None

    @property
    def shown(self) -> Mode:
        return self.wanted or self._screen.mode

    def choose_next(self) -> None:
        following = MODES[(MODES.index(self.shown) + 1) % len(MODES)]
        if following == "auto" and not self._screen.interface.settings.has_cost_limit:
            self._screen.hint(NEEDS_LIMIT)
            following = MODES[MODES.index("auto") + 1]
        self._want(following, SETTLE_S)

    def choose(self, mode: Mode) -> None:
        if mode == "auto" and not self._screen.interface.settings.has_cost_limit:
            self._screen.hint(NEEDS_LIMIT)
        else:
            self._want(mode, 0.0)

    async def confirm(self, mode: Mode) -> bool:
        """Return whether the mode may be used: `yolo` is confirmed once. Call it in a worker."""
        if mode == "auto" and not self._screen.interface.settings.has_cost_limit:
            self._screen.hint(NEEDS_LIMIT)
            return False
        if mode != "yolo" or self.is_yolo_confirmed:
            return True
        from kedge.tui.dialogs.dialog import ConfirmDialog

        choices = (("yolo", "Switch to yolo"), ("stay", f"Stay in mode {self._screen.mode}"))
        choice = await self._screen.interface.ask(ConfirmDialog(_YOLO_TEXT, choices, title="Mode yolo?"))
        self.is_yolo_confirmed = choice == "yolo"
        return self.is_yolo_confirmed

    def use(self, mode: Mode) -> None:
        """Send the next prompts in this mode."""
        self._screen.mode, self._screen.is_mode_chosen = mode, True
        self._screen.draw_soon()

    def _want(self, mode: Mode, wait_s: float) -> None:
        self.wanted = mode
        if mode != "yolo" or self.is_yolo_confirmed:
            self.use(mode)
        self._settle_in(wait_s)
        self._screen.draw_soon()

    def _settle_in(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._settle)

    def _settle(self) -> None:
        quiet_s = time.monotonic() - self._screen.last_key_at
        is_typing = self.wanted == "yolo" and not self.is_yolo_confirmed and SETTLE_S - quiet_s > 0
        if is_typing and self._screen.editor.text:
            self._settle_in(SETTLE_S - quiet_s)  # no dialog comes between words
        elif self.wanted is not None:
            self._screen.run_worker(self._apply(self.wanted), group="mode", exclusive=True)

    async def _apply(self, mode: Mode) -> None:
        if not await self.confirm(mode):
            self.wanted = None
            self._screen.draw_soon()
            return
        self.use(mode)
        self.wanted = None
        await self._switch_run(mode)

    async def _switch_run(self, mode: Mode) -> None:
        session = self._screen.session
        run = session.active if session is not None else None
        if run is None or run.kind not in ("prompt", "agent") or run.mode == mode:
            return
        try:
            await self._screen.api.switch_mode(run.run_id, mode)
        except ClientError as error:
            self._screen.hint(f"The running turn keeps its mode: {error}")
