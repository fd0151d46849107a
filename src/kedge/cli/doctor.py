"""`kedge doctor`: check everything that a run needs, and say how to fix what is wrong. Starts no server."""

from __future__ import annotations

import sys

from kedge.cli.common import EXIT_FAILED, EXIT_OK, find_directory, run_command
from kedge.cli.options import Options, named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kedge.cli.doctor_checks import Finding

HELP = """\
usage: kedge doctor [OPTION ...]

Check your setup and suggest fixes: the data directory and its server, the configuration, the model and its API key, the
programs, the sandbox and the language servers that tools use, and the terminal. Exits with 0 if nothing keeps a run
from working, else 1.

The model's provider is asked whether it accepts the API key, for at most 10 s. The key is sent to nobody else.

      --offline           do not ask the provider
"""
FLAGS = named("--offline")


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values={}, action=_print_findings)


def _print_findings(options: Options) -> int:
    options.check_no_words()
    code = EXIT_OK
    for is_ok, text in _find_all(options):
        label = {True: "ok  ", None: "note", False: "FAIL"}[is_ok]
        print(f"{label}  {text}", flush=True)  # some checks take seconds
        if is_ok is False:
            code = EXIT_FAILED
    return code


def _find_all(options: Options) -> Iterator[Finding]:
    # Imported here: the completion script is built from this module where dependencies are not installed.
    from kedge.cli import doctor_checks as checks
    from kedge.client.environment import find_server
    from kedge.protocol.address import AddressError
    from kedge.version import VERSION

    directory = find_directory(options.get("cwd"))
    yield True, f"kedge {VERSION}, Python {'.'.join(map(str, sys.version_info[:3]))}"
    try:
        location = find_server(
            host=options.get("host"), data_dir=options.get("data-dir"), token_file=options.get("token-file")
        )
    except AddressError as error:
        yield False, str(error)
        return
    yield from checks.check_server(location)
    findings = list(checks.check_configuration(directory))
    yield from findings
    if not any(is_ok is False for is_ok, _ in findings):
        yield from checks.check_model(location.data_dir, directory, is_offline=options.has("offline"))
        yield from checks.check_sandbox(directory)
        yield from checks.check_skills(directory)
        yield from checks.check_language_servers(directory)
    yield from checks.check_programs()
    yield from checks.check_terminal()
