"""`kedge cancel`: stop a run, or all that a session has accepted, from anywhere."""

from __future__ import annotations

from kedge.cli.common import EXIT_OK, command, connect
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import complain
from kedge.client.errors import Refused
from kedge.client.http1 import escape
from kedge.client.sync_client import Client

HELP = """\
usage: kedge cancel [OPTION ...] [RUN | SESSION]

Cancels one run, or everything that a session has accepted, and waits for the end. Without a name: the one session of
this workspace that is busy.

  -q, --quiet             do not say what was cancelled
"""
FLAGS = named("-q --quiet")
END_S = 10  # the end of a cancelled run is written within 5 s (P6)


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP, flags=FLAGS, values={}, go=_cancel)


def _cancel(options: Options) -> int:
    if len(options.words) > 1:
        raise UsageError("name one run or one session")
    with connect(options, name="kedge cancel") as client:
        name = options.words[0] if options.words else _busy_session(client)
        cancelled = [] if name is None else _cancel_named(client, name)
        for run_id in cancelled:
            client.call("GET", f"/runs/{escape(run_id)}?wait={END_S}")
            if not options.has("quiet"):
                print(f"cancelled {run_id}")
    if not cancelled and not options.has("quiet"):
        complain("nothing to cancel: no run is open there", EXIT_OK)
    return EXIT_OK


def _cancel_named(client: Client, name: str) -> list[str]:
    try:
        run = client.call("GET", f"/runs/{escape(name)}")
    except Refused as error:
        if error.code != "run_not_found":
            raise
    else:
        return client.cancel(run_id=name) if run["state"] in ("queued", "running") else []
    try:
        return client.cancel(session_id=name)
    except Refused as error:
        if error.code != "session_not_found":
            raise
        raise UsageError(
            f"there is no run and no session {name!r} in this workspace; 'kedge runs' lists them"
        ) from error


def _busy_session(client: Client) -> str | None:
    busy = sorted(
        {
            run["session_id"]
            for state in ("queued", "running")
            for run in client.call("GET", f"/runs?state={state}")["runs"]
        }
    )
    if len(busy) > 1:
        raise UsageError(f"{len(busy)} sessions are busy ({', '.join(busy)}); name one")
    return busy[0] if busy else None
