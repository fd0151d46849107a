"""The context in which a command line is checked: policy, shell, programs, and the directories it may run in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kedge.protocol.text_safety import shorten
from kedge.tools.permissions.paths import MAX_DIRECTORIES, Directories, change_directory, resolve_all
from kedge.tools.permissions.policy import Deny, Policy, Reason, Verdict
from kedge.tools.permissions.shell import Line, Word, names
from kedge.tools.permissions.wrappers import find_possible_commands

_BUILTINS = names(
    ": . [ alias bg break builtin cd command continue declare dirs disown echo eval exec exit export false fg getopts"
    " hash jobs let local popd printf pushd pwd read readonly return set shift shopt source test times trap true"
    " type typeset ulimit umask unalias unset wait"
)
_SYSTEM_DIRECTORIES = ("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin")


class Programs(msgspec.Struct, frozen=True):
    """Finds programs as the shell does: those of the workspace or its virtual environment are never read-only.

    `path` is the value of PATH; `workspace` and `scratch` are resolved."""

    path: str
    workspace: str
    scratch: str | None = None

    def is_from_workspace(self, name: str, *, is_wrapped: bool = False) -> bool:
        """Whether the workspace controls which program this name runs. `is_wrapped`: another program starts it."""
        if name in _BUILTINS and not is_wrapped:
            return False
        if "/" in name:
            return str(Path(name).parent) not in _SYSTEM_DIRECTORIES
        for entry in self.path.split(os.pathsep):
            found = shutil.which(name, path=entry) if entry.startswith("/") else None
            if not entry.startswith("/") or (found is not None and self._is_inside(entry, found)):
                return True  # a relative entry like `.` means the current directory
            if found is not None:
                return False
        return False  # there is no such program

    def _is_inside(self, entry: str, found: str) -> bool:
        roots = [root for root in (self.workspace, self.scratch) if root]
        paths = [Path(entry), Path(os.path.realpath(entry)), Path(os.path.realpath(found))]
        return any(path.is_relative_to(root) for path in paths for root in roots)


MAX_SHOWN_CHARS = 120


class Shell(msgspec.Struct, frozen=True):
    """The shell that runs the command line, and whether a read-only sandbox is available for it."""

    programs: Programs
    is_bash: bool = True  # another shell may read the line differently
    has_sandbox: bool = False


class Context(msgspec.Struct, frozen=True):
    policy: Policy
    shell: Shell
    directories: Directories  # in which the commands of the line may run

    @classmethod
    def of(cls, policy: Policy, shell: Shell, line: Line, directory: str) -> Context:
        """`directory`: where the line starts, resolved."""
        return cls(policy, shell, find_directories(line, directory))

    def find_paths(self, word: Word) -> tuple[str, ...] | None:
        """Every path that a word may mean, resolved; None if that is unknown."""
        if word.text is None:
            return None
        return resolve_all(self.directories, word.text, is_glob=word.is_glob)


def find_directories(line: Line, directory: str) -> Directories:
    """The directories in which the commands of a line may run; None if unknown."""
    found: Directories = frozenset({directory})
    targets: list[str] = []
    for command in line.commands:
        for words in find_possible_commands(command.words):
            name = words[0].text
            if name == "cd":
                if len(words) != 2 or words[1].text in (None, "", "-") or words[1].is_glob:
                    return None
                targets.append(words[1].shown)
            elif name in ("pushd", "popd"):
                return None
        if command.words[0].text in ("source", ".", "eval"):
            return None
    for _ in range(min(len(targets), MAX_DIRECTORIES)):
        before = found
        for target in dict.fromkeys(targets):
            found = change_directory(found, target)
        if found == before:
            break
    return found


def merge(found: Sequence[Verdict]) -> Deny | list[Reason]:
    """The first denial, else all reasons to ask."""
    reasons: list[Reason] = []
    for each in found:
        if isinstance(each, Deny):
            return each
        if isinstance(each, list):
            reasons += each
    return reasons


def show(text: str) -> str:
    """A command on one line, shortened."""
    return shorten(text, MAX_SHOWN_CHARS)
