"""`kedge` by itself: the terminal interface. What is wrong with how it was called is a line, and not a picture."""

from __future__ import annotations

import os
import sys

from kedge.cli.common import CONNECT_VALUES, EXIT_USAGE, command, connect, directory_of
from kedge.cli.main import COMMANDS, NO_TERMINAL
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import complain
from kedge.cli.run_options import MODES, as_text
from kedge.client.errors import Unreachable
from kedge.client.server_location import find_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kedge.client.sync_client import Client

HELP = """\
usage: kedge [OPTION ...]

Opens the terminal interface in this directory. F1 shows its keys.

  -C, --continue          go on with the session that was used last
  -s, --session ID        open this session; an ID may be cut short as long as it is unique
  -m, --model NAME        the model, as PROVIDER/NAME (KEDGE_MODEL)
      --mode MODE         plan, ask, auto-edit or yolo
  -y, --yolo              ask nothing: the same as --mode yolo
"""
FLAGS = named("-C --continue", "-y --yolo")
VALUES = named("-s --session", "-m --model", "--mode")
REACH_S = 1.0  # a server that is not there now: the interface waits for it, and says so


def run(argv: list[str]) -> int:
    if (name := _late_command(argv)) is not None:
        return complain(f"the options of a command stand after it: kedge {name} OPTION …", EXIT_USAGE)
    return command(argv, usage=HELP, flags=FLAGS, values=VALUES, go=_open)


def _late_command(argv: list[str]) -> str | None:
    """A command behind options that it may well have: `kedge --host … runs`."""
    words = iter(argv)
    for word in words:
        if word in VALUES or word in CONNECT_VALUES:
            next(words, None)
        elif not word.startswith("-"):
            return word if word in COMMANDS else None
    return None


def _open(options: Options) -> int:
    mode = _mode(options)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(NO_TERMINAL)
    directory = directory_of(options.get("cwd"))
    session_id = _check(options)
    from kedge.tui.app import run as run_app
    from kedge.tui.settings import Launch

    return run_app(
        Launch(
            directory=directory,
            host=options.get("host") or os.environ.get("KEDGE_HOST"),
            data_dir=options.get("data-dir"),
            token_file=options.get("token-file"),
            session_id=session_id,
            is_continued=options.has("continue"),
            model=options.get("model") or os.environ.get("KEDGE_MODEL"),
            mode=mode,  # pyright: ignore[reportArgumentType] - one of MODES
        )
    )


def _mode(options: Options) -> str | None:
    """And whether the words go together."""
    if options.words:
        raise UsageError(f"unexpected {options.words[0]!r}")
    if options.has("session") and options.has("continue"):
        raise UsageError("--session and --continue exclude each other")
    mode = options.choice("mode", MODES)
    if options.has("yolo") and mode not in (None, "yolo"):
        raise UsageError(f"--yolo and --mode {mode} contradict each other")
    return "yolo" if options.has("yolo") else mode


def _check(options: Options) -> str | None:
    """Whether what is named is there; returns the session's whole id. Who names nothing does not wait for a server."""
    session, model = options.get("session"), options.get("model")
    find_server(host=options.get("host"), data_dir=options.get("data-dir"), token_file=options.get("token-file"))
    if session is None and model is None:
        return None
    try:
        with connect(options, name="kedge", give_up_s=REACH_S) as client:
            if model is not None:
                _check_model(client, as_text(model))
            return None if session is None else _session_id(client, session)
    except Unreachable:
        return session


def _session_id(client: Client, given: str) -> str:
    from kedge.cli.session import found

    return found(client, [given])["id"]


def _check_model(client: Client, model: str) -> None:
    """As far as it can be known: which models a provider has, it alone knows."""
    known = [each["id"] for each in client.models(os.environ)["providers"]]
    provider, _, name = model.partition("/")
    if not name or provider not in known:
        raise UsageError(f"there is no model {model!r}; it is PROVIDER/NAME, and providers are {', '.join(known)}")
