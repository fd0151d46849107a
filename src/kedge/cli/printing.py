"""How `kedge run` shows a run: as text, live or at its end, or as its events, one a line."""

from __future__ import annotations

import json

from kedge.cli.common import one_line
from kedge.cli.console import Console, is_terminal
from kedge.client.activity import Activity
from kedge.client.telling import FinalTeller, LiveTeller
from kedge.client.watching import RunView
from kedge.protocol.text_safety import json_for_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    from kedge.client.story import Event
    from kedge.client.telling import Teller, Told
    from kedge.client.text import Growth

    class Printer(Protocol):
        def listen(self, event: Event, data: bytes, grown: list[Growth]) -> None: ...
        def news(self) -> None: ...
        def finish(self, end: dict[str, Any]) -> None: ...


class TextPrinter:
    """`shows_calls`: whether the calls that are made on the way are shown, one line each."""

    def __init__(
        self, console: Console, view: RunView, *, is_live: bool, is_quiet: bool, shows_calls: bool = False
    ) -> None:
        self._console = console
        self._activity = None if is_quiet else Activity(view.run_id)
        self._shows_calls = shows_calls
        self._teller: Teller = LiveTeller(view.messages) if is_live else FinalTeller(view.messages)
        self._is_quiet = is_quiet

    def listen(self, event: Event, data: bytes, grown: list[Growth]) -> None:
        if self._activity is None:
            return  # the view has what is said
        for kind, text in self._activity.take(event):
            if kind == "call" and not self._shows_calls:
                continue
            self.news()  # what was said before comes before it
            self._console.flush()
            line = one_line(text)
            self._console.error(f"{line}\n" if kind == "call" else f"kedge: {line}\n")

    def news(self) -> None:
        self._print(self._teller.news())

    def finish(self, end: dict[str, Any]) -> None:
        self._print(self._teller.finish(end))

    def _print(self, told: Iterable[Told]) -> None:
        for kind, text in told:
            if kind in ("answer", "break"):
                self._console.answer(text)
            elif kind == "note":
                self._console.flush()
                self._console.error(f"kedge: {text}\n")
            elif not self._is_quiet:
                self._console.error(text)


class JsonPrinter:
    """The run's envelopes as they came. Text is told from where the last line ended, also after a reconnect."""

    def __init__(self, console: Console, *, with_deltas: bool) -> None:
        self._console = console
        self._with_deltas = with_deltas
        self._has_ended = False
        self._is_on_terminal = is_terminal(1)

    def listen(self, event: Event, data: bytes, grown: list[Growth]) -> None:
        if event.get("seq") is not None:
            self._line(data if b"\n" not in data else json.dumps(event).encode())
            self._has_ended = event["type"] == "run_complete"
        elif self._with_deltas:
            for growth in grown:
                self._line(json.dumps(_delta(event, growth), ensure_ascii=False).encode())

    def news(self) -> None:
        pass

    def finish(self, end: dict[str, Any]) -> None:
        if not self._has_ended:
            told = {"type": "run_complete", "payload": {"type": "created", "payload": end}}
            self._line(json.dumps(told, ensure_ascii=False).encode())

    def _line(self, data: bytes) -> None:
        if self._is_on_terminal:
            data = json_for_terminal(data.decode("utf-8", "replace")).encode()
        self._console.answer_bytes(data + b"\n")


def _delta(event: Event, growth: Growth) -> Event:
    """What grew as a delta: also when a snapshot told it."""
    told = event["payload"]["payload"]
    part, kind, offset, text = growth
    payload = {
        "message_id": told["message_id"] if event["type"] == "message_delta" else told["id"],
        "session_id": told["session_id"],
        "run_id": told["run_id"],
        "part": part,
        "kind": kind,
        "offset": offset,
        "text": text,
    }
    return {"type": "message_delta", "payload": {"type": "created", "payload": payload}}
