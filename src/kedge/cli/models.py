"""`kedge models`: list the models that a run from this shell can use, and update what is known about models."""

from __future__ import annotations

import os
import sys

from kedge.cli.common import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, connect, find_directory, run_command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_error, print_json, print_table
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

usage: kedge models update [OPTION ...]

Update the catalog: names, sizes and prices of models of known providers. It is read from the address in catalog.url, or
from --from; both Kedge's own format and that of models.dev work. Changes are shown, and stored only if you agree; no
other command fetches anything. A newer release of Kedge takes precedence for the models it knows.

      --from SOURCE       https:// address or file to read
  -y, --yes               store the changes without asking
  -a, --all               show all changes
      --reset             remove the stored update
"""
FLAGS = named("-a --all", "-n --names", "--json", "-y --yes", "--reset")
VALUES = named("--from")
UPDATE_TIMEOUT_S = 90.0
SHOWN_CHANGES = 30
HEAD = ("MODEL", "ROLE", "CONTEXT", "OUTPUT", "$ IN", "$ OUT", "CAN")


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values=VALUES, action=_dispatch)


def _dispatch(options: Options) -> int:
    if options.words[:1] == ["update"]:
        return _update(options)
    if name := next((name for name in ("from", "yes", "reset") if options.has(name)), None):
        raise UsageError(f"--{name} is for kedge models update")
    return _list(options)


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
    else:
        print("No models are listed.")
    print()
    for title, is_usable in (("Available:", True), ("Not set up:", False)):
        if rows := [(f"  {each['id']}", each["why"]) for each in providers if each["usable"] == is_usable]:
            print(title)
            print_table(rows)
    print()
    if source := listing["catalog_source"]:
        print(visible_line(f"Catalog of {listing['catalog_date']} {source}"))
    print(visible_line(_describe_default(listing["model"], listing["why"])))


def _describe_default(name: str | None, reason: str) -> str:
    if not name:
        return reason[:1].upper() + reason[1:]
    return f"Default model: {name} ({reason.removeprefix(f'{name}: ')})"


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


def _update(options: Options) -> int:
    from kedge.client.environment import find_server

    if len(options.words) > 1:
        raise UsageError(f"Unexpected argument {options.words[1]!r}")
    data_dir = find_server(
        host=options.get("host"), data_dir=options.get("data-dir"), token_file=options.get("token-file")
    ).data_dir
    path = os.path.join(data_dir, "catalog.json")
    if options.has("reset"):
        try:
            os.unlink(path)
        except FileNotFoundError:
            print("There is no stored catalog.")
        else:
            print("Removed. The catalog of this release is used again.")
        return EXIT_OK
    found = _read_catalog(data_dir, _find_source(options))
    if problem := found.get("problem"):
        return print_error(problem, EXIT_FAILED)
    if found["dropped"]:
        print(f"{found['dropped']} models are left out: unknown providers, other editions, or unusable entries.")
    new, changed = found["new"], found["changed"]
    if not new and not changed:
        print(f"Nothing would change: the catalog of {found['date']} has nothing new.")
        return EXIT_OK
    _print_changes("New", new, options)
    _print_changes("Changed", changed, options)
    if not options.has("yes"):
        if not os.isatty(0):
            raise UsageError("Nothing was stored, because nobody could be asked. Use --yes")
        print(f"Store this catalog of {found['date']}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return print_error("Nothing was stored", EXIT_REFUSED)
    if code := _store(path, found["update"]):
        return code
    print(f"Stored {len(new)} new and {len(changed)} changed models. To undo: kedge models update --reset")
    return EXIT_OK


def _find_source(options: Options) -> str:
    """Return the address, or the absolute path of the file."""
    source = options.get("from")
    if source is None:
        from pathlib import Path

        from kedge.config.load import Loader
        from kedge.protocol.errors import KedgeError

        try:
            source = Loader().load(Path(find_directory(options.get("cwd"))), os.environ).config.catalog.url
        except KedgeError as error:
            raise UsageError(error.message) from None
        if source is None or "://" not in source:
            raise UsageError("There is no address. Use --from SOURCE, or set catalog.url to an https:// address")
    return source if "://" in source else os.path.abspath(os.path.expanduser(source))


def _read_catalog(data_dir: str, source: str) -> dict[str, Any]:
    """Read and check the catalog in a child process, which may import what a client may not."""
    import json
    import subprocess

    from kedge.cli.doctor_checks import run_module

    try:
        return json.loads(run_module("kedge.models.catalog_update", data_dir, source, timeout_s=UPDATE_TIMEOUT_S))
    except subprocess.TimeoutExpired:
        return {"problem": f"The catalog could not be read within {UPDATE_TIMEOUT_S:g} s"}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"problem": f"The catalog could not be read ({type(error).__name__})"}


def _print_changes(title: str, lines: list[str], options: Options) -> None:
    if lines:
        shown = lines if options.has("all") else lines[:SHOWN_CHANGES]
        print(f"{title}:")
        for line in shown:
            print(f"  {visible_line(line)}")
        if len(lines) > len(shown):
            print(f"  … and {len(lines) - len(shown)} more (--all shows them)")


def _store(path: str, update: dict[str, Any]) -> int:
    import json

    from kedge.protocol.address import make_private_dir

    unfinished = f"{path}.{os.getpid()}"
    try:
        make_private_dir(os.path.dirname(path))
        with open(unfinished, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump(update, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)  # atomic: the server may read it now
    except OSError as error:
        return print_error(f"Could not write {path} ({error.strerror})", EXIT_FAILED)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
    return EXIT_OK
