"""A server as users have it: a process of its own, with its own data and runtime directories."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kedge.protocol.address import Address, TcpAddress, UnixAddress, parse
from tests.server.client import LIMIT_S, Client

ROOT = Path(__file__).resolve().parents[2]


class Place:
    """Where a server lives: survives the server, so that the next one finds what it left."""

    def __init__(self, directory: Path) -> None:
        self.runtime_dir = directory / "run"
        self.data_dir = directory / "data"
        self.config_dir = directory / "config"  # never the one of whoever runs the tests
        self.user_home = directory / "user"
        self.runtime_dir.mkdir(mode=0o700, exist_ok=True)
        self.user_home.mkdir(exist_ok=True)

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KEDGE_", "XDG_"))}
        return {
            **kept,
            "HOME": str(self.user_home),
            "XDG_RUNTIME_DIR": str(self.runtime_dir),
            "XDG_CONFIG_HOME": str(self.config_dir),
            "XDG_CONFIG_DIRS": str(self.config_dir / "system"),
            "KEDGE_DATA_DIR": str(self.data_dir),
        }

    @property
    def socket_path(self) -> Path:
        (path,) = (self.runtime_dir / "kedge").glob("*.sock")
        return path

    @property
    def log(self) -> str:
        return (self.data_dir / "server.log").read_text()

    def popen(
        self, *args: str, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = (), module: str = ""
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", module or "tests.server.scripted", *args]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            text=True,
        )

    def refused(self, *args: str, env: Mapping[str, str] | None = None) -> str:
        """Start a server that must not start; returns what it says, which is one line and exit code 2."""
        process = self.popen(*args, env=env)
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            process.communicate()
        assert (process.returncode, out) == (2, ""), (process.returncode, out, err)
        assert err.count("\n") == 1, err
        return err.removeprefix("kedge: ").rstrip()

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> Server:
        return Server(self, self.popen(*args, env=env))


class Server:
    def __init__(self, place: Place, process: subprocess.Popen[str]) -> None:
        self.place = place
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            out, err = process.communicate(timeout=LIMIT_S)
            raise AssertionError(f"the server did not start: {process.returncode} {out} {err}")
        assert line.startswith("kedge: listening on "), line
        self.addresses: list[Address] = [
            parse(address) for address in line.removeprefix("kedge: listening on ").strip().split(", ")
        ]

    @property
    def unix(self) -> UnixAddress:
        return next(address for address in self.addresses if isinstance(address, UnixAddress))

    @property
    def tcp(self) -> TcpAddress:
        return next(address for address in self.addresses if isinstance(address, TcpAddress))

    @property
    def client(self) -> Client:
        return Client(self.unix)

    @property
    def token(self) -> str:
        return (self.place.data_dir / "token").read_text().strip()

    def signal(self, sig: signal.Signals) -> None:
        self.process.send_signal(sig)

    def left(self) -> int:
        """The exit code of a server that was told to leave."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert "Traceback" not in out + err, out + err
        return self.process.returncode

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.left()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=LIMIT_S)
