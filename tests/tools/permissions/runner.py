"""Runs a command as the judge decided, and tells what it changed: the effect is what counts, not what was read."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from kedge.config.schema import SandboxConfig
from kedge.tools.permissions.policy import Allow, Decision
from kedge.tools.process.environment import unapproved_environment
from kedge.tools.sandbox.launch import run_in_thread
from kedge.tools.sandbox.sandbox import Sandbox
from tests.tools.permissions.bench import Bench

LIMIT_S = 2


class Runner:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.env = {
            "PATH": f"{bench.workspace}/bin:{os.defpath}:/usr/local/bin",
            "HOME": str(bench.home),
            "SECRET_TOKEN": "hush",
        }
        self.sandbox = Sandbox(
            config=SandboxConfig(),
            directory=bench.workspace,
            scratch=bench.scratch,
            private=(bench.home / "private",),
            env=self.env,
        )

    def run(self, command: str, decision: Decision) -> str:
        """What it printed; empty if nobody would have let it run."""
        if not isinstance(decision, Allow):
            return ""
        env = unapproved_environment(self.env, self.bench.workspace, self.bench.scratch)
        words = ["bash", "-c", command]
        if decision.run_as != "sandboxed":
            return self._run(words, env)
        with tempfile.TemporaryDirectory(dir=self._temporary()) as temporary:
            launch_spec = self.sandbox.prepare_read_only(decision.readable)
            if launch_spec.with_temporary is not None:
                launch_spec = launch_spec.with_temporary(temporary)

            def start() -> str:
                launch_spec.restrict()
                return self._run([*launch_spec.prefix, *words], {**env, **launch_spec.env})

            return run_in_thread(start)

    def _temporary(self) -> Path:
        made = self.bench.scratch / "tmp"
        made.mkdir(exist_ok=True)
        return made

    def _run(self, words: list[str], env: dict[str, str]) -> str:
        done = subprocess.run(
            words,
            cwd=self.bench.workspace,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
        return done.stdout.decode("utf-8", "replace")

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Every file of the workspace and around it, with its size and time of change."""
        root = self.bench.workspace.parent
        found = [path for path in root.rglob("*") if not path.is_symlink()]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found if path.is_file()}
