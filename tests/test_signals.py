"""What the tests start heeds signals, however the tests were started themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

IGNORING = """
import os, signal, subprocess, sys
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-c", os.environ["THEN"]])
"""
STARTING = """
import os, signal, subprocess, sys
from tests.support.signals import stop_children_inheriting_ignored_signals
stop_children_inheriting_ignored_signals()
os.kill(os.getpid(), signal.SIGHUP)
for line in ("SIGHUP", "SIGINT", "SIGTERM"):
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1, stderr=-3)
    child.stdout.readline()
    child.send_signal(getattr(signal, line))
    print(child.wait(60) == (-getattr(signal, line)), flush=True)
    child.communicate()
"""


def test_a_signal_that_is_ignored_here_ends_what_is_started_here() -> None:
    """As under `nohup`, or in the background of a script."""
    done = subprocess.run(
        [sys.executable, "-c", IGNORING, "SIGHUP", "SIGINT", "SIGTERM"],
        env={"THEN": STARTING},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True"] * 3)
