"""The peers: which version, where it comes from, how it is told to use the scripted model, and how it is asked.

Each gets a home of its own with nothing in it but what stands here; telemetry and looking for updates are off. Where a
package brings a native program behind a script that starts it, the program is asked: that is the peer at its best.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

MODEL = "fake-model"
KEY = "key-for-benchmarks"
_PASSED_ON = ("PATH", "LANG", "TERM")  # of our own environment; everything else is the peer's own


@dataclass(frozen=True)
class Npm:
    """Packages with their versions."""

    packages: tuple[str, ...]


@dataclass(frozen=True)
class PyPI:
    """A package with its version, and the Python it is for."""

    package: str
    python: tuple[int, int]


@dataclass(frozen=True)
class Tool:
    """How its model asks for a file; `$workspace` stands for the directory."""

    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True)
class Peer:
    """In `files` and `variables`, `$url` is the model's address with /v1, `$origin` the same without, `$home` its
    home, `$model` and `$key` what they say; in arguments, `$prompt` is the prompt, and `$port` its server's."""

    name: str
    version: str
    source: Npm | PyPI | None
    executable: str  # below its installation
    run: tuple[str, ...]  # arguments of a one-shot run
    files: Mapping[str, str] = field(default_factory=dict[str, str])  # below its home
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    before: tuple[str, ...] = ()  # what starts the executable, where it is a script: $install stands for its directory
    serve: tuple[str, ...] = ()  # arguments that start a server which one-shot runs can use; it says when it listens
    attached: tuple[str, ...] = ()  # arguments of such a run, where they are others
    tool: Tool | None = None
    remark: str = ""

    def program(self, install_dir: Path) -> Path:
        return install_dir / self.executable

    def command(self, install_dir: Path, *args: str) -> list[str]:
        """The program with any arguments."""
        before = [Template(word).substitute(install=install_dir) for word in self.before]
        return [*before, str(self.program(install_dir)), *args]

    def one_shot(self, install_dir: Path, prompt: str, port: int | None = None) -> list[str]:
        """With the port of its server, a run that uses it."""
        words = self.attached if port and self.attached else self.run
        return self.command(install_dir, *(Template(word).substitute(prompt=prompt, port=port) for word in words))

    def environment(self, home: Path, model_base_url: str) -> dict[str, str]:
        """All of it: nothing is inherited but what a program cannot do without."""
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        own = {name: _filled(value, home, model_base_url) for name, value in self.variables.items()}
        return {
            **kept,
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_DATA_HOME": str(home / ".local" / "share"),
            "XDG_STATE_HOME": str(home / ".local" / "state"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "NO_PROXY": "127.0.0.1,localhost",
            "DO_NOT_TRACK": "1",
            "OPENAI_API_KEY": KEY,
            **own,
        }

    def prepare(self, home: Path, model_base_url: str) -> None:
        (home / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in self.files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_filled(text, home, model_base_url))


def _filled(text: str, home: Path, url: str) -> str:
    return Template(text).substitute(url=url, origin=url.removesuffix("/v1"), home=home, model=MODEL, key=KEY)
