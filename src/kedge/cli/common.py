"""What the commands of the client share: how they connect, and what their exit codes mean (section 5)."""

from __future__ import annotations

import os
from collections.abc import Callable

from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import complain
from kedge.client.errors import ClientError, NotAllowed, Refused, SpawnRefused
from kedge.client.reconnect import GIVE_UP_S
from kedge.client.sync_client import Client
from kedge.protocol.address import AddressError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kedge.client.waiter import Waiter

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4
EXIT_CANCELLED = 130

CONNECT_VALUES = named("-c --cwd", "--host", "--token-file", "--data-dir", "--connect-timeout")
CONNECT_HELP = """\
  -c, --cwd DIR           the workspace's directory (the current one)
      --host ADDRESS      unix:///path/to.sock or tcp://127.0.0.1:PORT (KEDGE_HOST)
      --token-file FILE   the token for TCP (KEDGE_TOKEN)
      --data-dir DIR      whose server, if no host is named (KEDGE_DATA_DIR)
      --connect-timeout S give up when the server cannot be reached for that long (60)
  -h, --help              show this
"""


def command(
    argv: list[str],
    *,
    usage: str,
    flags: dict[str, str],
    values: dict[str, str],
    go: Callable[[Options], int],
    connects: bool = True,
) -> int:
    """Read the options, answer `--help`, do it, and make one line of whatever goes wrong.

    One that `connects` to a server has the options for that, too.
    """
    more, help_of_more = (CONNECT_VALUES, CONNECT_HELP) if connects else ({}, "")
    try:
        options = Options(argv, flags={**flags, **named("-h --help")}, values={**values, **more})
        if options.has("help"):
            print(usage + help_of_more, end="")
            return EXIT_OK
        options.seconds("connect-timeout")
        return go(options)
    except UsageError as error:
        name = " ".join(word for word in usage.split()[1:3] if word[0] not in "[-")
        return complain(f"{error}; '{name} --help' explains", EXIT_USAGE)
    except (AddressError, ClientError) as error:
        return complain(str(error), exit_code_of(error))


def connect(options: Options, *, name: str, waiter: Waiter | None = None, give_up_s: float = GIVE_UP_S) -> Client:
    """`give_up_s`: for those who say nothing of it."""
    return Client.connect(
        directory_of(options.get("cwd")),
        host=options.get("host"),
        data_dir=options.get("data-dir"),
        token_file=options.get("token-file"),
        name=name,
        waiter=waiter,
        give_up_s=options.seconds("connect-timeout") or give_up_s,
    )


def directory_of(given: str | None) -> str:
    try:
        directory = os.path.abspath(given or ".")
    except FileNotFoundError:
        raise UsageError("the current directory was removed; go to another one, or name one with --cwd") from None
    if not os.path.isdir(directory):
        raise UsageError(f"there is no directory {given!r}; check --cwd")
    return directory


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
