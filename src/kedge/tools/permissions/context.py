"""What surrounds a command line while it is checked: the rules, the directories it may run in, and its programs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kedge.tools.permissions.decisions import Refuse
from kedge.tools.permissions.paths import MAX_DIRECTORIES, Directories, change_directory, resolve_all
from kedge.tools.permissions.policy import Found, Policy, Reason
from kedge.tools.permissions.programs import Programs
from kedge.tools.permissions.shell.parse import Line, Word
from kedge.tools.permissions.shell.wrappers import possible_commands

MAX_SHOWN_CHARS = 120


class Shell(msgspec.Struct, frozen=True):
    """What runs the command line, and whether a read-only sandbox can be had for it."""

    programs: Programs
    is_bash: bool = True  # another shell may read the line in another way
    has_sandbox: bool = False


class Context(msgspec.Struct, frozen=True):
    policy: Policy
    shell: Shell
    directories: Directories  # that the commands of the line may run in

    @classmethod
    def of(cls, policy: Policy, shell: Shell, line: Line, directory: str) -> Context:
        """`directory`: where the line starts, resolved."""
        return cls(policy, shell, find_directories(line, directory))

    def find_paths(self, word: Word) -> tuple[str, ...] | None:
        """Every path that a word may mean, resolved; None: not known."""
        if word.text is None:
            return None
        return resolve_all(self.directories, word.text, is_glob=word.is_glob)


def find_directories(line: Line, directory: str) -> Directories:
    """The directories that the commands of a line may run in; None: not known."""
    found: Directories = frozenset({directory})
    targets: list[str] = []
    for command in line.commands:
        for words in possible_commands(command.words):
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


def merge(found: Sequence[Found]) -> Refuse | list[Reason]:
    """The first refusal, else all reasons to ask."""
    reasons: list[Reason] = []
    for each in found:
        if isinstance(each, Refuse):
            return each
        if isinstance(each, list):
            reasons += each
    return reasons


def show(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_SHOWN_CHARS else flat[: MAX_SHOWN_CHARS - 1] + "…"
