"""`kedge` as a process: run to its end, or driven while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tests.server.process import Place

LIMIT_S = 30.0


class Done:
    """What a command left behind."""

    def __init__(self, code: int, out: bytes | None, err: bytes | None) -> None:
        self.code = code
        self.out = (out or b"").decode()
        self.err = (err or b"").decode()

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


class Kedge:
    def __init__(self, place: Place, workspace: Path) -> None:
        self.place = place
        self.workspace = workspace

    def __call__(
        self, *args: str, stdin: bytes | int = subprocess.DEVNULL, env: Mapping[str, str] | None = None
    ) -> Done:
        process = self.start(*args, stdin=subprocess.PIPE if isinstance(stdin, bytes) else stdin, env=env)
        return finish(process, stdin if isinstance(stdin, bytes) else None)

    def run(self, *args: str, **options: Any) -> Done:
        return self("run", *args, **options)

    def start(
        self,
        *args: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
        before: str = "",
    ) -> subprocess.Popen[bytes]:
        """`before`: Python that runs first in the process."""
        code = f"import sys; from kedge.cli.main import main; {before}\nsys.exit(main({list(args)!r}))"
        return subprocess.Popen(
            [sys.executable, "-m", "kedge", *args] if not before else [sys.executable, "-c", code],
            cwd=self.workspace,
            env={**self.place.env, **(env or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    def server_pid(self) -> int | None:
        """Of the server that owns the data directory, if one does."""
        from kedge.client import server_process

        if server_process.is_free(str(self.place.data_dir)):
            return None
        return int((self.place.data_dir / "kedge.lock").read_text().split()[-1])

    def end_server(self) -> None:
        pid = self.server_pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + LIMIT_S
        while self.server_pid() == pid:
            assert time.monotonic() < until, f"server {pid} does not leave"
            time.sleep(0.01)


def read_until(stream: IO[bytes] | None, wanted: bytes) -> bytes:
    """What a process says, up to and with `wanted`."""
    assert stream is not None
    said = b""
    while wanted not in said:
        piece = os.read(stream.fileno(), 65536)
        assert piece, f"ended without saying {wanted!r}: {said!r}"
        said += piece
    return said


def finish(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> Done:
    try:
        out, err = process.communicate(stdin, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Done(process.returncode, out, err)
