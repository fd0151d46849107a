"""A user with a home, a system around it, and a workspace in a repository: real files, in a directory of the test."""

from __future__ import annotations

import textwrap
from pathlib import Path

from kedge.config.files import ConfigPaths
from kedge.config.load import Loaded, Loader


class Home:
    def __init__(self, root: Path) -> None:
        self.system = root / "etc" / "kedge" / "config.toml"
        self.user = root / "home" / ".config" / "kedge" / "config.toml"
        self.repository = root / "src" / "repository"
        self.workspace = self.repository / "packages" / "one"
        self.outer = self.repository / "kedge.toml"
        self.inner = self.workspace / "kedge.toml"
        self.env = {"HOME": str(root / "home")}
        self.workspace.mkdir(parents=True)
        (self.repository / ".git").mkdir()
        self.loader = Loader(ConfigPaths((self.system,), self.user))

    def write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))

    def trust(self, directory: Path) -> None:
        self.write(self.user, f"trusted = ['{directory}']\n")

    def load(self, **env: str) -> Loaded:
        return self.load_in(self.workspace, **env)

    def load_in(self, directory: Path, **env: str) -> Loaded:
        return self.loader.load(directory, {**self.env, **env})
