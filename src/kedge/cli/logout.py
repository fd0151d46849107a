"""`kedge logout`: let the server forget a key that was stored by a login."""

from __future__ import annotations

from kedge.cli.common import EXIT_OK, command, connect
from kedge.cli.login import check_name, listing
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import complain
from kedge.client.http1 import escape

HELP = """\
usage: kedge logout [OPTION ...] [PROVIDER]

Forgets the stored key of a provider. Without a name: the only one that is stored.

      --all               forget all of them
"""
FLAGS = named("--all")


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP, flags=FLAGS, values={}, go=_logout)


def _logout(options: Options) -> int:
    if len(options.words) > (0 if options.has("all") else 1):
        raise UsageError("name one provider, or give --all")
    for word in options.words:
        check_name(word)
    with connect(options, name="kedge logout") as client:
        stored = [each["provider_id"] for each in listing(client)["credentials"] if each["source"] == "login"]
        for provider_id in _chosen(stored, options):
            client.transport.call("DELETE", f"/v1/credentials/{escape(provider_id)}", policy=client.new_policy())
            print(f"{provider_id}: the stored key is forgotten")
        if not stored:
            complain("nothing to forget: no key is stored", EXIT_OK)
    return EXIT_OK


def _chosen(stored: list[str], options: Options) -> list[str]:
    if options.has("all") or (not options.words and len(stored) <= 1):
        return stored
    if not options.words:
        raise UsageError(f"{len(stored)} keys are stored ({', '.join(stored)}); name one, or give --all")
    if options.words[0] not in stored:
        listed = f"; stored are {', '.join(stored)}" if stored else ""
        raise UsageError(f"no key of {options.words[0]!r} is stored{listed}")
    return options.words
