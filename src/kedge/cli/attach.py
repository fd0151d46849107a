"""`kedge attach`: follow a run that was started elsewhere, from its beginning to its end."""

from __future__ import annotations

import os
import sys

from kedge.cli.common import connect, latest_run, require_run, run_command
from kedge.cli.console import Console, Stopped, open_standard_streams
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import note_line, print_error
from kedge.cli.run_printer import exit_code_of_end, explain_end, make_printer
from kedge.client.run_follower import RunFollower, RunTracker
from kedge.client.sync_client import Client
from kedge.protocol.text_safety import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELP = """\
usage: kedge attach [OPTION ...] [RUN]

Follow a run to its end, wherever it was started: the newest one of this directory, or the one with this ID, of which
the start is enough if it is unique. Detaching (Ctrl-C) does not stop it.

  -q, --quiet             print only the answer and errors
      --stream            print text as it is written (--no-stream: only the answer, at the end)
      --raw               on a terminal: print the answer as the model wrote it, without rendering Markdown
      --json              print the events of the run, one per line; with --stream, also the text as it grows
"""
FLAGS = named("-q --quiet", "--stream", "--no-stream", "--raw", "--json")


def run(argv: list[str]) -> int:
    open_standard_streams()
    return run_command(argv, help_text=HELP, flags=FLAGS, values={}, action=_attach)


def _attach(options: Options) -> int:
    if len(options.words) > 1:
        raise UsageError("Name one run ('kedge runs' lists them)")
    console = Console(has_spinner=os.isatty(2) and not options.has("quiet"), timeout_s=None)
    run_id = options.words[0] if options.words else ""
    try:
        with connect(options, name="kedge attach", waiter=console, write_error=console.write_error) as client:
            run = _choose_run(client, options.words)
            run_id = run["run_id"]
            if not options.has("quiet") and (title := _make_title(run, is_named=bool(options.words))):
                console.write_error(f"{note_line(title)}\n")
            follower = AttachedFollower(client, run)
            view = follower.tracker.view
            printer = make_printer(options, console, view)
            follower.tracker.listen = printer.take_event
            for _ in follower.steps():
                console.show_status(view.status)
                printer.print_new()
                console.flush()
            assert view.end is not None
            printer.finish(view.end)
            console.flush()
    except Stopped as stop:
        console.hide_spinner()
        return print_error(f"Detached. Run {run_id} continues." if run_id else "Stopped.", 128 + stop.signum)
    finally:
        console.hide_spinner()
    code = exit_code_of_end(view.end, view.requests.denied)
    if (line := explain_end(view.end, view.requests.denied, command="kedge run ")) is not None:
        print(note_line(one_line(line, 2000)), file=sys.stderr)
    return code


def _make_title(run: dict[str, Any], *, is_named: bool) -> str:
    """Return what is told of a run before its answer: its prompt, unless it was named, and the mode chosen for it."""
    mode = f"mode {run['mode']}" if run.get("mode") else ""
    if is_named:
        return mode and f"Run {run['run_id']}: {mode}"
    return f"Run {run['run_id']}{mode and f' ({mode})'}: {one_line(run['prompt'], 100)}"


def _choose_run(client: Client, words: list[str]) -> dict[str, Any]:
    if words:
        return require_run(client, words[0])
    if (run := latest_run(client)) is None:
        raise UsageError("No runs in this workspace yet. Start one with 'kedge run PROMPT'")
    return run


class AttachedFollower(RunFollower):
    """Follows a run that was submitted before."""

    def __init__(self, client: Client, run: dict[str, Any]) -> None:
        ids = {"run_id": run["run_id"], "session_id": run["session_id"]}
        super().__init__(client.transport, RunTracker(client.path, ids), client.new_policy())
        self._run = run

    def submit(self) -> None:
        self.tracker.accept(self._run)
