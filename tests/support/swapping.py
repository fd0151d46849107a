"""A process that exchanges pairs of paths as fast as the kernel can: files and directories with links to elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

# Ends by itself when its standard input does. `renameat2` with RENAME_EXCHANGE leaves no moment without the name.
_PROGRAM = """
import ctypes, os, select, sys
renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
pairs = [tuple(map(os.fsencode, pair)) for pair in zip(sys.argv[1::2], sys.argv[2::2])]
print("ready", flush=True)
while not select.select([0], [], [], 0)[0]:
    for _ in range(50):
        for one, other in pairs:
            if renameat2(-100, one, -100, other, 2):
                sys.exit(os.strerror(ctypes.get_errno()))
"""


@contextmanager
def swapping(*pairs: tuple[Path, Path]) -> Generator[None]:
    """While inside, the two paths of each pair are exchanged all the time."""
    words = [str(path) for pair in pairs for path in pair]
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            was_alive = child.poll() is None
            child.stdin.close()
            child.wait(30)
    assert was_alive, "the swapping process ended early"
