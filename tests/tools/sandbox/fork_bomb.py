"""Starts a fork bomb with a limit, sees it fail, and ends all of it. Not as root, whose processes nobody counts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from kedge.tools.sandbox.policy import Limits, set_limits

BOMB = "read -r x; f() { f | f & }; f; sleep 60"
MOST = 20


def main() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    pipe = subprocess.PIPE
    child = subprocess.Popen(["/bin/bash", "-c", BOMB], stdin=pipe, stderr=pipe, start_new_session=True, cwd="/")
    assert child.stdin is not None
    assert child.stderr is not None
    try:
        set_limits(child.pid, Limits(processes=MOST))
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert "Resource temporarily unavailable" in child.stderr.readline().decode()
        assert len(living(child.pid)) <= MOST + 1
        sys.stdout.write("bounded\n")
    finally:
        while members := living(child.pid):
            for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped, none of them starts another meanwhile
                for pid in members:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            child.poll()


def living(group: int) -> list[int]:
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, pgid = stat.read_text().rpartition(") ")[2].split()[:3]
            if int(pgid) == group and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


if __name__ == "__main__":
    main()
