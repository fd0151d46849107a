"""`kedge runs`: what was asked in this workspace, and how it went."""

from __future__ import annotations

from kedge.cli.common import EXIT_OK, command, connect
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_json, print_table
from kedge.client.http1 import build_query
from kedge.protocol.text_safety import one_line

HELP = """\
usage: kedge runs [OPTION ...]

Lists the newest runs of this workspace, the last one last.

  -n, --number N          how many (20)
  -s, --session ID        of this session alone
      --state STATE       queued, running, completed, failed or cancelled
      --open              only those that have not ended
      --json              one run a line, as the server has it
"""
FLAGS = named("--json", "--open")
VALUES = named("-n --number", "-s --session", "--state")
STATES = ("queued", "running", "completed", "failed", "cancelled")


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP, flags=FLAGS, values=VALUES, go=_list)


def _list(options: Options) -> int:
    number = options.whole("number", most=1000) or 20
    state = options.choice("state", STATES)
    if options.words:
        raise UsageError(f"unexpected {options.words[0]!r}")
    with connect(options, name="kedge runs") as client:
        states = ("queued", "running") if options.has("open") else (state,)
        targets = [
            f"/runs{build_query(session_id=options.get('session'), state=each, limit=number)}" for each in states
        ]
        found = [run for target in targets for run in client.call("GET", target)["runs"]]
    runs = sorted(found, key=lambda run: run["seq"])[-number:]
    if options.has("json"):
        for each in runs:
            print_json(each)
    elif runs:
        rows = [
            (r["run_id"], _state(r["state"], r["cancel_requested"]), r["session_id"], one_line(r["prompt"]))
            for r in runs
        ]
        print_table([("RUN", "STATE", "SESSION", "PROMPT"), *rows])
    return EXIT_OK


def _state(state: str, is_cancelling: bool) -> str:
    return "cancelling" if is_cancelling and state == "running" else state
