"""Control groups of commands: who is in one is found wherever it is; where there are none, all works without."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from kedge.engine.processes import cgroups, process_groups
from kedge.engine.processes.process_groups import end_groups, end_left, identify, join_cgroup, mark_of
from kedge.store.port import ProcessRecord
from tests.support.cgroups import needs_cgroups
from tests.support.processes import is_alive
from tests.support.reader import LIMIT_S

# It waits for a line, as commands do; then a child wipes its environment and begins a session, its parent leaves it,
# and says its number.
HIDING = "read -r go; (env -i setsid sh -c 'echo $$; exec sleep 300 >/dev/null' &); sleep 300"

Enclosed = Callable[[str], Coroutine[Any, Any, tuple[Process, ProcessRecord]]]


@pytest.fixture
async def enclosed() -> AsyncGenerator[Enclosed]:
    """Starts a script that waits for a line, puts it into a group, and lets it go."""
    started: list[tuple[Process, ProcessRecord]] = []

    async def start(script: str) -> tuple[Process, ProcessRecord]:
        leader = await asyncio.create_subprocess_exec(
            "sh", "-c", script, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        group = identify(leader.pid)
        started.append((leader, group))
        async with join_cgroup(group):
            pass
        say(leader, "go")
        return leader, group

    yield start
    for leader, group in started:
        await end_groups([group], term_s=0, kill_s=LIMIT_S)
        await leader.communicate()


def lost(*_: object) -> None:
    """In the place of a signal."""


def say(process: Process, words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{words}\n".encode())


async def line(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        return (await process.stdout.readline()).decode().strip()


def place(group: ProcessRecord) -> Path:
    home = cgroups.home()
    assert home is not None
    return home / f"kedge-{mark_of(group)}"


@needs_cgroups
async def test_who_hid_from_everything_else_is_seen_and_ended(enclosed: Enclosed) -> None:
    leader, group = await enclosed(HIDING)
    hidden = int(await line(leader))
    os.killpg(group.pgid, signal.SIGKILL)
    await leader.wait()
    assert [f"(process {hidden})" in name for name in await process_groups.members(group)] == [True]
    assert await end_groups([group], term_s=LIMIT_S) == []
    assert not is_alive(hidden)
    assert not place(group).exists()
    assert await process_groups.members(group) == []


@needs_cgroups
async def test_one_may_end_by_itself_when_it_is_told(enclosed: Enclosed, tmp_path: Path) -> None:
    polite = 'trap "echo bye; exit" TERM; echo ready; while :; do sleep 0.05; done'
    leader, group = await enclosed(f"read -r go; (env -i setsid sh -c '{polite}' &); sleep 300")
    assert await line(leader) == "ready"
    assert await end_groups([group], term_s=LIMIT_S) == []
    assert await line(leader) == "bye"


@needs_cgroups
async def test_kernels_that_kill_no_group_at_once_let_it_be_done_one_by_one(
    enclosed: Enclosed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, group = await enclosed(HIDING.replace("exec sleep", 'trap "" TERM; exec sleep'))
    hidden = int(await line(leader))
    monkeypatch.setattr(cgroups, "kill", lost)
    assert await end_groups([group], term_s=0.1, kill_s=LIMIT_S) == []
    assert not is_alive(hidden)


@needs_cgroups
async def test_who_cannot_be_ended_is_named(enclosed: Enclosed, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, group = await enclosed(HIDING)
    hidden = int(await line(leader))
    with monkeypatch.context() as patch:
        patch.setattr(cgroups, "kill", lost)
        patch.setattr(os, "kill", lost)
        assert await end_groups([group], term_s=0, kill_s=0.1) == [f"sleep (process {hidden})"]
    assert place(group).exists(), "as long as somebody lives there"


@needs_cgroups
async def test_groups_made_within_are_ended_and_removed_too(enclosed: Enclosed) -> None:
    leader, group = await enclosed(HIDING)
    hidden = int(await line(leader))
    (place(group) / "inner").mkdir()
    (place(group) / "inner" / "cgroup.procs").write_text(str(hidden))
    assert await end_groups([group], term_s=LIMIT_S) == []
    assert not is_alive(hidden)
    assert not place(group).exists()


@needs_cgroups
async def test_the_next_server_finds_a_group_wherever_it_runs_itself(
    enclosed: Enclosed, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = cgroups.home()
    assert home is not None
    elsewhere = home / f"kedge-test-{os.getpid()}"
    elsewhere.mkdir()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(cgroups, "home", lambda: elsewhere)
            leader, group = await enclosed(HIDING)
        hidden = int(await line(leader))
        monkeypatch.setattr(cgroups, "_groups", {})
        assert await end_left([group], term_s=LIMIT_S) == []
        assert not is_alive(hidden)
        assert not (elsewhere / place(group).name).exists()
    finally:
        elsewhere.rmdir()


@needs_cgroups
async def test_a_server_within_a_group_does_not_end_itself(enclosed: Enclosed) -> None:
    """One that a tool of an earlier server started, which is ended now, with a deaf one beside it."""
    deaf = "env -i setsid sh -c 'trap \"\" TERM; echo $$; exec sleep 300' &"
    leader, group = await enclosed(f"read -r go; ({deaf}); exec {sys.executable} -m tests.engine.marked_server")
    hidden = int(await line(leader))
    say(leader, f"{group.pgid} {group.started}")
    assert await line(leader) == "[]"
    async with asyncio.timeout(LIMIT_S):
        assert await leader.wait() == 0
    assert not is_alive(hidden)


@needs_cgroups
def test_an_old_empty_group_is_removed_and_a_fresh_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may die between making one and putting it on record; another may just have made one."""
    home = cgroups.home()
    assert home is not None
    empty = home / f"kedge-test-{os.getpid()}"
    empty.mkdir()
    cgroups.remove_unused()
    assert empty.exists()
    made = empty.stat().st_mtime
    monkeypatch.setattr(cgroups.time, "time", lambda: made + 61)
    cgroups.remove_unused()
    assert not empty.exists()


