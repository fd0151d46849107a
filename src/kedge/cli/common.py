"""Shared by the commands: reading options, connecting to a server, and exit codes (section 5 of the contract)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import note_line, print_error
from kedge.client.errors import ClientError, NotAllowed, Refused, SpawnRefused
from kedge.client.reconnect import GIVE_UP_S
from kedge.protocol.address import AddressError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from threading import Timer
    from typing import Any

    from kedge.client.reconnect import Waiter
    from kedge.client.sync_client import Client

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4
EXIT_CANCELLED = 130

MAX_ID_CHARS = 128
MAX_CANDIDATES = 5  # runs that an ambiguous ID is said to mean
RECENT_RUNS, MAX_RUNS = 20, 1000  # to read for the newest one: those of sub-agents may come before it
HINT_AFTER_S = 0.7  # without an answer of a server that was named
MIN_HINTED_S = 3.0  # of patience: a shorter one needs no hint

HELP_FLAG = named("-h --help")
CONNECT_VALUES = named("-c --cwd", "--host", "--token-file", "--data-dir", "--connect-timeout")
CONNECT_HELP = """\
  -c, --cwd DIR           workspace directory (default: the current directory)
      --host ADDRESS      unix:///path/to.sock or tcp://127.0.0.1:PORT (KEDGE_HOST)
      --token-file FILE   file with the server's token, for TCP (KEDGE_TOKEN)
      --data-dir DIR      data directory of the server to use (KEDGE_DATA_DIR)
      --connect-timeout S give up if the server cannot be reached for S seconds (default: 60)
  -h, --help              show this help
"""


def run_command(
    argv: list[str],
    *,
    help_text: str,
    flags: dict[str, str],
    values: dict[str, str],
    action: Callable[[Options], int],
    connects: bool = True,
) -> int:
    """Parse the options, handle `--help`, run `action`, and print errors as one line. Returns the exit code.

    `connects`: the command also takes the options for connecting to a server.
    """
    if connects:
        help_text, values = help_text + CONNECT_HELP, {**values, **CONNECT_VALUES}
    try:
        options = Options(argv, flags={**flags, **HELP_FLAG}, values=values)
        if options.has("help"):
            print(help_text, end="")
            return EXIT_OK
        options.seconds("connect-timeout")
        return action(options)
    except UsageError as error:
        name = " ".join(word for word in help_text.split()[1:3] if word[0] not in "[-")
        return print_usage_error(error, name)
    except (AddressError, ClientError) as error:
        return print_error(str(error), exit_code_of(error))


def print_usage_error(error: UsageError, command: str) -> int:
    return print_error(f"{str(error).rstrip('.')}. See '{command} --help'.", EXIT_USAGE)


def connect(
    options: Options,
    *,
    name: str,
    waiter: Waiter | None = None,
    give_up_s: float = GIVE_UP_S,
    write_error: Callable[[str], None] | None = None,
) -> Client:
    """Connect as the options say. `give_up_s` is the default of `--connect-timeout`.

    A named server that does not answer soon is reported with `write_error` (default: on standard error): nothing else
    would be seen until the time is up.
    """
    from kedge.client.sync_client import Client  # not for `kedge serve`, which starts faster without

    host, limit_s = options.get("host"), options.seconds("connect-timeout") or give_up_s
    hint = _start_hint(host or os.environ.get("KEDGE_HOST"), limit_s, write_error or _write_error)
    try:
        return Client.connect(
            find_directory(options.get("cwd")),
            host=host,
            data_dir=options.get("data-dir"),
            token_file=options.get("token-file"),
            name=name,
            waiter=waiter,
            give_up_s=limit_s,
        )
    finally:
        if hint is not None:
            hint.cancel()


def _start_hint(host: str | None, limit_s: float, write_error: Callable[[str], None]) -> Timer | None:
    """Start a timer that says that a named server cannot be reached yet. A server of our own is started instead."""
    if not host or limit_s < MIN_HINTED_S:
        return None
    from threading import Timer

    line = note_line(f"Cannot reach {host} yet; trying for {limit_s:g} s (Ctrl-C stops)")
    hint = Timer(HINT_AFTER_S, write_error, [f"{line}\n"])
    hint.daemon = True
    hint.start()
    return hint


def _write_error(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def find_directory(cwd: str | None) -> str:
    """Return the absolute path of `--cwd` or the current directory. Raises `UsageError` if it does not exist."""
    try:
        directory = os.path.abspath(cwd or ".")
    except FileNotFoundError:
        raise UsageError("The current directory was removed. Change to another one, or use --cwd") from None
    if not os.path.isdir(directory):
        raise UsageError(f"No such directory: {cwd!r}. Check --cwd")
    return directory


def get_run(client: Client, run_id: str) -> dict[str, Any] | None:
    """Return the run with exactly this ID, or None."""
    from kedge.http.http1 import escape

    try:
        return client.call("GET", f"/runs/{escape(run_id)}")
    except Refused as error:
        if error.code != "run_not_found":
            raise
        return None


def find_run(client: Client, text: str) -> dict[str, Any] | None:
    """Return the run with this ID, or the only one whose ID starts like that. Raises `UsageError` if there are more."""
    from kedge.http.http1 import build_query

    if not 0 < len(text) <= MAX_ID_CHARS:
        return None
    if (run := get_run(client, text)) is not None:
        return run
    matching = client.call("GET", f"/runs{build_query(prefix=text, limit=MAX_CANDIDATES + 1)}")["runs"]
    if len(matching) > 1:
        raise UsageError(_describe_ambiguity(text, matching))
    return matching[0] if matching else None


def require_run(client: Client, text: str) -> dict[str, Any]:
    """Return the run that `find_run` finds. Raises `UsageError` if there is none."""
    if (run := find_run(client, text)) is None:
        raise UsageError(f"No run {text!r} in this workspace ('kedge runs' lists them)")
    return run


def _describe_ambiguity(text: str, matching: list[dict[str, Any]]) -> str:
    """Name the runs that an ID may mean, the newest first."""
    from kedge.protocol.text_safety import one_line

    shown = [f"{run['run_id']} ({one_line(run['prompt'], 40)})" for run in matching[::-1][:MAX_CANDIDATES]]
    more = ", …" if len(matching) > MAX_CANDIDATES else ""
    return f"Several runs start with {text!r}: {', '.join(shown)}{more}. Give more of the ID"


def latest_run(client: Client) -> dict[str, Any] | None:
    """Return the newest run of the workspace that is not a sub-agent's."""
    for limit in (RECENT_RUNS, MAX_RUNS):
        for run in reversed(client.call("GET", f"/runs?limit={limit}")["runs"]):
            if not run.get("parent_run_id"):
                return run
    return None


def exit_code_of(error: Exception) -> int:
    match error:
        case NotAllowed() | AddressError() | UsageError() | SpawnRefused():
            return EXIT_USAGE
        case Refused() if error.code in ("session_busy", "files_conflict") or error.status == 429:
            return EXIT_REFUSED
        case Refused(status=503):
            return EXIT_UNREACHABLE  # nothing was accepted; trying again later is safe
        case Refused():
            return EXIT_USAGE if 400 <= error.status < 500 else EXIT_FAILED
        case _:
            return EXIT_UNREACHABLE
