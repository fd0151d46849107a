"""Kedge beside its peers: the same work through each that is installed, against one scripted model, in turns.

usage: python3 dev.py bench peers [--rounds N] [--only NAME,…] [--rows ROW,…] [--write PAGE]
       python3 dev.py bench peers install [NAME …]
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench.measure import yardstick_ms
from bench.peers import install, oneshot, page
from bench.peers.commands import adopt_orphans
from bench.peers.known import KEDGE, PEERS
from bench.peers.peers import Peer
from bench.peers.quiet import Quiet
from bench.peers.servers import rows
from bench.peers.setting import Contender, Setting
from bench.peers.table import Cell
from tests.support.model_control import model_process

ROWS = (*oneshot.QUESTIONS, *rows.QUESTIONS)
_LIFETIME_S = 6 * 3600.0  # of a model that nobody ends


def main(argv: list[str], peers: Sequence[Peer] = PEERS) -> int:
    if argv[:1] == ["install"]:
        return install_all(argv[1:], peers)
    parser = argparse.ArgumentParser(
        prog="dev.py bench peers",
        description=(__doc__ or "").partition("\n")[0],
        epilog=f"`dev.py bench peers install [NAME ...]` installs them into {install.cache()}.",
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each row")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before them that do not count")
    parser.add_argument(
        "--only", type=_list, default=[], help="these, of those that are installed; Kedge is always there"
    )
    parser.add_argument("--rows", type=_list, default=list(ROWS), help=f"of: {', '.join(ROWS)}")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for a quiet machine, altogether")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page, too")
    options = parser.parse_args(argv)
    known = {peer.name: peer for peer in (KEDGE, *peers)}
    for name in options.only:
        if name not in known:
            parser.error(f"no peer {name!r}; there are: {', '.join(known)}")
    for name in options.rows:
        if name not in ROWS:
            parser.error(f"no row {name!r}; there are: {', '.join(ROWS)}")

    try:
        if options.write:
            page.around(options.write)  # now, and not after an hour
    except page.NoMarks as error:
        parser.error(str(error))
    wanted = [known[name] for name in options.only if name != KEDGE.name] if options.only else list(peers)
    here = [peer for peer in wanted if install.is_installed(peer)]
    missing = [peer for peer in wanted if peer not in here]
    adopt_orphans()
    signal.signal(signal.SIGTERM, _leave)
    pace_ms = yardstick_ms()
    cells = measure([KEDGE, *here], options)
    text = page.report(cells, [KEDGE, *here], missing, options.rounds, (pace_ms, yardstick_ms()))
    print(text)
    if options.write:
        page.write(options.write, text)
    return 0


def measure(peers: Sequence[Peer], options: argparse.Namespace) -> list[Cell]:
    # Not in /tmp, which some peers treat otherwise than a home.
    homes = install.cache() / "homes"
    homes.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="h-", dir=homes))  # short: the path of a socket may have 107 characters
    try:
        with model_process("--lifetime-s", str(_LIFETIME_S)) as (model, process):
            contenders = [Contender.ready(peer, directory, model.base_url) for peer in peers]
            quiet = Quiet(options.patience)
            setting = Setting(directory, tuple(contenders), model, process.pid, options.rounds, options.warm_up, quiet)
            return [
                *oneshot.measure(setting, [name for name in options.rows if name in oneshot.QUESTIONS]),
                *rows.measure(setting, [name for name in options.rows if name in rows.QUESTIONS]),
            ]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def install_all(names: Sequence[str], peers: Sequence[Peer]) -> int:
    known = {peer.name: peer for peer in (KEDGE, *peers)}
    failed = 0
    for name in names or known:
        if name not in known:
            print(f"no peer {name!r}; there are: {', '.join(known)}", file=sys.stderr)
            return 2
        peer = known[name]
        if install.is_installed(peer) and not names:
            print(f"{name} {peer.version} is there")
            continue
        print(f"{name} {peer.version} …", flush=True)
        try:
            install.install(peer)
        except install.CannotInstall as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


def _leave(signum: int, _: FrameType | None) -> None:
    """Whoever is ended ends what it started."""
    sys.exit(128 + signum)


def _list(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
