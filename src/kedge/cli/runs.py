"""`kedge runs`: list the runs of a workspace and their states."""

from __future__ import annotations

from kedge.cli.common import EXIT_OK, connect, run_command
from kedge.cli.options import Options, named
from kedge.cli.output import print_json, print_table
from kedge.client.run_view import format_time
from kedge.http.http1 import build_query
from kedge.protocol.text_safety import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELP = """\
usage: kedge runs [OPTION ...]

List the most recent runs of this workspace, the latest last.

  -n, --number N          how many (default: 20)
  -s, --session ID        only runs of this session
      --state STATE       only runs in this state: queued, running, completed, failed or cancelled
      --open              only runs that have not ended
      --json              print one JSON object per run
"""
FLAGS = named("--json", "--open")
VALUES = named("-n --number", "-s --session", "--state")
STATES = ("queued", "running", "completed", "failed", "cancelled")


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values=VALUES, action=_list)


def _list(options: Options) -> int:
    number = options.integer("number", most=1000) or 20
    state = options.choice("state", STATES)
    options.check_no_words()
    with connect(options, name="kedge runs") as client:
        states = ("queued", "running") if options.has("open") else (state,)
        targets = [f"/runs{build_query(session_id=options.get('session'), state=s, limit=number)}" for s in states]
        found = [run for target in targets for run in client.call("GET", target)["runs"]]
    runs = sorted(found, key=lambda run: run["seq"])[-number:]
    if options.has("json"):
        for each in runs:
            print_json(each)
    elif runs:
        rows = [(r["run_id"], _describe_state(r), r["session_id"], one_line(r["prompt"])) for r in runs]
        print_table([("RUN", "STATE", "SESSION", "PROMPT"), *rows])
    return EXIT_OK


def _describe_state(run: dict[str, Any]) -> str:
    if run["cancel_requested"] and run["state"] == "running":
        return "stopping"
    if (waiting := run.get("waiting")) is not None:
        return f"running, waiting until {format_time(waiting['until'])} ({waiting['reason']})"
    return run["state"]
