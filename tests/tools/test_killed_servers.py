"""A server is killed between every two steps of starting a command: nothing of it runs on, not even unknown (P13)."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.harness import Kedge
from tests.support.stores import Sqlite

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 30.0

BEFORE_IT_RUNS = ("command.spawned", "record_process.begin", "record_process.done")
ON_RECORD = ("record_process.committed", "record_process.published", "command.recorded", "command.released")
KEEPING = tuple(f"keep_process.{place}" for place in ("begin", "done", "committed", "published"))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")


def running(token: str) -> list[int]:
    """Every process that has this word in its arguments, but not us and our servers."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if token.encode() in words and b"tests.tools.crashing" not in words:
                found.append(int(entry.name))
    return found


def wait_for_end(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([fd], [], [], LIMIT_S)
    os.close(fd)
    assert ready, f"process {pid} runs on"


def killed_at(place: str, root: Path, command: str) -> None:
    env = {**os.environ, "KEDGE_FAILPOINT": f"{place}=kill"}
    (root / "workspace").mkdir()
    arguments = [sys.executable, "-m", "tests.tools.crashing", str(root), command]
    # Files, not pipes: what is left behind would hold a pipe open.
    with (root / "errors").open("wb") as errors:
        died = subprocess.run(arguments, cwd=ROOT, env=env, stdout=errors, stderr=errors, timeout=LIMIT_S, check=False)
    assert died.returncode == -signal.SIGKILL, (root / "errors").read_text()


@pytest.mark.parametrize("place", BEFORE_IT_RUNS)
async def test_a_command_that_is_not_on_record_never_begins(place: str, tmp_path: Path) -> None:
    token = uuid.uuid4().hex
    await asyncio.to_thread(killed_at, place, tmp_path, f"touch begun; exec -a {token} sleep 300")
    for pid in running(token):
        await asyncio.to_thread(wait_for_end, pid)  # by itself: there may never be another server
    assert running(token) == []
    assert not (tmp_path / "workspace" / "begun").exists()


@pytest.mark.parametrize("place", ON_RECORD)
async def test_a_command_on_record_is_ended_by_the_next_server(place: str, tmp_path: Path) -> None:
    token = uuid.uuid4().hex
    script = f"setsid bash -c 'trap \"\" TERM; exec -a {token} sleep 300' & exec -a {token} sleep 300"
    await asyncio.to_thread(killed_at, place, tmp_path, script)
    async with Kedge(Sqlite(), tmp_path, term_s=0.3):
        for pid in running(token):  # at most one that waited in vain, and is about to end
            await asyncio.to_thread(wait_for_end, pid)
    assert running(token) == []


@pytest.mark.parametrize("place", KEEPING)
async def test_a_job_is_ended_by_the_next_server(place: str, tmp_path: Path) -> None:
    token = uuid.uuid4().hex
    await asyncio.to_thread(killed_at, place, tmp_path, f"&exec -a {token} sleep 300")
    async with Kedge(Sqlite(), tmp_path):
        for pid in running(token):
            await asyncio.to_thread(wait_for_end, pid)
    assert running(token) == []
