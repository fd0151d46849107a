"""`kedge doctor`: what stands in the way of a run, each with the line that mends it. It starts no server."""

from __future__ import annotations

import sys

from kedge.cli.common import EXIT_FAILED, EXIT_OK, command, directory_of
from kedge.cli.options import Options, named
from kedge.client.server_location import find_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kedge.cli.doctor_checks import Finding

HELP = """\
usage: kedge doctor [OPTION ...]

Checks the set-up and says how to mend it: the data directory and its server, the configuration, the model and its key,
the programs and the sandbox of the tools, the terminal. Exits with 0 if nothing keeps a run from working, else with 1.

The provider of the model is asked whether it takes the key, for 10 s at most; the key is shown to nobody else.

      --offline           ask no provider
"""
FLAGS = named("--offline")


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP, flags=FLAGS, values={}, go=_examine)


def _examine(options: Options) -> int:
    code = EXIT_OK
    for is_fine, text in _findings(options):
        mark = {True: "ok  ", None: "note", False: "FAIL"}[is_fine]
        print(f"{mark}  {text}", flush=True)  # some take seconds
        if is_fine is False:
            code = EXIT_FAILED
    return code


def _findings(options: Options) -> Iterator[Finding]:
    # Here, because they need more than this command's options do: whoever asks for those may have nothing of it.
    from kedge.cli.doctor_checks import configuration, model, programs, sandbox, terminal
    from kedge.cli.doctor_server import place
    from kedge.protocol.address import AddressError
    from kedge.version import VERSION

    directory = directory_of(options.get("cwd"))
    yield True, f"kedge {VERSION}, Python {'.'.join(map(str, sys.version_info[:3]))}"
    try:
        endpoint = find_server(
            host=options.get("host"), data_dir=options.get("data-dir"), token_file=options.get("token-file")
        )
    except AddressError as error:
        yield False, str(error)
        return
    yield from place(endpoint)
    problems = list(configuration(directory))
    yield from problems
    if not any(is_fine is False for is_fine, _ in problems):
        yield from model(endpoint.data_dir, directory, is_offline=options.has("offline"))
        yield from sandbox(directory)
    yield from programs()
    yield from terminal()
