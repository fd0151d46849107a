"""`kedge story`: a demo that submits prompts, kills the server, restarts it, and checks that nothing was lost.

The only command that needs the engine: it runs it in a child process (server.py) and is its client.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from kedge.cli.common import EXIT_FAILED, EXIT_OK, run_command
from kedge.cli.options import Options, UsageError, named

HELP = """\
usage: kedge story [OPTION ...]

Run a demo: prompts are submitted, the server is killed and restarted, and checks show that nothing was lost.

      --seed N            another demo (default: 1); the same seed gives the same log
      --dir DIR           keep the data in this empty or new directory
  -h, --help              show this help
"""
FLAGS: dict[str, str] = {}
VALUES = named("--seed", "--dir")
CONNECTS = False


def run(argv: list[str]) -> int:
    return run_command(argv, help_text=HELP, flags=FLAGS, values=VALUES, action=_run, connects=CONNECTS)


def _run(options: Options) -> int:
    options.check_no_words()
    seed = options.integer("seed", least=0) if options.has("seed") else 1
    assert seed is not None
    _replace_unprintable(sys.stdout)
    if directory := options.get("dir"):
        return _play(seed, _make_directory(Path(directory)))
    with tempfile.TemporaryDirectory(prefix="kedge-story-") as temporary:
        return _play(seed, Path(temporary))


def _replace_unprintable(stream: object) -> None:
    """Make arrows print as "?" on a terminal that has none, instead of raising."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def _make_directory(directory: Path) -> Path:
    """Raises `UsageError` if the directory is not empty: the demo starts with event #1."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_empty = next(directory.iterdir(), None) is None
    except OSError as error:
        raise UsageError(f"Could not use {directory} ({error.strerror})") from error
    if not is_empty:
        raise UsageError(f"{directory} is not empty")
    return directory


def _play(seed: int, directory: Path) -> int:
    from kedge.cli.demo.scenario import Scenario

    (directory / "workspace").mkdir()
    print(f"Demo with seed {seed}")
    return EXIT_OK if Scenario(seed, directory.resolve(), print).play() else EXIT_FAILED
