"""Children that need not start Python: a process that has imported what they need, and forks one when it is asked.

What is forked is a process like any other, with a memory and a death of its own; only its imports were done before.
Speaks JSON, a line each: what to run comes in, `{"pid"}` and, when it is over, `{"code"}` go out; then, when a line was
read, its number may be used again, which `{"reaped"}` tells: until then it counts as a living owner of its directory.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from kedge import failpoints

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 40.0


class Nursery:
    """The process, from outside."""

    def __init__(self) -> None:
        # Unbuffered: a second line that was read with the first would not be seen by `select`.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            bufsize=0,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(
        self, module: str, *args: str, env: Mapping[str, str], out: Path, errors: Path, after_s: float | None = None
    ) -> int:
        """The code of `module.main(*args)`, as subprocess has it. After `after_s` seconds it is killed."""
        self._say({"module": module, "args": args, "env": dict(env), "out": str(out), "errors": str(errors)})
        pid = self._hear(LIMIT_S)["pid"]
        try:
            ended = self._hear(LIMIT_S if after_s is None else after_s)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            ended = self._hear(LIMIT_S)
            if after_s is None:
                raise
        finally:
            self._say({})
            assert self._hear(LIMIT_S)["reaped"] == pid
        return ended["code"]

    def _say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def _hear(self, limit_s: float) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], limit_s)[0]:
            raise TimeoutError
        line = out.readline()
        assert line, "the nursery is gone"
        return json.loads(line)


@functools.cache
def nursery() -> Nursery:
    """One for each worker, which ends with it: it reads no more."""
    return Nursery()


def main(asked: IO[bytes]) -> None:
    for line in asked:
        order: dict[str, Any] = json.loads(line)
        import_module(order["module"])  # once, for all that follow
        pid = os.fork()
        if pid == 0:
            grow_up(order)
        tell(pid=pid)
        over = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert over is not None
        tell(code=over.si_status if over.si_code == os.CLD_EXITED else -over.si_status)
        asked.readline()
        os.waitpid(pid, 0)
        tell(reaped=pid)


def tell(**message: int) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def grow_up(order: dict[str, Any]) -> NoReturn:
    """As if it had been started so: its own files, its own environment, and its failpoints armed."""
    code = 1
    try:
        for number, name, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, order["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            opened = os.open(name, flags, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        os.environ.clear()
        os.environ.update(order["env"])
        if place := os.environ.get("KEDGE_FAILPOINT"):
            failpoints._arm_from_environment(place)
        import_module(order["module"]).main(*order["args"])
        code = 0
    except BaseException:  # noqa: BLE001 - the boundary: what Python would print is printed
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.stdin.buffer)
