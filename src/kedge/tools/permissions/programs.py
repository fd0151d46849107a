"""Where the programs of a command line lie: what a repository or its virtual environment brings is never read-only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kedge.tools.paths import is_inside
from kedge.tools.permissions.shell.parse import names

_BUILTINS = names(
    ": . [ alias bg break builtin cd command continue declare dirs disown echo eval exec exit export false fg getopts"
    " hash jobs let local popd printf pushd pwd read readonly return set shift shopt source test times trap true"
    " type typeset ulimit umask unalias unset wait"
)
_SYSTEM_DIRECTORIES = ("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin")


class Programs(msgspec.Struct, frozen=True):
    """Programs as the shell finds them. `workspace` and `scratch` are resolved."""

    path: str
    workspace: str
    scratch: str | None = None

    @classmethod
    def of(cls, env: Mapping[str, str], workspace: str, scratch: str | None) -> Programs:
        return cls(env.get("PATH") or os.defpath, workspace, scratch)

    def is_foreign(self, name: str, *, is_wrapped: bool = False) -> bool:
        """Whether the workspace decides what runs under this name. `is_wrapped`: another program starts it."""
        if name in _BUILTINS and not is_wrapped:
            return False
        if "/" in name:
            return str(Path(name).parent) not in _SYSTEM_DIRECTORIES
        for entry in self.path.split(os.pathsep):
            found = shutil.which(name, path=entry) if entry.startswith("/") else None
            if not entry.startswith("/") or (found is not None and self._is_here(entry, found)):
                return True  # `.` and its like: whatever the current directory holds
            if found is not None:
                return False
        return False  # there is no such program

    def _is_here(self, entry: str, found: str) -> bool:
        places = [Path(place) for place in (self.workspace, self.scratch) if place]
        paths = [Path(entry), Path(os.path.realpath(entry)), Path(os.path.realpath(found))]
        return any(is_inside(path, place) for path in paths for place in places)
