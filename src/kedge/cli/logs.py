"""`kedge logs`: the server's log, also when there is no server to ask."""

from __future__ import annotations

import os
import sys
import time

from kedge.cli.common import EXIT_OK, EXIT_USAGE, command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import complain
from kedge.protocol.address import LOG_FILE, data_dir

HELP = """\
usage: kedge logs [OPTION ...]

Shows the end of the server's log, on the machine that it runs on.

  -n, --number N          how many lines (50)
  -f, --follow            go on as the log grows
      --data-dir DIR      whose server (KEDGE_DATA_DIR)
  -h, --help              show this
"""
FLAGS = named("-f --follow")
VALUES = named("-n --number", "--data-dir")
WORDS = ("--number", "--follow", "--data-dir", "--help")  # for the shell's completion
LINES = 50
LOOK_S = 0.25  # a log is written for people, who do not notice less
TAIL_BYTES = 1024 * 1024


def run(argv: list[str]) -> int:
    return command(argv, usage=HELP, flags=FLAGS, values=VALUES, go=_show, connects=False)


def _show(options: Options) -> int:
    number = options.whole("number", least=0)
    if options.words:
        raise UsageError(f"unexpected {options.words[0]!r}")
    path = os.path.join(data_dir(options.get("data-dir")), LOG_FILE)
    if not os.path.exists(path) and not options.has("follow"):
        return complain(f"there is no log at {path}; no server has run with this data directory", EXIT_USAGE)
    place = _tail(path, LINES if number is None else number)
    try:
        while options.has("follow"):
            time.sleep(LOOK_S)
            place = _news(path, place)
    except KeyboardInterrupt:
        pass
    return EXIT_OK


def _tail(path: str, lines: int) -> tuple[int, int]:
    """Print the last lines; returns the file's identity and how far it was read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
            print("".join(text.splitlines(keepends=True)[-lines:] if lines else []), end="", flush=True)
            return os.fstat(file.fileno()).st_ino, file.tell()
    except FileNotFoundError:
        return 0, 0


def _news(path: str, place: tuple[int, int]) -> tuple[int, int]:
    inode, offset = place
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != inode or found.st_size < offset:
                offset = 0  # the log was rotated
            file.seek(offset)
            sys.stdout.write(file.read().decode("utf-8", "replace"))
            sys.stdout.flush()
            return found.st_ino, file.tell()
    except FileNotFoundError:
        return place
