"""`kedge models`: which models a run from this shell could use, what they can do and cost, and for the rest why not."""

from __future__ import annotations

import os

from kedge.cli.common import EXIT_OK, command, connect
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_json, print_table
from kedge.protocol.text_safety import visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELP = """\
usage: kedge models [PROVIDER] [OPTION ...]

Lists the models that can be used now, by the keys that this shell or a login has, on this machine, or inside; and for
the other providers what to do. Your keys stay in the shell: the server hears only which variables are set. Where nobody
names a model, the one whose role is large answers, and the small one writes titles. Prices are of a million tokens.

  -a, --all               with the models of providers that cannot be used yet
  -n, --names             only the names, one a line
      --json              as the server has it
"""
FLAGS = named("-a --all", "-n --names", "--json")
VALUES: dict[str, str] = {}
HEAD = ("MODEL", "ROLE", "CONTEXT", "OUTPUT", "$ IN", "$ OUT", "CAN")


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP, flags=FLAGS, values=VALUES, go=_list)


def _list(options: Options) -> int:
    if len(options.words) > 1:
        raise UsageError(f"unexpected {options.words[1]!r}")
    with connect(options, name="kedge models") as client:
        offered = client.models(os.environ)
    wanted = options.words[0] if options.words else None
    if wanted is not None:
        offered["providers"] = _only(wanted, offered["providers"])
    providers = offered["providers"]
    has_all = options.has("all") or wanted is not None
    shown = [model for each in providers if each["usable"] or has_all for model in each["models"]]
    if options.has("json"):
        print_json(offered)
    elif options.has("names"):
        for model in shown:
            print(visible_line(model["name"]))
    else:
        _print(shown, providers, offered)
    return EXIT_OK


def _only(wanted: str, providers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [each for each in providers if each["id"] == wanted]
    if not found:
        raise UsageError(
            f"there is no provider {wanted!r}; choose one of {', '.join(each['id'] for each in providers)}"
        )
    return found


def _print(models: list[dict[str, Any]], providers: list[dict[str, Any]], offered: dict[str, Any]) -> None:
    if models:
        print_table([HEAD, *map(_row, models)])
        print()
    if (usable := [each for each in providers if each["usable"]]) != []:
        print("usable:")
        print_table([_why(each) for each in usable])
    if (rest := [each for each in providers if not each["usable"]]) != []:
        print("not yet:" if usable else "nothing of this can be used yet:")
        print_table([_why(each) for each in rest])
    if offered["model"]:
        print()
        print(visible_line(f"a run that names no model gets {offered['model']}: {_reason(offered)}"))
    else:
        print()
        print(visible_line(offered["why"]))


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    abilities = [name for name in ("tools", "images", "reasoning") if model[name]]
    return (
        model["name"],
        "+".join(model["roles"]),
        _tokens(model["context_window"]),
        _tokens(model["max_output_tokens"]),
        _dollars(model["input_price"]),
        _dollars(model["output_price"]),
        " ".join(abilities) or "only text",
    )


def _why(provider: dict[str, Any]) -> tuple[str, ...]:
    return f"  {provider['id']}", provider["why"]


def _reason(offered: dict[str, Any]) -> str:
    """The model's name is there already."""
    return offered["why"].removeprefix(f"{offered['model']}: ")


def _tokens(count: int | None) -> str:
    if count is None:
        return "-"
    return f"{count / 1_000_000:.3g}M" if count >= 1_000_000 else f"{count / 1000:.0f}k"


def _dollars(price: float | None) -> str:
    return "-" if price is None else "free" if price == 0 else f"{price:g}"
