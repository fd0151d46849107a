"""`kedge cancel`: stop a run, or everything that a session has accepted."""

from __future__ import annotations

from kedge.cli.common import EXIT_OK, MAX_CANDIDATES, connect, find_run, run_command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_error
from kedge.client.sync_client import Client
from kedge.http.http1 import escape

HELP = """\
usage: kedge cancel [OPTION ...] [RUN | SESSION]

Cancel one run, or everything that a session has accepted, and wait for it to end. The start of an ID is enough if it is
unique. Without a name: the only busy session of this workspace.

  -q, --quiet             print nothing
"""
FLAGS = named("-q --quiet")
END_S = 10  # the end of a canceled run is written within 5 s (P6)


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values={}, action=_cancel)


def _cancel(options: Options) -> int:
    if len(options.words) > 1:
        raise UsageError("Name only one run or session")
    with connect(options, name="kedge cancel") as client:
        name = options.words[0] if options.words else _find_busy_session(client)
        cancelled = [] if name is None else _cancel_named(client, name)
        for run_id in cancelled:
            client.call("GET", f"/runs/{escape(run_id)}?wait={END_S}")
            if not options.has("quiet"):
                print(f"Canceled {run_id}")
    if not cancelled and not options.has("quiet"):
        print_error("Nothing to cancel: no run is open", EXIT_OK)
    return EXIT_OK


def _cancel_named(client: Client, name: str) -> list[str]:
    if (run := find_run(client, name)) is not None:
        return client.cancel(run_id=run["run_id"]) if run["state"] in ("queued", "running") else []
    matching = [each["id"] for each in client.sessions() if each["id"].startswith(name)]
    if len(matching) > 1 and name not in matching:
        raise UsageError(f"Several sessions start with {name!r}: {', '.join(matching[:MAX_CANDIDATES])}")
    if not matching:
        raise UsageError(f"No run or session {name!r} in this workspace ('kedge runs' lists them)")
    return client.cancel(session_id=name if name in matching else matching[0])


def _find_busy_session(client: Client) -> str | None:
    answers = [client.call("GET", f"/runs?state={state}") for state in ("queued", "running")]
    busy = sorted({run["session_id"] for answer in answers for run in answer["runs"]})
    if len(busy) > 1:
        raise UsageError(f"{len(busy)} sessions are busy ({', '.join(busy)}). Name one of them")
    return busy[0] if busy else None
