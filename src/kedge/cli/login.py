"""`kedge login`: hand a provider's key to the server, which checks and stores it. A key is never an argument, where the
shell's history and every list of processes would have it."""

from __future__ import annotations

import os
import re
import sys

from kedge.cli.common import EXIT_OK, command, connect
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import complain, print_json, print_table
from kedge.client.submission import caller_environment
from kedge.client.sync_client import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELP = """\
usage: kedge login [OPTION ...] [PROVIDER]

Asks for a provider's key, checks it with the provider, and stores it: in a file of yours alone, or in the system's
keyring (credentials.store). It is used from the next model call on. A key that is piped in is read from there.

      --key-stdin         wait for the key on standard input as long as it takes
      --no-check          store it without asking the provider
      --list              show where keys come from, each by its last four characters
      --json              as the server has it
"""
FLAGS = named("--key-stdin", "--no-check", "--list", "--json")
ANSWER_S = 120.0  # the provider is asked, and a keyring may ask a person
SILENT_S = 30.0  # for a pipe that nobody writes to
MAX_KEY_BYTES = 64 * 1024
NAME = re.compile("[a-z][a-z0-9_.-]{0,39}")


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP, flags=FLAGS, values={}, go=_login)


def _login(options: Options) -> int:
    if len(options.words) > (0 if options.has("list") else 1):
        raise UsageError("name one provider, and no key: it is asked for, or piped in")
    for word in options.words:
        check_name(word)
    with connect(options, name="kedge login") as client:
        found = listing(client)
        if options.has("list"):
            _show(found, options)
            return EXIT_OK
        provider = _provider(found, options.words[0] if options.words else _asked_provider(found))
        key = _key(provider["provider_id"], insists=options.has("key-stdin"))
        stored = _store(client, provider, key, options)
    if options.has("json"):
        print_json(stored)
    else:
        print(f"{stored['provider_id']}: the key{_end(stored)} is stored in the {stored['stored_in']}")
    if os.environ.get(provider["key_variable"], "").strip():
        complain(f"{provider['key_variable']} is set in this shell, and comes before what is stored", EXIT_OK)
    return EXIT_OK


def check_name(word: str) -> None:
    """What is no name may be a key: it is repeated nowhere."""
    if not NAME.fullmatch(word) or word.startswith(("sk-", "sk_")):
        raise UsageError("that is no name of a provider; if it is a key, change it: your shell remembers it now")


def listing(client: Client) -> dict[str, Any]:
    from kedge.protocol.environment import HEADER, encode_environment

    client.transport.timeout_s = ANSWER_S
    target = f"/v1/credentials?workspace_id={client.workspace['id']}"
    headers = {HEADER: encode_environment(os.environ)}  # what the configuration may refer to in this shell
    return client.transport.call("GET", target, policy=client.new_policy(), headers=headers)


def _provider(found: dict[str, Any], name: str) -> dict[str, Any]:
    for provider in found["providers"]:
        if provider["provider_id"] == name:
            return provider
    known = ", ".join(sorted(provider["provider_id"] for provider in found["providers"]))
    raise UsageError(f"there is no provider {name!r}; choose one of {known}")


def _asked_provider(found: dict[str, Any]) -> str:
    """By its number or its name."""
    if not os.isatty(0):
        raise UsageError("name the provider: kedge login PROVIDER")
    offered = [provider for provider in found["providers"] if provider["needs_key"]]
    for number, provider in enumerate(offered, 1):
        print(f"{number:3}  {provider['provider_id']:12} {provider['title']}", file=sys.stderr)
    print("Provider: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if answer.isdecimal() and 0 < int(answer[:6]) <= len(offered):
        return offered[int(answer) - 1]["provider_id"]
    if not answer:
        raise UsageError("no provider was named")
    check_name(answer)
    return answer


def _key(provider_id: str, *, insists: bool) -> str:
    key = _typed_key(provider_id) if os.isatty(0) else _piped_key(insists=insists)
    if not key:
        raise UsageError(f"no key was given; pipe it in, or type it: kedge login {provider_id}")
    return key


def _typed_key(provider_id: str) -> str:
    """Without showing it; where that is not possible, not at all."""
    import getpass
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(f"Key of {provider_id} (it is not shown): ").strip()
        except getpass.GetPassWarning:
            raise UsageError("this terminal would show the key; pipe it in") from None
        except EOFError:
            return ""


def _piped_key(*, insists: bool) -> str:
    from kedge.client.waiter import Waiter

    waiter, data = Waiter(), b""
    while len(data) <= MAX_KEY_BYTES:
        if not waiter.wait(0, SILENT_S) and not insists:
            raise UsageError(f"standard input is silent for {SILENT_S:.0f} s; pipe the key in, or give --key-stdin")
        piece = os.read(0, MAX_KEY_BYTES)
        if not piece:
            return data.decode("utf-8", "replace").strip()
        data += piece
    raise UsageError("what is piped in is no key: it is too long")


def _store(client: Client, provider: dict[str, Any], key: str, options: Options) -> dict[str, Any]:
    body = {
        "provider_id": provider["provider_id"],
        "api_key": key,
        "check": not options.has("no-check"),
        "env": caller_environment(),  # it is checked where runs from this shell go, and by their way
        "workspace_id": client.workspace["id"],
    }
    return client.transport.call("POST", "/v1/credentials", body, policy=client.new_policy())


def _show(found: dict[str, Any], options: Options) -> None:
    if options.has("json"):
        print_json(found)
    elif found["credentials"]:
        rows = [(each["provider_id"], _source(each), each["last_four"] or "-") for each in found["credentials"]]
        print_table([("PROVIDER", "KEY FROM", "ENDS IN"), *rows])


def _source(credential: dict[str, Any]) -> str:
    match credential["source"]:
        case "login":
            source = f"login ({credential['stored_in']})"
        case "environment":
            source = f"{credential['variable']} of the server"
        case "config":
            source = "api_key of the configuration"
        case _:
            source = "api_key_command"
    return source if credential["is_used"] else f"{source}, if the one above is refused"


def _end(stored: dict[str, Any]) -> str:
    return f" …{stored['last_four']}" if stored["last_four"] else ""
