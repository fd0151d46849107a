"""Children that die: starting them, killing them, and what they had acknowledged by then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 40.0


class Ack(NamedTuple):
    what: str
    facts: dict[str, Any]


class Died(NamedTuple):
    code: int
    acks: list[Ack]
    errors: str

    @property
    def is_killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def of(self, what: str) -> list[dict[str, Any]]:
        return [ack.facts for ack in self.acks if ack.what == what]


def environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KEDGE_")}
    return {**kept, **more}


def run_child(
    mode: str,
    root: Path,
    *,
    kill_at: str | None = None,
    after_s: float | None = None,
    env: Mapping[str, str] | None = None,
) -> Died:
    """Until it is done, dies at the failpoint `kill_at` (NAME or NAME@HIT), or is killed after `after_s` seconds."""
    variables = dict(env or {})
    if kill_at is not None:
        name, _, hit = kill_at.partition("@")
        variables["KEDGE_FAILPOINT"] = f"{name}=kill@{hit or 1}"
    # Files, not pipes: a process that the child left behind would hold a pipe open.
    out, errors = root / "acks", root / "errors"
    with out.open("wb") as stdout, errors.open("wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.child", mode, str(root)],
            cwd=ROOT,
            env=environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        try:
            code = _wait(child, after_s)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    return Died(code, acknowledged(out.read_bytes()), errors.read_text())


def _wait(child: subprocess.Popen[bytes], after_s: float | None) -> int:
    if after_s is not None:
        try:
            return child.wait(after_s)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait(LIMIT_S)


def acknowledged(output: bytes) -> list[Ack]:
    """Whole lines only: what a caller read."""
    lines = [json.loads(line) for line in output.split(b"\n")[:-1]]
    return [Ack(line.pop("ack"), line) for line in lines]


def places_passed(mode: str, root: Path, env: Mapping[str, str] | None = None) -> dict[str, int]:
    record = root / "record"
    died = run_child(mode, root, env={**(env or {}), "KEDGE_RECORD": str(record)})
    assert died.code == 0, died.errors
    return json.loads(record.read_bytes())
