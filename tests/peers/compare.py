"""The comparison with stand-ins for the peers, as a process of its own: it ends whatever comes from it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bench.peers import install
from bench.peers.__main__ import main
from bench.peers.peers import Peer, PyPI, Tool
from tests.peers.stand_in import VERSION

PROGRAM = Path(__file__).with_name("stand_in.py")


def stand_in(name: str, fault: str = "") -> Peer:
    return Peer(
        name=name,
        version=VERSION,
        source=PyPI("no-such-package", (1, 0)),
        executable=PROGRAM.name,
        before=(sys.executable, "-I", "-S"),  # it needs nothing, and is to be quick
        run=("$prompt",),
        variables={"MODEL_URL": "$url", "FAULT": fault},
        tool=Tool("view", {"path": "$workspace/hello.txt"}),
    )


GOOD, WRONG, FAILING, LAZY = (
    stand_in("good"),
    stand_in("wrong", "wrong"),
    stand_in("bad", "failing"),
    stand_in("lazy", "lazy"),
)
ABSENT = stand_in("absent")

if __name__ == "__main__":
    for peer in (GOOD, WRONG, FAILING, LAZY):
        install.directory(peer).mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAM, peer.program(install.directory(peer)))
    sys.exit(main(sys.argv[1:], (GOOD, WRONG, FAILING, LAZY, ABSENT)))
