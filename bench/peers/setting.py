"""What all measurements share: the model's address, and those who are compared, each with a home and a directory to
work in that were made for this run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.peers import known
from bench.peers.peers import Peer

HELLO = "hello.txt"  # the file that the model asks for


@dataclass(frozen=True)
class Contender:
    """A peer that is here, ready to be asked."""

    peer: Peer
    home: Path
    workspace: Path
    env: dict[str, str]

    @classmethod
    def ready(cls, peer: Peer, directory: Path, model_url: str) -> Contender:
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

    def one_shot(self, prompt: str) -> list[str]:
        return self.peer.one_shot(known.where(self.peer), prompt)


@dataclass(frozen=True)
class Setting:
    contenders: tuple[Contender, ...]  # Kedge is the first
    model_url: str  # with /v1
    model_pid: int
    rounds: int
    patience_s: float  # how long a sample waits for a quiet machine
