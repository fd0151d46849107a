"""How `kedge run` and `kedge attach` print a run: as text, live or at its end, or as JSON events; and its last line."""

from __future__ import annotations

import json
import os

from kedge.cli.common import EXIT_CANCELLED, EXIT_FAILED, EXIT_OK, EXIT_REFUSED, EXIT_USAGE
from kedge.cli.console import Console
from kedge.cli.options import Options
from kedge.cli.output import note_line
from kedge.client.run_output import Activity, FinalOutput, LiveOutput
from kedge.client.run_view import RunView
from kedge.protocol.text_safety import dollars, json_for_terminal, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    from kedge.cli.terminal_markdown import TerminalMarkdown
    from kedge.client.events import Event
    from kedge.client.message_assembly import Growth
    from kedge.client.run_output import Piece, RunOutput
    from kedge.client.run_view import Denial

    class Printer(Protocol):
        def take_event(self, event: Event, data: bytes, grown: list[Growth]) -> None: ...
        def print_new(self) -> None: ...
        def finish(self, end: dict[str, Any]) -> None: ...


MAX_RULES = 5  # in the suggestion
MAX_RULE_CHARS = 200
MAX_DESCRIPTIONS = 3  # of denied actions
USAGE_CODES = ("no_model", "bad_config", "max_cost_required")  # codes of failed runs that only the user can fix


def make_printer(options: Options, console: Console, view: RunView) -> Printer:
    """The printer for `--json`, `--stream`, `--no-stream` and `--quiet`."""
    if options.has("json"):
        return JsonPrinter(console, with_deltas=options.has("stream"))
    is_live = options.has("stream") or (os.isatty(1) and not options.has("no-stream"))
    return TextPrinter(
        console,
        view,
        is_live=is_live,
        is_quiet=options.has("quiet"),
        shows_calls=os.isatty(2),
        renders=not options.has("raw") and can_render(),
    )


def can_render() -> bool:
    """Whether standard output is a terminal that shows styles."""
    return os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") not in ("", "dumb")


class TextPrinter:
    """`shows_calls`: whether to print one line for each tool call; `renders`: whether to draw Markdown."""

    def __init__(
        self, console: Console, view: RunView, *, is_live: bool, is_quiet: bool, shows_calls: bool, renders: bool
    ) -> None:
        self._console = console
        self._renders = renders
        self._markdown: TerminalMarkdown | None = None
        self._activity = None if is_quiet else Activity(view.run_id)
        self._shows_calls = shows_calls
        self._output: RunOutput = LiveOutput(view.messages) if is_live else FinalOutput(view.messages)
        self._is_quiet = is_quiet

    def take_event(self, event: Event, data: bytes, grown: list[Growth]) -> None:
        if self._activity is None:
            return
        for kind, text in self._activity.take(event):
            if kind == "call" and not self._shows_calls:
                continue
            self.print_new()  # text that was written before this event
            self._console.flush()
            line = one_line(text)
            self._console.write_error(f"{line}\n" if kind == "call" else f"{note_line(line)}\n")

    def print_new(self) -> None:
        self._print(self._output.new_pieces())

    def finish(self, end: dict[str, Any]) -> None:
        self._print(self._output.finish(end))
        if self._markdown is not None:
            self._console.write_bytes(self._markdown.finish().encode("utf-8", "replace"))

    def _print(self, pieces: Iterable[Piece]) -> None:
        for kind, text in pieces:
            if kind in ("answer", "break"):
                self._write(text, is_answer=kind == "answer")
            elif kind == "note":
                self._console.flush()
                self._console.write_error(f"{note_line(text)}\n")
            elif not self._is_quiet:
                self._console.write_error(text)

    def _write(self, text: str, *, is_answer: bool) -> None:
        if not self._renders:
            self._console.write(text)
            return
        if self._markdown is None:
            from kedge.cli.terminal_markdown import TerminalMarkdown  # by now the run has begun

            self._markdown = TerminalMarkdown()
        drawn = self._markdown.feed(text) if is_answer else self._markdown.finish() + text
        if drawn:
            self._console.write_bytes(drawn.encode("utf-8", "replace"))


