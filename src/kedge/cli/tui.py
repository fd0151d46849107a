"""`kedge` by itself: the terminal interface."""

from __future__ import annotations

import os
import sys

from kedge.cli.common import command, directory_of
from kedge.cli.options import Options, UsageError, named

HELP = """\
usage: kedge [OPTION ...]

Opens the terminal interface in this directory. F1 shows its keys.

  -C, --continue          go on with the session that was used last
  -s, --session ID        open this session
  -m, --model NAME        the model, as PROVIDER/NAME (KEDGE_MODEL)
      --mode MODE         plan, ask, auto-edit or yolo
  -y, --yolo              ask nothing: the same as --mode yolo
"""
FLAGS = named("-C --continue", "-y --yolo")
VALUES = named("-s --session", "-m --model", "--mode")
MODES = ("plan", "ask", "auto-edit", "yolo")


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP, flags=FLAGS, values=VALUES, go=_open)


def _open(options: Options) -> int:
    if options.words:
        raise UsageError(f"unexpected {options.words[0]!r}")
    mode = options.choice("mode", MODES)
    if options.has("yolo") and mode not in (None, "yolo"):
        raise UsageError(f"--yolo and --mode {mode} contradict each other")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the terminal interface needs a terminal; `kedge run PROMPT` does not")
    directory = directory_of(options.get("cwd"))
    from kedge.tui.app import run as run_app
    from kedge.tui.launch import Launch

    return run_app(
        Launch(
            directory=os.path.abspath(directory),
            host=options.get("host"),
            data_dir=options.get("data-dir"),
            token_file=options.get("token-file"),
            session_id=options.get("session"),
            is_continued=options.has("continue"),
            model=options.get("model") or os.environ.get("KEDGE_MODEL"),
            mode="yolo" if options.has("yolo") else mode,  # pyright: ignore[reportArgumentType] - one of MODES
        )
    )
