"""Whether a process descends from this one, by its parents as the system shows them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from kedge.engine.processes.reaper import Reaper, is_agents
from tests.support.reader import LIMIT_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to us")

NOBODY = 65534
NO_SESSIONS: set[int] = set()


async def test_only_a_living_stranger_is_not_the_agents() -> None:
    reaper = Reaper()
    assert reaper.start()
    try:
        child = await asyncio.create_subprocess_exec("sleep", "60")
        pidfd = os.pidfd_open(child.pid)
        try:
            assert is_agents(child.pid, pidfd, NO_SESSIONS)
            assert not is_agents(os.getpid(), None, NO_SESSIONS), "we are not our own descendant"
            assert not is_agents(os.getppid(), None, NO_SESSIONS)
            assert not is_agents(1, None, NO_SESSIONS) or os.getpid() == 1
            assert not is_agents(0, None, NO_SESSIONS), "outside of our namespace"
            assert not is_agents(child.pid, pidfd, {os.getsid(child.pid)}), "a person's session"
            child.kill()
            await child.wait()
            assert is_agents(child.pid, pidfd, NO_SESSIONS), "in doubt"
            assert is_agents(child.pid, None, NO_SESSIONS)
            assert is_agents(os.getppid(), pidfd, NO_SESSIONS), "its number was given to another"
        finally:
            os.close(pidfd)
    finally:
        reaper.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_parent_of_another_user_that_is_not_shown_is_no_doubt() -> None:
    """As with `hidepid`, where /proc shows one's own processes alone."""
    code = f"""
import os
from kedge.engine.processes import reaper
os.setuid({NOBODY})
print(reaper.is_hidden(os.getppid()), reaper.is_hidden(os.getpid()), reaper.is_hidden(2**22 + 1))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == "True False False\n", done.stderr
