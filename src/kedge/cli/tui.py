"""`kedge` without a command: open the terminal interface. Errors in the arguments are reported before it opens."""

from __future__ import annotations

import os
import sys

from kedge.cli.common import CONNECT_VALUES, EXIT_USAGE, connect, find_directory, run_command
from kedge.cli.main import COMMANDS, NO_TERMINAL, SESSIONS, describe_unknown, is_prompt
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_error
from kedge.cli.run_options import MODES, as_text
from kedge.client.environment import find_server
from kedge.client.errors import Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kedge.client.sync_client import Client

HELP = """\
usage: kedge [OPTION ...] ["PROMPT" | -- PROMPT ...]

Open the terminal interface in this directory, and send the prompt if there is one: an argument with a space in it, or
all that follows "--". Press F1 for its keys.

  -C, --continue          continue the most recent session
  -s, --session ID        open this session; the start of its ID is enough if it is unique
  -m, --model NAME        model, as PROVIDER/NAME (KEDGE_MODEL)
      --mode MODE         what the agent may do without asking: plan, ask, auto-edit, auto or yolo
  -y, --yolo              never ask, allow everything (same as --mode yolo; also --yes)
"""
FLAGS = {**named("-C --continue", "-y --yolo"), "--yes": "yolo"}
VALUES = named("-s --session", "-m --model", "--mode")
DUMB = ("dumb", "unknown")  # terminals that cannot place the cursor
REACH_S = 1.0  # the interface itself waits longer for a server, and shows that it does


def run(argv: list[str]) -> int:
    if (name := _find_command(argv)) is not None:
        return print_error(f"Put options after the command: kedge {name} OPTION …", EXIT_USAGE)
    return run_command(argv, help_text=HELP, flags=FLAGS, values=VALUES, action=_open)


def _find_command(argv: list[str]) -> str | None:
    """Find a command that follows options, like in `kedge --host … runs`."""
    words = iter(argv)
    for word in words:
        if word == "--":
            return None
        if word in VALUES or word in CONNECT_VALUES:
            next(words, None)
        elif not word.startswith("-"):
            return word if word in COMMANDS or word == SESSIONS else None
    return None


def _open(options: Options) -> int:
    mode = _read_mode(options)
    prompt = _read_prompt(options)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(NO_TERMINAL)
    if (term := os.environ.get("TERM", "")) in DUMB:
        raise UsageError(f"The terminal interface cannot draw on this terminal (TERM={term}); use: kedge run PROMPT")
    directory = find_directory(options.get("cwd"))
    session_id = _check_names(options)
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
            prompt=prompt,
        )
    )


def _read_mode(options: Options) -> str | None:
    """Check the options and return the mode."""
    if options.has("session") and options.has("continue"):
        raise UsageError("Use either --session or --continue, not both")
    mode = options.choice("mode", MODES)
    if options.has("yolo") and mode not in (None, "yolo"):
        raise UsageError(f"Use either --yolo or --mode {mode}, not both")
    return "yolo" if options.has("yolo") else mode


def _read_prompt(options: Options) -> str | None:
    """Return the first prompt. Raises `UsageError` for a word that may be a mistyped command, and a bad prompt."""
    words = options.words
    if not words:
        return None
    if not options.has_end:
        if not is_prompt(words[0]):
            raise UsageError(describe_unknown(words[0]))
        if len(words) > 1:
            raise UsageError('Put the whole prompt into quotes: kedge "PROMPT"')
    prompt = as_text(" ".join(words))
    from kedge.protocol.errors import KedgeError
    from kedge.protocol.validation import check_prompt

    try:
        check_prompt(prompt)
    except KedgeError as error:
        raise UsageError(error.message.capitalize()) from error
    return prompt


def _check_names(options: Options) -> str | None:
    """Check that the session and the model exist; returns the session's full ID. Asks no server if neither is named."""
    session, model = options.get("session"), options.get("model")
    find_server(host=options.get("host"), data_dir=options.get("data-dir"), token_file=options.get("token-file"))
    if session is None and model is None:
        return None
    try:
        with connect(options, name="kedge", give_up_s=REACH_S) as client:
            if model is not None:
                _check_model(client, as_text(model))
            if session is None:
                return None
            from kedge.cli.session import find_session

            return find_session(client, [session])["id"]
    except Unreachable:
        return session


def _check_model(client: Client, model: str) -> None:
    """Raises `UsageError` for an unknown provider. Only the provider knows which models it has."""
    known = [each["id"] for each in client.models(os.environ)["providers"]]
    provider, _, name = model.partition("/")
    if not name or provider not in known:
        raise UsageError(f"Unknown model {model!r} (use PROVIDER/NAME; providers: {', '.join(known)})")