# Where it is not allowed. The machine's own answers are replaced by files.


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[str, str], Path | None]]:
    """Where we may make groups, by what the system says of its mounts and of ourselves."""
    real = cgroups.home

    def ask(mounts: str, own: str) -> Path | None:
        (tmp_path / "mountinfo").write_text(mounts)
        (tmp_path / "cgroup").write_text(own)
        real.cache_clear()
        return real()

    with monkeypatch.context() as patch:
        patch.setattr(cgroups, "_MOUNTS", tmp_path / "mountinfo")
        patch.setattr(cgroups, "_OWN", tmp_path / "cgroup")
        yield ask
    real.cache_clear()


Machine = Callable[[str, str], Path | None]


def mounted(point: Path | str, root: str = "/", kind: str = "cgroup2") -> str:
    other = "23 1 0:20 / /proc rw,nosuid shared:5 - proc proc rw\n"
    shown = str(point).replace(" ", r"\040")
    return f"{other}41 31 0:38 {root} {shown} rw,relatime shared:9 - {kind} none rw\n"


def test_groups_are_made_below_our_own(machine: Machine, tmp_path: Path) -> None:
    own = tmp_path / "with blank" / "a" / "b"
    own.mkdir(parents=True)
    (own / "cgroup.procs").touch()
    assert machine(mounted(tmp_path / "with blank"), "4:memory:/x\n0::/a/b\n") == own
    assert machine(mounted(tmp_path / "with blank", root="/outer"), "0::/outer/a/b\n") == own


def test_there_is_none_where_the_system_shows_none(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    assert machine(mounted(tmp_path, kind="cgroup"), "0::/\n") is None, "only the old kind"
    assert machine(mounted(tmp_path), "4:memory:/x\n") is None, "we are in none"
    assert machine(mounted(tmp_path, root="/outer"), "0::/other\n") is None, "ours is not shown"
    assert machine(mounted(tmp_path), "0::/../other\n") is None, "ours is outside"
    assert machine("", "") is None


async def test_where_no_group_may_be_made_commands_run_without(machine: Machine, enclosed: Enclosed) -> None:
    """In /proc nobody may make a directory, not even root: like a file system that is only for reading."""
    read_only = Path("/proc/self")
    if sys.platform == "linux":
        assert machine(mounted(read_only.parent), "0::/self\n") is None
    else:
        assert machine("", "") is None
    leader, group = await enclosed("read -r go; echo ready; sleep 300")
    assert await line(leader) == "ready"
    assert await end_groups([group], term_s=LIMIT_S) == []
    assert leader.returncode is not None or await leader.wait() == -signal.SIGTERM


async def test_a_group_that_cannot_be_made_or_joined_after_all_stops_no_command(
    enclosed: Enclosed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cgroups, "_to_remove", set[Path]())
    for home in (tmp_path / "gone", tmp_path):  # in a plain directory, nobody is moved by writing to a file
        monkeypatch.setattr(cgroups, "home", lambda home=home: home)
        leader, group = await enclosed("read -r go; echo ready; sleep 300")
        assert await line(leader) == "ready"
        assert await end_groups([group], term_s=LIMIT_S) == []
        assert await leader.wait() == -signal.SIGTERM
