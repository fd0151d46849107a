"""Puts the shells' completion into the wheel as it is built, made by the `kedge completion` of the same source.

The commands' tables need nothing but Python, which is all that a build has.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Under an environment's prefix, where each shell looks for what packages bring.
PLACES = {
    "bash": "share/bash-completion/completions/kedge",
    "zsh": "share/zsh/site-functions/_kedge",
    "fish": "share/fish/vendor_completions.d/kedge.fish",
}


class CompletionHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        made = tempfile.TemporaryDirectory(prefix="kedge-completion-")
        self.made = made  # removed when the build is done with this hook
        for shell, place in PLACES.items():
            script = Path(made.name) / shell
            script.write_bytes(self._completion(shell))
            build_data["shared_data"][str(script)] = place

    def _completion(self, shell: str) -> bytes:
        # -B: the source stays as it was found; -S: what works here works where nothing is installed.
        command = [sys.executable, "-B", "-S", "-m", "kedge", "completion", shell]
        return subprocess.run(command, cwd=Path(self.root) / "src", stdout=subprocess.PIPE, check=True).stdout
