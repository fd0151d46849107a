"""`kedge logout`: remove an API key that was stored by `kedge login`."""

from __future__ import annotations

from kedge.cli.common import EXIT_OK, connect, run_command
from kedge.cli.login import check_provider_name, read_credentials
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_error
from kedge.http.http1 import escape

HELP = """\
usage: kedge logout [OPTION ...] [PROVIDER]

Remove the stored API key of a provider. Without a name: the only stored one.

      --all               remove all stored keys
"""
FLAGS = named("--all")


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values={}, action=_logout)


def _logout(options: Options) -> int:
    if len(options.words) > (0 if options.has("all") else 1):
        raise UsageError("Name one provider, or use --all")
    for word in options.words:
        check_provider_name(word)
    with connect(options, name="kedge logout") as client:
        stored = [each["provider_id"] for each in read_credentials(client)["credentials"] if each["source"] == "login"]
        for provider_id in _choose(stored, options):
            client.transport.call("DELETE", f"/v1/credentials/{escape(provider_id)}", policy=client.new_policy())
            print(f"Removed the stored API key for {provider_id}.")
        if not stored:
            print_error("Nothing to remove: no API key is stored", EXIT_OK)
    return EXIT_OK


def _choose(stored: list[str], options: Options) -> list[str]:
    if options.has("all") or (not options.words and len(stored) <= 1):
        return stored
    if not options.words:
        raise UsageError(f"{len(stored)} keys are stored ({', '.join(stored)}). Name one, or use --all")
    if options.words[0] not in stored:
        listed = f" (stored: {', '.join(stored)})" if stored else ""
        raise UsageError(f"No API key is stored for {options.words[0]!r}{listed}")
    return options.words
