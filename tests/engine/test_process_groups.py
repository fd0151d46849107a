"""The processes of tools: whole groups are ended, gently at first, and nobody else is touched (P6, P13)."""

import asyncio
import os
import signal
import socket
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from kedge.engine.processes import process_groups, process_table
from kedge.engine.processes.process_groups import end_groups, identify
from kedge.store.port import ProcessRecord
from tests.support.reader import LIMIT_S

Spawn = Callable[[str], Awaitable[Process]]

NO_PROC = Path("/no/proc/here")

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="start times are read from /proc")


@pytest.fixture
async def spawn() -> AsyncGenerator[Spawn]:
    """Starts a shell script as the leader of its own group; whatever is left of the group is killed at the end."""
    started: list[Process] = []

    async def start(script: str) -> Process:
        process = await asyncio.create_subprocess_shell(script, stdin=PIPE, stdout=PIPE, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        async with asyncio.timeout(LIMIT_S):
            await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        return (await process.stdout.readline()).decode().strip()


async def exit_code(process: Process) -> int:
    async with asyncio.timeout(LIMIT_S):
        return await process.wait()


async def output_ends(process: Process) -> str:
    """What is still said; it ends when nobody is left who could say anything."""
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        return (await process.stdout.read()).decode()


def is_alive(pid: int) -> bool:
    """Dead is also who was not yet collected by its parent."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except FileNotFoundError:
        return False


@needs_proc
async def test_a_whole_group_is_ended(spawn: Spawn) -> None:
    leader = await spawn("(sleep 300 & echo $!; sleep 300 & echo $!; wait) & wait")
    children = [int(await line(leader)), int(await line(leader))]
    assert await end_groups([identify(leader.pid)], term_s=LIMIT_S) == []
    assert not any(is_alive(pid) for pid in [leader.pid, *children])
    assert await exit_code(leader) == -signal.SIGTERM


@needs_proc
async def test_children_are_ended_when_their_leader_left_before(spawn: Spawn) -> None:
    leader = await spawn("read -r go; sleep 300 >/dev/null & echo $!")
    group = identify(leader.pid)
    assert leader.stdin is not None
    leader.stdin.write(b"go\n")
    child = int(await line(leader))
    assert await exit_code(leader) == 0
    assert is_alive(child)
    assert await end_groups([group], term_s=LIMIT_S) == []
    assert not is_alive(child)


@needs_proc
async def test_children_are_ended_when_their_leader_left_before_it_was_even_looked_at(spawn: Spawn) -> None:
    """`server & exit`: the shell may be gone by the time its number is known."""
    leader = await spawn("sleep 300 >/dev/null & echo $!")
    child = int(await line(leader))
    assert await exit_code(leader) == 0
    assert await end_groups([identify(leader.pid)], term_s=LIMIT_S) == []
    assert not is_alive(child)


async def test_a_process_may_end_by_itself_when_it_is_told(spawn: Spawn) -> None:
    polite = await spawn("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    assert await line(polite) == "ready"
    assert await end_groups([identify(polite.pid)], term_s=LIMIT_S) == []
    assert await output_ends(polite) == "bye\n"
    assert await exit_code(polite) == 7


async def test_one_that_ignores_the_word_is_killed(spawn: Spawn) -> None:
    stubborn = await spawn("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    assert await line(stubborn) == "ready"
    assert await end_groups([identify(stubborn.pid)], term_s=0.1, kill_s=LIMIT_S) == []
    assert await exit_code(stubborn) == -signal.SIGKILL


async def test_groups_are_ended_side_by_side(spawn: Spawn) -> None:
    """Each is given its time, but not one after the other: ten stubborn ones are no reason to miss a deadline."""
    groups: list[ProcessRecord] = []
    for _ in range(6):
        process = await spawn("trap '' TERM; echo ready; while :; do sleep 0.05; done")
        assert await line(process) == "ready"
        groups.append(identify(process.pid))
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await end_groups(groups, term_s=1.0, kill_s=LIMIT_S) == []
    assert loop.time() - began < 6 * 1.0


@needs_proc
async def test_a_number_that_belongs_to_another_process_by_now_is_left_alone(spawn: Spawn) -> None:
    somebody = await spawn("echo ready; read -r line; echo $line; read -r line")
    assert await line(somebody) == "ready"
    now = identify(somebody.pid)
    boot = now.started.partition(":")[0]
    for recorded in (f"{boot}:1", f"{boot}:", "another-boot:1", ""):
        assert await end_groups([ProcessRecord(now.pgid, recorded)], term_s=0.0, kill_s=0.0) == []
    assert somebody.stdin is not None
    somebody.stdin.write(b"alive\n")
    assert await line(somebody) == "alive"
    assert await end_groups([now], term_s=LIMIT_S) == [], "it is still there, and still the one that was recorded"
    assert await exit_code(somebody) == -signal.SIGTERM


@needs_proc
async def test_a_group_of_another_boot_is_left_alone_even_without_its_leader(spawn: Spawn) -> None:
    leader = await spawn("sleep 300 >/dev/null & echo $!")
    child = int(await line(leader))
    assert await exit_code(leader) == 0
    assert await end_groups([ProcessRecord(leader.pid, "another-boot:77")], term_s=0.0, kill_s=0.0) == []
    assert is_alive(child)


async def test_numbers_that_mean_ourselves_or_everyone_are_never_signalled() -> None:
    """To the kernel, group 0 is our own, and 1 is where everything hangs."""
    assert await end_groups([ProcessRecord(0, ""), ProcessRecord(1, ""), ProcessRecord(-1, "")], 0.0, 0.0) == []


async def test_what_is_gone_already_is_no_trouble(spawn: Spawn) -> None:
    quick = await spawn("true")
    group = identify(quick.pid)
    await exit_code(quick)
    assert await end_groups([group], term_s=0.0, kill_s=0.0) == []
    assert await end_groups([]) == []


@needs_proc
async def test_who_outlives_even_sigkill_is_named(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    def signal_is_lost(pgid: int, sig: signal.Signals) -> None:
        del pgid, sig

    stuck = await spawn("echo ready; read -r line")
    assert await line(stuck) == "ready"
    name = (Path("/proc") / str(stuck.pid) / "comm").read_text().strip()
    monkeypatch.setattr(process_groups, "_signal_group", signal_is_lost)
    assert await end_groups([identify(stuck.pid)], term_s=0.0, kill_s=0.0) == [f"{name} (process {stuck.pid})"]


@needs_proc
async def test_a_name_may_hold_anything(spawn: Spawn, tmp_path: Path) -> None:
    """/proc/PID/stat puts the name in the middle: one with blanks and brackets must not move the other fields."""
    odd = tmp_path / ") 1 (x"
    odd.write_text("#!/bin/sh\necho ready\nread -r line\n")
    odd.chmod(0o700)
    process = await spawn(f"exec '{odd}'")
    assert await line(process) == "ready"
    assert await end_groups([identify(process.pid)], term_s=LIMIT_S) == []
    assert await exit_code(process) == -signal.SIGTERM


@needs_proc
async def test_a_name_that_is_no_text_disturbs_nobody(spawn: Spawn, tmp_path: Path) -> None:
    """The kernel cuts names at 15 bytes, also within a character; and every process of the machine is looked at."""
    cut = tmp_path / ("é" * 9)
    cut.write_text("#!/bin/sh\necho ready\nread -r line\n")
    cut.chmod(0o700)
    stranger = await spawn(f"exec '{cut}'")
    assert await line(stranger) == "ready"
    assert b"\xc3)" in (Path("/proc") / str(stranger.pid) / "stat").read_bytes()
    other = await spawn("echo ready; read -r line")
    assert await line(other) == "ready"
    assert await end_groups([identify(other.pid)], term_s=LIMIT_S) == []
    assert is_alive(stranger.pid)
    assert await end_groups([identify(stranger.pid)], term_s=LIMIT_S) == []
    assert not is_alive(stranger.pid)


class Looks:
    """Counts how often all processes are looked at, and in which threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self._look = process_table.read_all
        monkeypatch.setattr(process_table, "read_all", self)

    def __call__(self) -> object:
        self.threads.append(threading.get_ident())
        return self._look()


async def test_one_look_is_for_all_groups_and_beside_the_loop(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[ProcessRecord] = []
    for _ in range(5):
        process = await spawn("trap '' TERM; echo ready; while :; do sleep 0.05; done")
        assert await line(process) == "ready"
        groups.append(identify(process.pid))
    looks = Looks(monkeypatch)
    await end_groups(groups, term_s=0.0, kill_s=0.0)
    assert len(looks.threads) in (2, 3, 4)  # before the first signal, after each, and once more to be sure
    assert threading.get_ident() not in looks.threads


async def test_a_group_that_is_gone_costs_one_look(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may have left it before."""
    quick = await spawn("true")
    group = identify(quick.pid)
    await exit_code(quick)
    looks = Looks(monkeypatch)
    assert await end_groups([group], term_s=0.0, kill_s=0.0) == []
    assert len(looks.threads) == 1


async def test_groups_of_another_boot_cost_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch)
    assert await end_groups([ProcessRecord(1234, "another-boot:77")], term_s=0.0, kill_s=0.0) == []
    assert looks.threads == []


async def test_without_proc_a_whole_group_is_ended(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "_PROC", NO_PROC)
    leader = await spawn("sleep 300 & echo ready; wait")
    assert await line(leader) == "ready"
    assert await end_groups([identify(leader.pid)], term_s=LIMIT_S) == []
    assert await output_ends(leader) == ""


async def test_without_proc_a_stranger_with_the_number_is_left_alone(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_table, "_PROC", NO_PROC)
    somebody = await spawn("echo ready; read -r line; echo $line")
    assert await line(somebody) == "ready"
    now = identify(somebody.pid)
    boot = now.started.partition(":")[0]
    for recorded in (f"{boot}:Tue Mar 3 09:05:07 2020", f"{boot}:", "another-boot:", f"another-boot{now.started}", ""):
        assert await end_groups([ProcessRecord(now.pgid, recorded)], term_s=0.0, kill_s=0.0) == []
    assert somebody.stdin is not None
    somebody.stdin.write(b"alive\n")
    assert await line(somebody) == "alive"


async def test_where_nobody_knows_start_times_only_the_own_groups_are_ended(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier server recorded may be a stranger's by now, so it is left alone."""
    monkeypatch.setattr(process_table, "_PROC", NO_PROC)
    monkeypatch.setattr(process_table, "_PS", ("/no/ps/here",))
    ours = await spawn("echo ready; read -r line")
    assert await line(ours) == "ready"
    now = identify(ours.pid)
    with monkeypatch.context() as patch:
        patch.setattr(process_groups, "_THIS_SERVER", "another-server")
        assert await end_groups([now], term_s=0.0, kill_s=0.0) == []
    assert ours.returncode is None
    assert await end_groups([now], term_s=LIMIT_S) == []
    assert await exit_code(ours) == -signal.SIGTERM


# Those that leave their group. They carry its mark, as every process does that a tool starts.

FAR = """
import os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
held = socket.create_server(("127.0.0.1", 0))
os.write(1, f"{os.getpid()} {held.getsockname()[1]}\\n".encode())
null = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(null, fd)
signal.pause()
"""


@pytest.fixture
async def tool(spawn: Spawn) -> Callable[[str], Awaitable[tuple[Process, ProcessRecord]]]:
    """Starts a script with its group's mark in the environment, the way tools do."""

    async def start(script: str) -> tuple[Process, ProcessRecord]:
        leader = await spawn(f"IFS= read -r {process_table.MARK}; export {process_table.MARK}; {script}")
        group = identify(leader.pid)
        assert leader.stdin is not None
        leader.stdin.write(f"{process_groups.mark_of(group)}\n".encode())
        return leader, group

    return start


Tool = Callable[[str], Awaitable[tuple[Process, ProcessRecord]]]


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@needs_proc
async def test_a_daemon_that_left_everything_and_is_deaf_keeps_no_port(tool: Tool, tmp_path: Path) -> None:
    """Forked twice, in a session of its own, its parents gone, SIGTERM ignored: only its mark tells whose it is."""
    (tmp_path / "far.py").write_text(FAR)
    leader, group = await tool(f"{sys.executable} {tmp_path / 'far.py'}; sleep 300")
    pid, port = map(int, (await line(leader)).split())
    assert process_table.read_one(pid) is not None
    assert os.getpgid(pid) != group.pgid
    assert not is_free(port)
    assert await end_groups([group], term_s=0.1, kill_s=LIMIT_S) == []
    assert not is_alive(pid)
    assert is_free(port)


@needs_proc
async def test_a_daemon_is_found_when_its_whole_group_is_gone(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "far.py").write_text(FAR)
    leader, group = await tool(f"{sys.executable} {tmp_path / 'far.py'}")
    pid, port = map(int, (await line(leader)).split())
    assert await exit_code(leader) == 0
    assert [str(pid) in name for name in await process_groups.members(group)] == [True]
    assert await end_groups([group], term_s=0.1, kill_s=LIMIT_S) == []
    assert not is_alive(pid)
    assert is_free(port)
    assert await process_groups.members(group) == []


@needs_proc
async def test_a_child_without_its_environment_is_found_by_its_parents(tool: Tool) -> None:
    leader, group = await tool("env -i setsid sh -c 'echo $$; exec sleep 300'; true")
    pid = int(await line(leader))
    assert await end_groups([group], term_s=LIMIT_S) == []
    assert not is_alive(pid)


@needs_proc
async def test_an_orphan_without_its_environment_is_found_by_its_session(tool: Tool) -> None:
    orphan = "import os; os.fork() and os._exit(0); os.setpgid(0, 0); print(os.getpid(), flush=True);"
    bare = 'os.execve("/bin/sleep", ["sleep", "300"], {})'
    leader, group = await tool(f"{sys.executable} -c '{orphan} {bare}'; sleep 300")
    pid = int(await line(leader))
    assert os.getpgid(pid) != group.pgid
    assert await end_groups([group], term_s=LIMIT_S) == []
    assert not is_alive(pid)


@needs_proc
async def test_children_that_are_born_while_the_others_die_are_ended(tool: Tool, tmp_path: Path) -> None:
    """Each one that is told to end starts another in a session of its own."""
    again = "trap 'setsid sh \"$0\" & exit' TERM; echo $$; while :; do sleep 0.05; done"
    (tmp_path / "again.sh").write_text(again)
    leader, group = await tool(f"sh {tmp_path / 'again.sh'}")
    await line(leader)
    assert await end_groups([group], term_s=0.3, kill_s=LIMIT_S) == []
    assert await process_groups.members(group) == []
    assert await output_ends(leader) is not None, "nobody holds its output any more"


@needs_proc
async def test_another_group_of_the_same_server_is_left_alone(tool: Tool) -> None:
    _, ended = await tool("echo ready; sleep 300")
    other, kept = await tool("setsid sh -c 'echo $$; exec sleep 300' & wait")
    pid = int(await line(other))
    assert await end_groups([ended], term_s=LIMIT_S) == []
    assert is_alive(pid)
    assert await end_groups([kept], term_s=LIMIT_S) == []
    assert not is_alive(pid)


@needs_proc
async def test_a_server_that_carries_a_mark_does_not_end_itself(tool: Tool) -> None:
    """One that a tool of an earlier server started, which is ended now."""
    script = f"exec {sys.executable} -m tests.engine.marked_server"
    leader, group = await tool(script)
    assert leader.stdin is not None
    leader.stdin.write(f"{group.pgid} {group.started}\n".encode())
    assert await line(leader) == "[]"
    assert await exit_code(leader) == 0


async def test_without_proc_a_group_that_is_gone_is_not_looked_for(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = await spawn("true")
    group = identify(quick.pid)
    await exit_code(quick)
    monkeypatch.setattr(process_table, "_PROC", NO_PROC)
    looks = Looks(monkeypatch)
    assert await process_groups.members(group) == []
    assert looks.threads == []
