"""`kedge attach`: follow a run that somebody else began, from its first word to its end."""

from __future__ import annotations

from kedge.cli.common import command, connect
from kedge.cli.console import Console, Stopped, is_terminal, open_standard_streams
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import complain
from kedge.cli.run_printer import JsonPrinter, TextPrinter, exit_code_of_end, explanation_of_end
from kedge.client.errors import Refused
from kedge.client.http1 import escape
from kedge.client.run_follower import RunFollower, RunTracker
from kedge.client.sync_client import Client
from kedge.protocol.text_safety import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELP = """\
usage: kedge attach [OPTION ...] RUN

Follows a run to its end, wherever it was sent from. Leaving (Ctrl-C) does not stop it.

  -q, --quiet             only the answer and errors
      --stream            print what is said while it is said (--no-stream: only the answer, at its end)
      --json              print the events of the run, one a line; with --stream the text as it grows, too
"""
FLAGS = named("-q --quiet", "--stream", "--no-stream", "--json")


def run(argv: list[str]) -> int:
    open_standard_streams()
    return command(argv, usage=HELP, flags=FLAGS, values={}, go=_attach)


def _attach(options: Options) -> int:
    if len(options.words) != 1:
        raise UsageError("name one run; 'kedge runs' lists them")
    console = Console(has_spinner=is_terminal(2) and not options.has("quiet"), timeout_s=None)
    run_id = options.words[0]
    try:
        with connect(options, name="kedge attach", waiter=console) as client:
            follower = Attached(client, _run(client, run_id))
            _follow(options, console, follower)
    except Stopped as stop:
        console.hide()
        return complain(f"left; run {run_id} goes on", 128 + stop.signum)
    finally:
        console.hide()
    view = follower.tracker.view
    assert view.end is not None
    code = exit_code_of_end(view.end, view.requests.denied)
    line = explanation_of_end(view.end, view.requests.denied, with_options=False)
    return code if line is None else complain(one_line(line, 1000), code)


def _follow(options: Options, console: Console, follower: Attached) -> None:
    view = follower.tracker.view
    if options.has("json"):
        printer = JsonPrinter(console, with_deltas=options.has("stream"))
    else:
        is_live = options.has("stream") or (is_terminal(1) and not options.has("no-stream"))
        printer = TextPrinter(console, view, is_live=is_live, is_quiet=options.has("quiet"), shows_calls=is_terminal(2))
    follower.tracker.listen = printer.listen
    for _ in follower.steps():
        console.say(view.status)
        printer.print_new()
        console.flush()
    assert view.end is not None
    printer.finish(view.end)
    console.flush()


def _run(client: Client, run_id: str) -> dict[str, Any]:
    try:
        return client.call("GET", f"/runs/{escape(run_id)}")
    except Refused as error:
        if error.code != "run_not_found":
            raise
        raise UsageError(f"there is no run {run_id!r} in this workspace; 'kedge runs' lists them") from error


class Attached(RunFollower):
    """Follows a run that is there already."""

    def __init__(self, client: Client, run: dict[str, Any]) -> None:
        names = {"run_id": run["run_id"], "session_id": run["session_id"]}
        super().__init__(client.transport, RunTracker(client.path, names), client.new_policy())
        self._run = run

    def submit(self) -> None:
        self.tracker.accept(self._run)
