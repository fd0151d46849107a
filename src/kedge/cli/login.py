"""`kedge login`: send a provider's API key to the server, which checks and stores it.

The key is never an argument: the shell's history and the process list would show it.
"""

from __future__ import annotations

import os
import re
import sys

from kedge.cli.common import EXIT_OK, connect, run_command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_error, print_json, print_table
from kedge.client.environment import caller_environment
from kedge.client.sync_client import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELP = """\
usage: kedge login [OPTION ...] [PROVIDER]

Ask for a provider's API key, check it with the provider, and store it: in a file that only you can read, or in the
system's keyring (credentials.store). It is used from the next model call on. You can also pipe the key in.

      --key-stdin         wait for the key on standard input without a time limit
      --no-check          store the key without checking it
      --list              list the API keys in use: where each comes from, and its last four characters
      --json              print JSON
"""
FLAGS = named("--key-stdin", "--no-check", "--list", "--json")
ANSWER_S = 120.0  # the provider is asked, and a keyring may ask the user
SILENT_S = 30.0  # for a pipe that nothing is written to
MAX_KEY_BYTES = 64 * 1024
NAME = re.compile("[a-z][a-z0-9_.-]{0,39}")


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values={}, action=_login)


def _login(options: Options) -> int:
    if len(options.words) > (0 if options.has("list") else 1):
        raise UsageError("Name one provider, and no key: you are asked for it, or pipe it in")
    for word in options.words:
        check_provider_name(word)
    with connect(options, name="kedge login") as client:
        listing = read_credentials(client)
        if options.has("list"):
            _print_credentials(listing, options)
            return EXIT_OK
        provider = _find_provider(listing, options.words[0] if options.words else _ask_provider(listing))
        provider_id = provider["provider_id"]
        key = _ask_key(provider_id) if os.isatty(0) else _read_piped_key(insists=options.has("key-stdin"))
        if not key:
            raise UsageError(f"No API key was given. Type it (kedge login {provider_id}), or pipe it in")
        body = {
            "provider_id": provider_id,
            "api_key": key,
            "check": not options.has("no-check"),
            "env": caller_environment(),  # checked at the base URL and through the proxy of this shell's runs
            "workspace_id": client.workspace["id"],
        }
        stored = client.transport.call("POST", "/v1/credentials", body, policy=client.new_policy())
    if options.has("json"):
        print_json(stored)
    else:
        where = "the keyring" if stored["stored_in"] == "keyring" else "Kedge's own file"
        ending = f" …{stored['last_four']}" if stored["last_four"] else ""
        print(f"Stored the API key{ending} for {provider_id} in {where}.")
    if os.environ.get(provider["key_variable"], "").strip():
        print_error(f"{provider['key_variable']} is set in this shell and overrides the stored key", EXIT_OK)
    return EXIT_OK


def check_provider_name(word: str) -> None:
    """Raises `UsageError` for a word that is not a name. It may be a key, so it is not repeated."""
    if not NAME.fullmatch(word) or word.startswith(("sk-", "sk_")):
        raise UsageError("That is not a provider name. If it is an API key, revoke it: it is in your shell history now")


def read_credentials(client: Client) -> dict[str, Any]:
    from kedge.protocol.environment import HEADER, encode_environment

    client.transport.timeout_s = ANSWER_S
    target = f"/v1/credentials?workspace_id={client.workspace['id']}"
    headers = {HEADER: encode_environment(os.environ)}  # the configuration may refer to variables of this shell
    return client.transport.call("GET", target, policy=client.new_policy(), headers=headers)


def _find_provider(listing: dict[str, Any], name: str) -> dict[str, Any]:
    for provider in listing["providers"]:
        if provider["provider_id"] == name:
            return provider
    known = ", ".join(sorted(provider["provider_id"] for provider in listing["providers"]))
    raise UsageError(f"Unknown provider {name!r} (choose one of {known})")


def _ask_provider(listing: dict[str, Any]) -> str:
    """Ask for a provider, by its number or its name."""
    if not os.isatty(0):
        raise UsageError("Missing provider. Use kedge login PROVIDER")
    offered = [provider for provider in listing["providers"] if provider["needs_key"]]
    for number, provider in enumerate(offered, 1):
        print(f"{number:3}  {provider['provider_id']:12} {provider['title']}", file=sys.stderr)
    print("Provider: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if answer.isdecimal() and 0 < int(answer[:6]) <= len(offered):
        return offered[int(answer) - 1]["provider_id"]
    if not answer:
        raise UsageError("No provider was chosen")
    check_provider_name(answer)
    return answer


def _ask_key(provider_id: str) -> str:
    """Ask for the key without showing it. Raises `UsageError` if the terminal cannot hide it."""
    import getpass
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(f"API key for {provider_id} (not shown): ").strip()
        except getpass.GetPassWarning:
            raise UsageError("This terminal would show the key. Pipe it in") from None
        except EOFError:
            return ""


def _read_piped_key(*, insists: bool) -> str:
    from kedge.client.reconnect import Waiter

    waiter, data = Waiter(), b""
    while len(data) <= MAX_KEY_BYTES:
        if not waiter.wait(0, SILENT_S) and not insists:
            raise UsageError(
                f"Nothing came on standard input for {SILENT_S:.0f} s. Pipe the key in, or use --key-stdin"
            )
        piece = os.read(0, MAX_KEY_BYTES)
        if not piece:
            return data.decode("utf-8", "replace").strip()
        data += piece
    raise UsageError("Standard input is too long for an API key")


def _print_credentials(listing: dict[str, Any], options: Options) -> None:
    if options.has("json"):
        print_json(listing)
    elif listing["credentials"]:
        rows = [
            (each["provider_id"], _describe_source(each), each["last_four"] or "-") for each in listing["credentials"]
        ]
        print_table([("PROVIDER", "KEY FROM", "ENDS IN"), *rows])
    else:
        print_error("No API key is in use. Add one with 'kedge login PROVIDER'", EXIT_OK)


def _describe_source(credential: dict[str, Any]) -> str:
    match credential["source"]:
        case "login":
            source = f"login ({credential['stored_in']})"
        case "environment":
            source = f"{credential['variable']} (the server's environment)"
        case "config":
            source = "api_key in the configuration"
        case _:
            source = "api_key_command"
    return source if credential["is_used"] else f"{source}, used if the one above is rejected"
