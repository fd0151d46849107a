"""A shell that a reader would have open: it lives from block to block, so that one finds what the last one left."""

from __future__ import annotations

import select
import subprocess
from pathlib import Path

from tests.docs.pages import Step

LIMIT_S = 30.0

# What is read are the names of files with commands; what is printed are their exit codes.
_LOOP = 'while read -r file; do . "$file" >"$file.out" 2>&1 </dev/null; echo $?; done'


class Shell:
    def __init__(self, directory: Path, scratch: Path, env: dict[str, str], limit_s: float = LIMIT_S) -> None:
        self._scratch = scratch
        self._limit_s = limit_s
        self._count = 0
        self._code = 0
        self._process = subprocess.Popen(
            ["sh", "-c", _LOOP], cwd=directory, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._typed, self._codes = self._process.stdin, self._process.stdout

    def type(self, step: Step) -> tuple[int | None, str]:
        """The exit code and what was printed; no code: the shell itself has left, because a command failed."""
        self._count += 1
        file = self._scratch / f"{self._count}.sh"
        if step.printed is None:
            file.write_text(f"set -e\n{step.command}\nset +e\n")
        else:
            file.write_text(f"(exit {self._code})\n{step.command}\n")  # `$?` is the last command's, not ours
        code = self._run(file)
        self._code = code or 0
        return code, (self._scratch / f"{file.name}.out").read_text()

    def close(self) -> None:
        self._typed.close()
        self._process.wait(LIMIT_S)
        self._codes.close()

    def _run(self, file: Path) -> int | None:
        self._typed.write(f"{file}\n")
        self._typed.flush()
        ready, _, _ = select.select([self._codes], [], [], self._limit_s)
        assert ready, f"not done after {self._limit_s} s:\n{file.read_text()}"
        line = self._codes.readline()
        return int(line) if line else None
