"""`Bench`: a workspace with hostile links, file names and planted repositories, and judges for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from kedge.config.schema import PermissionsConfig
from kedge.protocol.runs import Mode, Permissions, RunOptions
from kedge.tools.permissions.judge import Judge
from kedge.tools.permissions.policy import Decision
from kedge.tools.port import Access, AccessKind


class Bench:
    def __init__(self, directory: Path) -> None:
        directory = Path(os.path.realpath(directory))
        self.workspace = directory / "workspace"
        self.scratch = directory / "scratch"
        self.home = directory / "home"
        self.outside = directory / "outside.txt"
        for made in (self.workspace / "src", self.workspace / "dashes", self.scratch, self.home / ".ssh"):
            made.mkdir(parents=True)
        for name in ("a.txt", "a.json", "src/main.py", "dashes/-o", ".env"):
            (self.workspace / name).write_text("text\n")
        self.outside.write_text("outside\n")
        (self.workspace / ".git").mkdir()
        (self.workspace / "link-out").symlink_to(self.outside)
        (self.workspace / "link-in").symlink_to("a.txt")
        (self.workspace / "link-dir").symlink_to(self.home)
        (self.workspace / "link-proc").symlink_to("/proc/self/cwd")
        (self.workspace / "link-loop").symlink_to("link-loop")
        planted = self.workspace / "planted"
        for name in ("objects", "refs"):
            (planted / name).mkdir(parents=True)
        (planted / "HEAD").write_text("ref: refs/heads/main\n")
        (self.workspace / "planted-link" / "objects").mkdir(parents=True)
        (self.workspace / "planted-link" / "HEAD").symlink_to("refs/heads/nowhere")
        (self.workspace / "planted-apart").mkdir()
        (self.workspace / "planted-apart" / "HEAD").write_text("ref: refs/heads/main\n")
        (self.workspace / "planted-apart" / "commondir").write_text("../planted\n")

    def judge(
        self,
        mode: Mode = "ask",
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        *,
        grants: Sequence[str] = (),
        permissions: Permissions = "ask",
        is_skipped: bool = False,
        unapproved: Literal["sandbox", "ask"] = "sandbox",
        env: Mapping[str, str] | None = None,
    ) -> Judge:
        return Judge(
            PermissionsConfig(mode=mode, allow=tuple(allow), deny=tuple(deny), unapproved=unapproved),
            RunOptions(),
            permissions,
            directory=self.workspace,
            scratch=self.scratch,
            home=str(self.home),
            grants=grants,
            is_skipped=is_skipped,
            env=env,
        )

    def outcome(self, judge: Judge, command: str, **params: Any) -> str:
        return kind_of(self.decide(judge, command, **params))

    def decide(
        self, judge: Judge, command: str, *, has_sandbox: bool = True, unsandboxed: bool = False, **params: Any
    ) -> Decision:
        command = command.replace("SCRATCH", str(self.scratch))
        access = Access(
            kind="execute",
            subject=command,
            description="run it",
            params=params,
            can_sandbox=has_sandbox,
            unsandboxed=unsandboxed,
        )
        return judge.judge("bash", access)

    def path_outcome(self, judge: Judge, tool: str, kind: AccessKind, path: Path | str) -> str:
        return kind_of(judge.judge(tool, Access(kind=kind, subject=str(path), description="touch it")))


def kind_of(decision: Decision) -> str:
    return type(decision).__name__.lower()
