"""Shared by the commands: reading options, connecting to a server, and exit codes (section 5 of the contract)."""

from __future__ import annotations

import os
from collections.abc import Callable

from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_error
from kedge.client.errors import ClientError, NotAllowed, Refused, SpawnRefused
from kedge.client.reconnect import GIVE_UP_S
from kedge.protocol.address import AddressError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.reconnect import Waiter
    from kedge.client.sync_client import Client

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4
EXIT_CANCELLED = 130

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


def connect(options: Options, *, name: str, waiter: Waiter | None = None, give_up_s: float = GIVE_UP_S) -> Client:
    """Connect as the options say. `give_up_s` is the default of `--connect-timeout`."""
    from kedge.client.sync_client import Client  # not for `kedge serve`, which starts faster without

    return Client.connect(
        find_directory(options.get("cwd")),
        host=options.get("host"),
        data_dir=options.get("data-dir"),
        token_file=options.get("token-file"),
        name=name,
        waiter=waiter,
        give_up_s=options.seconds("connect-timeout") or give_up_s,
    )


def find_directory(cwd: str | None) -> str:
    """Return the absolute path of `--cwd` or the current directory. Raises `UsageError` if it does not exist."""
    try:
        directory = os.path.abspath(cwd or ".")
    except FileNotFoundError:
        raise UsageError("The current directory was removed. Change to another one, or use --cwd") from None
    if not os.path.isdir(directory):
        raise UsageError(f"No such directory: {cwd!r}. Check --cwd")
    return directory


def find_run(client: Client, run_id: str) -> dict[str, Any] | None:
    from kedge.http.http1 import escape

    try:
        return client.call("GET", f"/runs/{escape(run_id)}")
    except Refused as error:
        if error.code != "run_not_found":
            raise
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
