"""Children that die: starting them, killing them, and what they had acknowledged by then."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.nursery import LIMIT_S, ROOT, nursery

__all__ = ["LIMIT_S", "ROOT", "Ack", "Died", "acknowledged", "environment", "places_passed", "run_child"]


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
    env = environment(variables)
    code = nursery().run("tests.faults.child", mode, str(root), env=env, out=out, errors=errors, after_s=after_s)
    return Died(code, acknowledged(out.read_bytes()), errors.read_text())


def acknowledged(output: bytes) -> list[Ack]:
    """Whole lines only: what a caller read."""
    lines = [json.loads(line) for line in output.split(b"\n")[:-1]]
    return [Ack(line.pop("ack"), line) for line in lines]


def places_passed(mode: str, root: Path, env: Mapping[str, str] | None = None) -> dict[str, int]:
    record = root / "record"
    died = run_child(mode, root, env={**(env or {}), "KEDGE_RECORD": str(record)})
    assert died.code == 0, died.errors
    return json.loads(record.read_bytes())
