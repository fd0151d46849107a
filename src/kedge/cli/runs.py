"""`kedge runs`: list the runs of a workspace with their states, times and costs, or show one."""

from __future__ import annotations

import time

from kedge.cli.common import EXIT_OK, connect, require_run, run_command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import describe_cost, format_duration, print_error, print_json, print_table
from kedge.client.run_view import format_time
from kedge.http.http1 import build_query
from kedge.protocol.text_safety import one_line, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.sync_client import Client

HELP = """\
usage: kedge runs [list] [OPTION ...] | show RUN

List the most recent runs of this workspace, the newest first, or show one: its state, times, tokens, cost, prompt and
error. The start of an ID is enough if it is unique.

  -n, --number N          how many (default: 20)
  -s, --session ID        only runs of this session
      --state STATE       only runs in this state: queued, running, completed, failed or cancelled
      --open              only runs that have not ended
      --json              print one JSON object per run
"""
FLAGS = named("--json", "--open")
VALUES = named("-n --number", "-s --session", "--state")
STATES = ("queued", "running", "completed", "failed", "cancelled")
HEAD = ("RUN", "STATE", "STARTED", "TIME", "COST", "SESSION", "PROMPT")


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values=VALUES, action=_dispatch)


def _dispatch(options: Options) -> int:
    action, words = options.subcommand(ACTIONS, otherwise="list")
    options.integer("number", most=1000)
    options.choice("state", STATES)
    with connect(options, name="kedge runs") as client:
        action(client, words, options)
    return EXIT_OK


def _list(client: Client, words: list[str], options: Options) -> None:
    if words:
        raise UsageError(f"Unexpected argument {words[0]!r}")
    number = options.integer("number", most=1000) or 20
    session_id = _find_session_id(client, options.get("session"))
    states = ("queued", "running") if options.has("open") else (options.get("state"),)
    targets = [f"/runs{build_query(session_id=session_id, state=state, limit=number)}" for state in states]
    found = [run for target in targets for run in client.call("GET", target)["runs"]]
    runs = sorted(found, key=lambda run: run["seq"], reverse=True)[:number]
    if options.has("json"):
        for each in runs:
            print_json(each)
    elif runs:
        print_table([HEAD, *map(_make_row, runs)])
    elif options.has("session") or options.has("state") or options.has("open"):
        print_error("No such runs in this workspace", EXIT_OK)
    else:
        print_error("No runs in this workspace yet. Start one with 'kedge run PROMPT'", EXIT_OK)


def _find_session_id(client: Client, text: str | None) -> str | None:
    if text is None:
        return None
    from kedge.cli.session import find_session

    return find_session(client, [text])["id"]


def _make_row(run: dict[str, Any]) -> tuple[str, ...]:
    return (
        run["run_id"],
        _describe_state(run),
        _describe_start(run),
        _describe_duration(run),
        describe_cost(run["usage"]),
        run["session_id"],
        one_line(run["prompt"]),
    )


def _show(client: Client, words: list[str], options: Options) -> None:
    if len(words) != 1:
        raise UsageError("Name one run ('kedge runs' lists them)")
    run = require_run(client, words[0])
    if options.has("json"):
        print_json(run)
        return
    usage = run["usage"]
    rows = [
        ("Run", run["run_id"]),
        ("Session", run["session_id"]),
        ("State", _describe_state(run)),
        ("Started", _describe_start(run)),
        ("Time", _describe_duration(run)),
        ("Model", run["model"] or ""),
        ("Mode", run.get("mode") or ""),
        ("Tokens", f"{usage['input_tokens']:,} in, {usage['output_tokens']:,} out"),
        ("Cost", describe_cost(usage)),
        ("Error", run.get("error") or ""),
    ]
    print_table([row for row in rows if row[1] not in ("", "-")])
    print(f"\n{visible(run['prompt'])}")


def _describe_state(run: dict[str, Any]) -> str:
    if run["cancel_requested"] and run["state"] == "running":
        return "stopping"
    if (waiting := run.get("waiting")) is not None:
        return f"running, waiting until {format_time(waiting['until'])} ({waiting['reason']})"
    return run["state"]


def _describe_start(run: dict[str, Any]) -> str:
    at = run.get("started_at") or run.get("created_at")
    return "-" if at is None else format_time(at)


def _describe_duration(run: dict[str, Any]) -> str:
    """The time that it has worked so far, or in all."""
    if (start := run.get("started_at")) is None:
        return "-"
    return format_duration(max((run.get("ended_at") or time.time()) - start, 0.0))


ACTIONS = {"list": _list, "show": _show}
