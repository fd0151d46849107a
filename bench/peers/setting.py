"""What all measurements share: the model's address, and those who are compared, each with a home and a directory to
work in that were made for this run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.peers import known
from bench.peers.peers import Peer
from bench.peers.quiet import Quiet
from tests.support.model_control import ModelControl


@dataclass(frozen=True)
class Contender:
    """A peer that is here, ready to be asked."""

    peer: Peer
    home: Path
    workspace: Path
    env: dict[str, str]

    @classmethod
    def ready(cls, peer: Peer, directory: Path, model_url: str) -> Contender:
        """With its home in this directory, which is made."""
        home = directory / peer.name
        workspace = home / "workspace"
        workspace.mkdir(parents=True)
        peer.prepare(home, model_url)
        return cls(peer, home, workspace, peer.environment(home, model_url))

    @property
    def name(self) -> str:
        return self.peer.name

    def command(self, *args: str) -> list[str]:
        return self.peer.command(known.where(self.peer), *args)

    def start(self, command: list[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
        """At home, in a process group of its own; all that it says is kept."""
        return subprocess.Popen(
            command,
            env=self.env,
            cwd=self.workspace,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )

    def one_shot(self, prompt: str, port: int | None = None) -> list[str]:
        return self.peer.one_shot(known.where(self.peer), prompt, port)


@dataclass(frozen=True)
class Setting:
    directory: Path  # for more homes; it goes away with the run
    contenders: tuple[Contender, ...]  # Kedge is the first
    model: ModelControl
    model_pid: int
    rounds: int
    warm_up: int  # rounds before them that do not count: caches are filled, and what is done once is done
    quiet: Quiet
