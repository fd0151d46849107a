"""Kedge as its users have it, for benchmarks: real commands, the real server and agent; only the model is scripted.

All of it lives in a directory that goes away, on loopback, and is ended by whoever started it.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from measure import Samples, cpu_s_of, print_table, rss_of

from kedge.client.environment import ServerLocation
from kedge.client.errors import Dropped
from kedge.client.reconnect import Waiter
from kedge.client.transport import Transport
from kedge.protocol.address import TcpAddress, UnixAddress

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
KEDGE = str(Path(sys.executable).with_name("kedge"))
LIMIT_S = 60.0  # of every wait
LIFETIME_S = 3600.0  # of a model that nobody ends
_PR_SET_CHILD_SUBREAPER = 36


class Spent(NamedTuple):
    wall_s: float
    cpu_s: float


class Case:
    """Wall and CPU seconds of one command."""

    def __init__(self, name: str) -> None:
        self.wall = Samples(name)
        self.cpu = Samples(name)

    def add(self, spent: Spent) -> None:
        self.wall.seconds.append(spent.wall_s)
        self.cpu.seconds.append(spent.cpu_s)


def print_cases(title: str, cases: list[Case]) -> None:
    """Best and median, and their ratios to the first case."""
    base = cases[0]
    rows = [
        [
            case.wall.name,
            f"{case.wall.best * 1e3:.1f}",
            f"{case.wall.p50 * 1e3:.1f}",
            f"{case.cpu.p50 * 1e3:.1f}",
            f"{case.wall.best / base.wall.best:.2f}",
            f"{case.wall.p50 / base.wall.p50:.2f}",
            f"{case.cpu.p50 / base.cpu.p50:.2f}",
        ]
        for case in cases
    ]
    header = ["", "best ms", "p50 ms", "CPU p50 ms", "x best", "x p50", "x CPU"]
    print_table(title, header, rows)


def run(command: Sequence[str], env: dict[str, str], cwd: Path) -> Spent:
    """A command from its start to its exit, which must be a good one."""
    nowhere = subprocess.DEVNULL
    began = time.perf_counter()
    process = subprocess.Popen(command, env=env, cwd=cwd, stdin=nowhere, stdout=nowhere)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{command}: exit {process.returncode}"
    return Spent(wall_s, usage.ru_utime + usage.ru_stime)


class Server:
    """A server that runs, seen from outside."""

    def __init__(self, pid: int, address: UnixAddress) -> None:
        self.pid = pid
        self.address = address

    @property
    def rss_bytes(self) -> int:
        return rss_of(self.pid)

    @property
    def cpu_s(self) -> float:
        return cpu_s_of(self.pid)

    def transport(self) -> Transport:
        """A client with a connection of its own, which is kept open."""
        return Transport(
            ServerLocation(self.address, "", None, is_managed=False), Waiter(), client="bench", timeout_s=LIMIT_S
        )

    def join(self, directory: Path) -> str:
        """The path of a workspace's routes."""
        wire = self.transport()
        workspace = wire.request("POST", "/v1/workspaces", {"path": str(directory)})
        wire.close()
        return f"/v1/workspaces/{workspace['id']}"


class ModelRequests:
    """Sends requests to the controls of the scripted model."""

    def __init__(self, address: TcpAddress) -> None:
        self._connection = http.client.HTTPConnection(address.host, address.port, timeout=LIMIT_S)

    def request(self, method: str, path: str, body: object = None) -> Any:
        self._connection.request(method, path, None if body is None else json.dumps(body))
        response = self._connection.getresponse()
        data = response.read()
        assert response.status < 300, data
        return json.loads(data) if data else None

    def close(self) -> None:
        self._connection.close()


class Home:
    def __init__(self, directory: Path, model_port: int) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        self._runtime_dir = directory / "run"
        self._runtime_dir.mkdir(mode=0o700)
        self.model_address = TcpAddress("127.0.0.1", model_port)

    @property
    def env(self) -> dict[str, str]:
        without = ("KEDGE_", "XDG_", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
        return {
            **kept,
            "XDG_RUNTIME_DIR": str(self._runtime_dir),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "KEDGE_DATA_DIR": str(self.data_dir),
            "OPENAI_BASE_URL": f"http://{self.model_address.host}:{self.model_address.port}/v1",
            "OPENAI_API_KEY": "key-for-benchmarks",
            "KEDGE_MODEL": "openai/fake-model",
            "NO_PROXY": "127.0.0.1",
        }

    def model(self) -> ModelRequests:
        return ModelRequests(self.model_address)

    def address(self) -> UnixAddress | None:
        return next((UnixAddress(str(path)) for path in (self._runtime_dir / "kedge").glob("*.sock")), None)

    def run(self, *args: str) -> Spent:
        return run([KEDGE, *args], self.env, self.workspace)

    @contextmanager
    def serve(self) -> Generator[Server]:
        with started([PYTHON, "-m", "kedge", "serve"], self.env) as process:
            await_answer(process, self.address)
            address = self.address()
            assert address is not None
            yield Server(process.pid, address)

    def adopt(self) -> Server:
        """The server that a command left behind. It is ours to end: see `reap_orphans`."""
        address = self.address()
        assert address is not None
        return Server(int((self.data_dir / "kedge.lock").read_text().split()[-1]), address)


@contextmanager
def new_home() -> Generator[Home]:
    signal.signal(signal.SIGTERM, _leave)
    # Short, because the path of a Unix socket may have about a hundred characters.
    directory = Path(tempfile.mkdtemp(prefix="kedge-b-"))
    command = [PYTHON, "-m", "tests.support.model_server", "--lifetime-s", str(LIFETIME_S)]
    try:
        with started(command, dict(os.environ), stdout=subprocess.PIPE) as model:
            assert model.stdout is not None
            yield Home(directory, int(model.stdout.readline()))
    finally:
        shutil.rmtree(directory)


def _leave(signum: int, _: FrameType | None) -> None:
    """Whoever is ended ends what it started."""
    sys.exit(128 + signum)


@contextmanager
def started(
    command: Sequence[str], env: dict[str, str], stdout: int = subprocess.DEVNULL
) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stdout)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def await_answer(process: subprocess.Popen[bytes], where: Callable[[], UnixAddress | None]) -> None:
    """Return when `GET /v1/health` is answered for the first time."""
    until = time.monotonic() + LIMIT_S
    while True:
        assert process.poll() is None, f"the server ended: {process.returncode}"
        assert time.monotonic() < until, "the server does not answer"
        if (address := where()) is not None:
            wire = Server(process.pid, address).transport()
            try:
                wire.request("GET", "/v1/health")
                return
            except Dropped:
                pass
            finally:
                wire.close()
        time.sleep(0.001)


def reap_orphans() -> None:
    """What a command leaves behind, a server, becomes a child of ours: it can be ended and its CPU is counted."""
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def end_orphan(pid: int) -> Spent:
    began = time.perf_counter()
    os.kill(pid, signal.SIGTERM)
    _, _, usage = os.wait4(pid, 0)
    return Spent(time.perf_counter() - began, usage.ru_utime + usage.ru_stime)
