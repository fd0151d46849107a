"""How `kedge run` shows a run: as text, live or at its end, or as its events, one a line."""

from __future__ import annotations

import json

from kedge.cli.common import EXIT_CANCELLED, EXIT_FAILED, EXIT_OK, EXIT_REFUSED, EXIT_USAGE
from kedge.cli.console import Console, is_terminal
from kedge.client.run_output import Activity, FinalOutput, LiveOutput
from kedge.client.run_view import RunView
from kedge.protocol.formats import dollars
from kedge.protocol.text_safety import json_for_terminal, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    from kedge.client.event_cursor import Event
    from kedge.client.message_assembly import Growth
    from kedge.client.run_output import Piece, RunOutput

    class Printer(Protocol):
        def listen(self, event: Event, data: bytes, grown: list[Growth]) -> None: ...
        def print_new(self) -> None: ...
        def finish(self, end: dict[str, Any]) -> None: ...

    from kedge.client.run_view import Denial


class TextPrinter:
    """`shows_calls`: whether the calls that are made on the way are shown, one line each."""

    def __init__(
        self, console: Console, view: RunView, *, is_live: bool, is_quiet: bool, shows_calls: bool = False
    ) -> None:
        self._console = console
        self._activity = None if is_quiet else Activity(view.run_id)
        self._shows_calls = shows_calls
        self._teller: RunOutput = LiveOutput(view.messages) if is_live else FinalOutput(view.messages)
        self._is_quiet = is_quiet

    def listen(self, event: Event, data: bytes, grown: list[Growth]) -> None:
        if self._activity is None:
            return  # the view has what is said
        for kind, text in self._activity.take(event):
            if kind == "call" and not self._shows_calls:
                continue
            self.print_new()  # what was said before comes before it
            self._console.flush()
            line = one_line(text)
            self._console.error(f"{line}\n" if kind == "call" else f"kedge: {line}\n")

    def print_new(self) -> None:
        self._print(self._teller.new_pieces())

    def finish(self, end: dict[str, Any]) -> None:
        self._print(self._teller.finish(end))

    def _print(self, told: Iterable[Piece]) -> None:
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

    def print_new(self) -> None:
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


MOST_RULES = 3  # in one suggestion
USAGE_CODES = ("no_model", "bad_config")  # ends of runs that only their user can mend


def exit_code_of_end(end: dict[str, Any], refused: list[Denial]) -> int:
    """The exit code of a run that ended like this (section 5 of the contract); `refused` are its denied permissions."""
    if end.get("cancelled"):
        return EXIT_CANCELLED
    if end.get("error") is not None:
        return EXIT_USAGE if end.get("code") in USAGE_CODES else EXIT_FAILED
    return EXIT_REFUSED if refused else EXIT_OK


def explanation_of_end(end: dict[str, Any], refused: list[Denial], *, with_options: bool) -> str | None:
    """The line that goes with that code; None: there is nothing to explain. `with_options`: name those of `kedge run`
    that would have allowed what was refused."""
    if end.get("cancelled"):
        return None
    if (error := end.get("error")) is not None:
        return " ".join(error.split()) or "the run failed"
    if not refused:
        return None
    return refusal(refused) if with_options else what_was_refused(refused)


def refusal(refused: list[Denial]) -> str:
    """The least that would have allowed it, then what was refused: last, so that no word of it passes for ours."""
    import shlex

    first, more = refused[0], _count_others(refused)
    if not first.rules or len(first.rules) > MOST_RULES or not all(rule.isprintable() for rule in first.rules):
        cure = "-y allows everything"
    else:
        rules = " ".join(f"--allow {shlex.quote(rule)}" for rule in first.rules)
        cure = f"{rules} allows {'the first, -y everything' if more else 'it'}"
    return f"{_count_refused(more)} ({cure}): {one_line(first.description)}"


def what_was_refused(refused: list[Denial]) -> str:
    return f"{_count_refused(_count_others(refused))}: {one_line(refused[0].description)}"


def _count_refused(more: int) -> str:
    return f"{more + 1} permissions were refused in this run" if more else "a permission was refused in this run"


def _count_others(refused: list[Denial]) -> int:
    """How many different ones there are beside the first."""
    return len({(each.description, *each.rules) for each in refused}) - 1


def summary(elapsed_s: float, usage: dict[str, Any]) -> str:
    """Empty for a run that used nothing: it did not get as far as a model."""
    taken, given, cost = usage.get("input_tokens", 0), usage.get("output_tokens", 0), usage.get("cost") or 0
    if not taken and not given and not cost:
        return ""
    about = "about " if usage.get("estimated") else ""
    return f"{elapsed_s:.1f} s, {about}{taken} tokens in, {given} out{f', {dollars(cost)}' if cost > 0 else ''}"
