"""`kedge logs`: show the server's log file; needs no running server."""

from __future__ import annotations

import os
import sys
import time

from kedge.cli.common import EXIT_OK, EXIT_USAGE, run_command
from kedge.cli.options import Options, named
from kedge.cli.output import print_error
from kedge.protocol.address import LOG_FILE, data_dir

HELP = """\
usage: kedge logs [OPTION ...]

Show the end of the server's log, on the machine that it runs on.

  -n, --number N          how many lines (default: 50)
  -f, --follow            keep printing as the log grows
      --data-dir DIR      data directory of the server (KEDGE_DATA_DIR)
  -h, --help              show this help
"""
FLAGS = named("-f --follow")
VALUES = named("-n --number", "--data-dir")
CONNECTS = False
LINES = 50
POLL_S = 0.25  # shorter than people notice
TAIL_BYTES = 1024 * 1024


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values=VALUES, action=_show, connects=CONNECTS)


def _show(options: Options) -> int:
    number = options.integer("number", least=0)
    options.check_no_words()
    path = os.path.join(data_dir(options.get("data-dir")), LOG_FILE)
    if not os.path.exists(path) and not options.has("follow"):
        return print_error(f"No log at {path}: no server has run with this data directory", EXIT_USAGE)
    position = _print_tail(path, LINES if number is None else number)
    try:
        while options.has("follow"):
            time.sleep(POLL_S)
            position = _print_new(path, position)
    except KeyboardInterrupt:
        pass
    return EXIT_OK


def _print_tail(path: str, lines: int) -> tuple[int, int]:
    """Print the last lines; returns the file's inode and how far it was read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
            print("".join(text.splitlines(keepends=True)[-lines:] if lines else []), end="", flush=True)
            return os.fstat(file.fileno()).st_ino, file.tell()
    except FileNotFoundError:
        return 0, 0


def _print_new(path: str, position: tuple[int, int]) -> tuple[int, int]:
    inode, offset = position
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != inode or status.st_size < offset:
                offset = 0  # the log was rotated
            file.seek(offset)
            sys.stdout.write(file.read().decode("utf-8", "replace"))
            sys.stdout.flush()
            return status.st_ino, file.tell()
    except FileNotFoundError:
        return position
