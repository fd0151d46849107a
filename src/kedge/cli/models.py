"""`kedge models`: list the models that a run from this shell can use, and what the other providers need."""

from __future__ import annotations

import os

from kedge.cli.common import EXIT_OK, connect, run_command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_json, print_table
from kedge.protocol.text_safety import visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELP = """\
usage: kedge models [PROVIDER] [OPTION ...]

List available models: those with an API key in this shell or from a login, those of model servers on this machine, and
the built-in one; and what the other providers need. Keys in your shell are not sent: the server only learns which
variables are set. By default, runs use the model with the role "large"; "small" writes titles. Prices are in dollars
per million tokens.

  -a, --all               include models of providers that are not set up
  -n, --names             print only names, one per line
      --json              print JSON
"""
FLAGS = named("-a --all", "-n --names", "--json")
HEAD = ("MODEL", "ROLE", "CONTEXT", "OUTPUT", "$ IN", "$ OUT", "CAN")


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values={}, action=_list)


def _list(options: Options) -> int:
    if len(options.words) > 1:
        raise UsageError(f"Unexpected argument {options.words[1]!r}")
    with connect(options, name="kedge models") as client:
        listing = client.models(os.environ)
    provider_id = options.words[0] if options.words else None
    providers = listing["providers"]
    if provider_id is not None:
        listing["providers"] = [each for each in providers if each["id"] == provider_id]
        if not listing["providers"]:
            known = ", ".join(each["id"] for each in providers)
            raise UsageError(f"Unknown provider {provider_id!r} (choose one of {known})")
    providers = listing["providers"]
    shows_all = options.has("all") or provider_id is not None
    shown = [model for each in providers if each["usable"] or shows_all for model in each["models"]]
    if options.has("json"):
        print_json(listing)
    elif options.has("names"):
        for model in shown:
            print(visible_line(model["name"]))
    else:
        _print_models(shown, providers, listing)
    return EXIT_OK


def _print_models(models: list[dict[str, Any]], providers: list[dict[str, Any]], listing: dict[str, Any]) -> None:
    if models:
        print_table([HEAD, *map(_make_row, models)])
        print()
    for title, is_usable in (("available:", True), ("not set up:", False)):
        if rows := [(f"  {each['id']}", each["why"]) for each in providers if each["usable"] == is_usable]:
            print(title)
            print_table(rows)
    default, reason = listing["model"], listing["why"]
    print()
    print(visible_line(f"default model: {default} ({reason.removeprefix(f'{default}: ')})" if default else reason))


def _make_row(model: dict[str, Any]) -> tuple[str, ...]:
    abilities = [name for name in ("tools", "images", "reasoning") if model[name]]
    return (
        model["name"],
        "+".join(model["roles"]),
        _format_tokens(model["context_window"]),
        _format_tokens(model["max_output_tokens"]),
        _format_price(model["input_price"]),
        _format_price(model["output_price"]),
        " ".join(abilities) or "text only",
    )


def _format_tokens(count: int | None) -> str:
    if count is None:
        return "-"
    return f"{count / 1_000_000:.3g}M" if count >= 1_000_000 else f"{count / 1000:.0f}k"


def _format_price(price: float | None) -> str:
    return "-" if price is None else "free" if price == 0 else f"{price:g}"
