"""`kedge story`: prompts, a crash in the middle, a restart, and a reader that misses nothing, played and checked.

The one command that needs what is behind the wire: it runs the engine in a child process (server.py), as its client.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

from kedge.cli.arguments import Parser
from kedge.cli.demo.scenario import Narrator
from kedge.cli.main import EXIT_FAILED, EXIT_OK, EXIT_USAGE, complain
from kedge.cli.options import UsageError

WORDS = ("--seed", "--dir", "--help")  # for the shell's completion


class Options(argparse.Namespace):
    seed: int
    dir: Path | None


def run(argv: list[str]) -> int:
    parser = Parser(prog="kedge story", description="Play a story with a crash in it, and check that nothing was lost.")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="which story; the same seed, the same log")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep its data in this empty or new directory")
    try:
        options = parser.parse_args(argv, Options())
        if options.dir is not None:
            make_empty(options.dir)
    except UsageError as error:
        complain(f"story: {error}; 'kedge story --help' shows its options")
        return EXIT_USAGE
    show_what_can_be_shown(sys.stdout)
    if options.dir is not None:
        return play(options.seed, options.dir)
    with tempfile.TemporaryDirectory(prefix="kedge-story-") as directory:
        return play(options.seed, Path(directory))


def make_empty(directory: Path) -> None:
    """A story begins with event #1: it is not played on top of another, nor among somebody's files."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_empty = next(directory.iterdir(), None) is None
    except OSError as error:
        raise UsageError(f"cannot use {directory} ({error.strerror})") from error
    if not is_empty:
        raise UsageError(f"{directory} is not empty")


def show_what_can_be_shown(out: object) -> None:
    """An arrow must not end the story on a terminal that has none."""
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")


def play(seed: int, directory: Path) -> int:
    (directory / "workspace").mkdir()
    print(f"The story of seed {seed}")
    has_held = Narrator(seed, directory.resolve(), print).tell()
    return EXIT_OK if has_held else EXIT_FAILED