class JsonPrinter:
    """The run's envelopes as they came. Deltas continue where the last one ended, also after a reconnect."""

    def __init__(self, console: Console, *, with_deltas: bool) -> None:
        self._console = console
        self._with_deltas = with_deltas
        self._has_ended = False
        self._is_on_terminal = os.isatty(1)

    def take_event(self, event: Event, data: bytes, grown: list[Growth]) -> None:
        if event.get("seq") is not None:
            self._print_line(data if b"\n" not in data else json.dumps(event).encode())
            self._has_ended = event["type"] == "run_complete"
        elif self._with_deltas:
            for growth in grown:
                self._print_line(json.dumps(_make_delta(event, growth), ensure_ascii=False).encode())

    def print_new(self) -> None:
        pass

    def finish(self, end: dict[str, Any]) -> None:
        if not self._has_ended:
            event = {"type": "run_complete", "payload": {"type": "created", "payload": end}}
            self._print_line(json.dumps(event, ensure_ascii=False).encode())

    def _print_line(self, data: bytes) -> None:
        if self._is_on_terminal:
            data = json_for_terminal(data.decode("utf-8", "replace")).encode()
        self._console.write_bytes(data + b"\n")


def _make_delta(event: Event, growth: Growth) -> Event:
    """A delta event for new text, also when it came in a snapshot."""
    payload = event["payload"]["payload"]
    part, kind, offset, text = growth
    delta = {
        "message_id": payload["message_id"] if event["type"] == "message_delta" else payload["id"],
        "session_id": payload["session_id"],
        "run_id": payload["run_id"],
        "part": part,
        "kind": kind,
        "offset": offset,
        "text": text,
    }
    return {"type": "message_delta", "payload": {"type": "created", "payload": delta}}


def exit_code_of_end(end: dict[str, Any], denied: list[Denial]) -> int:
    """The exit code for a run's end (section 5 of the contract)."""
    if end.get("cancelled"):
        return EXIT_CANCELLED
    if end.get("error") is not None:
        return EXIT_USAGE if end.get("code") in USAGE_CODES else EXIT_FAILED
    return EXIT_REFUSED if denied else EXIT_OK


def explain_end(end: dict[str, Any], denied: list[Denial], *, command: str = "") -> str | None:
    """The line that explains a bad end; None for a good one. `command`: what takes the suggested options, if not this.

    Descriptions of actions come last, because they are foreign text.
    """
    if end.get("cancelled"):
        return None
    if (error := end.get("error")) is not None:
        return " ".join(error.split()) or "the run failed"
    if not denied:
        return None
    unique = list({(each.description, *each.rules): each for each in denied}.values())
    shown = [one_line(each.description) for each in unique[:MAX_DESCRIPTIONS]]
    if len(unique) > MAX_DESCRIPTIONS:
        shown.append(f"and {len(unique) - MAX_DESCRIPTIONS} more")
    suggestion = _suggest_options(unique, command)
    if len(unique) > 1:
        return f"{len(unique)} actions were denied{suggestion}. They were: {'; '.join(shown)}"
    return f"An action was denied{suggestion}. It was: {shown[0]}"


def _suggest_options(denied: list[Denial], command: str) -> str:
    """The options that would have allowed the actions: the narrow rules that came with the denials, never `-y`."""
    options: dict[str, None] = {}
    count = 0
    for denial in denied:
        found = [_option_for(rule) for rule in denial.rules]
        new = [option for option in found if option and option not in options]
        if denial.by_user or not found or None in found or len(options) + len(new) > MAX_RULES:
            continue
        count += 1
        options |= dict.fromkeys(new)
    them = "it" if len(denied) == 1 else "them"
    if options:
        return f"; allow {them if count == len(denied) else f'{count} of them'} with {command}{' '.join(options)}"
    if any(each.no_sandbox for each in denied):
        return "; the configured sandbox is unavailable ('kedge doctor' says why)"
    return "" if all(each.by_user for each in denied) else f"; Kedge suggests no rule for {them}"


def _option_for(rule: str) -> str | None:
    """Return the option that allows a rule, quoted for a shell; None if the rule cannot be printed or is too long."""
    import shlex

    if rule == "edit(**)":  # the mode leaves out files that other programs obey; the rule would not
        return "--mode auto-edit"
    return f"--allow {shlex.quote(rule)}" if rule.isprintable() and len(rule) <= MAX_RULE_CHARS else None


def summarize_usage(elapsed_s: float, usage: dict[str, Any]) -> str:
    """Time, tokens and cost of a run; empty if it used nothing."""
    cached = usage.get("cache_read_tokens", 0)
    tokens_in = usage.get("input_tokens", 0) + cached + usage.get("cache_write_tokens", 0)
    tokens_out, cost = usage.get("output_tokens", 0), usage.get("cost") or 0
    if not tokens_in and not tokens_out and not cost:
        return ""
    about = "about " if usage.get("estimated") else ""
    of_these = f" ({cached} cached)" if cached else ""
    price = f", {dollars(cost)}" if cost > 0 else ""
    return f"{elapsed_s:.1f} s, {about}{tokens_in} tokens in{of_these}, {tokens_out} out{price}"
