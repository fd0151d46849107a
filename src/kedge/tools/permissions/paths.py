"""Where a call stands: the workspace, what may be read or written there without asking, and how its paths resolve."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

import msgspec

from kedge.tools.paths import is_inside
from kedge.tools.permissions.shell.parse import names

MAX_ENTRIES = 20_000  # of directories that are listed for one wildcard
MAX_MATCHES = 2000  # of one wildcard: what it stands for is looked at, and this many can be
MAX_LINKS = 40  # as the kernel
MAX_DIRECTORIES = 8  # that a command may be in, after its `cd`s
HARMLESS_DEVICES = frozenset({"/dev/null", "/dev/zero", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty"})
_SECRET_NAMES = names(
    ".env .env.* *.pem *.key *.p12 *.pfx *.kdbx id_rsa* id_dsa* id_ecdsa* id_ed25519* .netrc .pgpass .npmrc .pypirc"
    " .git-credentials credentials credentials.* shadow *_history"
)
_SECRET_PARTS = names(".ssh .aws .gnupg .kube .docker .azure .password-store gcloud")

_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/opt/", "/nix/store/")

Directories = frozenset[str] | None  # where a command may be; None: not known


class Scope(msgspec.Struct, frozen=True):
    """All paths here are resolved."""

    directory: str
    scratch: str | None = None
    home: str | None = None

    def is_free_to_read(self, path: str) -> bool:
        return self._is_inside(path) or is_harmless_device(path)

    def is_free_to_edit(self, path: str) -> bool:
        """Whether the mode `auto-edit` may let it be written: in the workspace, and nothing that runs or grants.

        The scratch directory is not: programs are pointed at what lies there, and nobody watches it.
        """
        return self.is_in_workspace(path) and not self.is_protected(path)

    def is_protected(self, path: str) -> bool:
        return is_protected_file(path, self.directory)

    def is_system(self, path: str) -> bool:
        """Whether it is among the programs and libraries of the machine, which every command may read."""
        return path.startswith(_SYSTEM) and not is_secret(path) and not self._is_home(path)

    def is_hidden_by_sandbox(self, path: str) -> bool:
        """Whether the read-only sandbox shows it to nobody, also where a rule allows to read it: secrets, and what is
        above the home."""
        return is_secret(path) or (self.home is not None and is_inside(Path(self.home), Path(path)))

    def _is_home(self, path: str) -> bool:
        return self.home is not None and is_inside(Path(path), Path(self.home))

    def is_in_workspace(self, path: str) -> bool:
        return is_inside(Path(path), Path(self.directory))

    def _is_inside(self, path: str) -> bool:
        where = Path(path)
        return is_inside(where, Path(self.directory)) or (
            self.scratch is not None and is_inside(where, Path(self.scratch))
        )


def is_harmless_device(path: str) -> bool:
    return path in HARMLESS_DEVICES or re.fullmatch(r"/dev/fd/\d+", path) is not None


def is_written_safely(path: str) -> bool:
    """Whether a redirection may write to it. `/dev/stdin` and its like are whatever file is open there."""
    return path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")


def is_secret(path: str) -> bool:
    where = Path(path)
    return not _SECRET_PARTS.isdisjoint(where.parts) or any(
        fnmatch.fnmatchcase(where.name.lower(), name) for name in _SECRET_NAMES
    )


def resolve_all(directories: Directories, text: str, *, is_glob: bool) -> tuple[str, ...] | None:
    """Every path that a word may mean, links and `..` resolved. None: that cannot be said."""
    if "\0" in text or len(text) > 4096:
        return None
    if is_harmless_device(text):
        return (text,)  # what they lead to is this shell's own
    if directories is None and not text.startswith("/"):
        return None
    if is_glob and _is_uncertain_glob(text):
        return None
    found: set[str] = set()
    for directory in directories or {"/"}:
        expanded = _expand(directory, text) if is_glob else [text]
        if expanded is None:
            return None
        for path in expanded:
            if is_glob and (path.startswith("-") or path.split() != [path]):
                return None  # named like an option, or like several words once a variable holds it
            resolved = _resolved(os.path.join(directory, path))
            if resolved is None:
                return None
            found.add(resolved)
            if len(found) > MAX_MATCHES:
                return None
    return tuple(sorted(found))


def change_directory(directories: Directories, text: str) -> Directories:
    """Where the shell may be after `cd text`: still here, if it fails, or there. None when `..` and links disagree."""
    if directories is None:
        return None
    after = set(directories)
    for directory in directories:
        there = os.path.join(directory, text)
        logical = os.path.normpath(there)
        if _resolved(there) is None or _resolved(there) != _resolved(logical):
            return None
        after.add(logical)
    return frozenset(after) if len(after) <= MAX_DIRECTORIES else None


def _resolved(path: str) -> str | None:
    """Where an absolute path leads. None: through /proc, which shows each process something else, or in a circle."""
    done, links = "", 0
    left = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    while left:
        part = left.pop()
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        step = f"{done}/{part}"
        try:
            target = os.readlink(step)
        except OSError:
            done = step  # no link, or nothing there
        except ValueError:
            return None  # no name that a file can have
        else:
            links += 1
            done = "" if target.startswith("/") else done
            left += [each for each in reversed(target.split("/")) if each not in ("", ".")]
        if links > MAX_LINKS or done in ("/proc", "/dev/fd"):
            return None
    return done or "/"


def _is_uncertain_glob(text: str) -> bool:
    """`.*` may mean `..`, and brackets have corners (classes, ranges by locale)."""
    return "[" in text or any(re.match(r"\.+[*?]", part) for part in text.split("/"))


def _expand(directory: str, text: str) -> list[str] | None:
    """The names that a wildcard stands for now; the pattern itself, as the shell does, when there are none.

    None: to find out would take too long."""
    found, budget = [""], MAX_ENTRIES
    for part in text.replace("**", "*").split("/"):
        if not re.search(r"[*?]", part):
            found = [f"{path}/{part}" if path or text.startswith("/") else part for path in found]
            continue
        matched: list[str] = []
        for path in found:
            try:
                names = os.listdir(os.path.join(directory, path) if path else directory)
            except OSError:
                continue
            budget -= len(names) + 1
            if budget < 0:
                return None
            matched += [
                f"{path}/{name}" if path else name for name in fnmatch.filter(names, part) if _shows(name, part)
            ]
        found = [path for path in matched if os.path.lexists(os.path.join(directory, path))]
    existing = [path for path in found if os.path.lexists(os.path.join(directory, path))]
    return existing or [text]


def _shows(name: str, pattern: str) -> bool:
    return not name.startswith(".") or pattern.startswith(".")


# Anywhere on the way to the file, outside the workspace too: a workspace may lie in `~/.config`. All in small letters.
_DIRECTORIES = frozenset({".git", ".hg", ".svn", ".kedge", ".husky", ".ssh", ".config"})
# Below the workspace.
_DIRECTORIES_INSIDE = names(
    ".github/workflows .github/actions .github/instructions .gitea/workflows .forgejo/workflows .circleci .buildkite"
    " .vscode .idea .zed .devcontainer .cargo .bundle .yarn .mise"
    " .claude .agents .cursor .codex .opencode .gemini .windsurf .clinerules"
    # What a virtual environment or a package manager installed is found by name, and run.
    " .venv venv .direnv .tox .nox .pixi node_modules site-packages dist-packages __pypackages__"
)
_NAMES = names(
    "kedge.toml head .envrc .gitmodules .gitconfig .gitattributes .profile .inputrc .bashrc .bash_profile .bash_login"
    " .bash_logout .zshrc .zshenv .zprofile .zlogin"
    " agents.md agents.*.md agent.md claude.md claude.*.md gemini.md .cursorrules .windsurfrules .clinerules"
    " copilot-instructions.md .mcp.json mcp.json opencode.json opencode.jsonc .aider.conf.yml"
    " .gitlab-ci.yml .gitlab-ci.yaml .travis.yml azure-pipelines.yml bitbucket-pipelines.yml .drone.yml .woodpecker.yml"
    " .cirrus.yml jenkinsfile *.code-workspace .devcontainer.json .exrc .vimrc .nvimrc .nvim.lua .dir-locals.el"
    " .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .pnpmfile.mjs .pnp.cjs .pnp.loader.mjs .tool-versions"
    " mise.toml .mise.toml mise.*.toml .mise.*.toml rust-toolchain rust-toolchain.toml"
    " .pre-commit-config.yaml lefthook.yml .lefthook.yml"
    " conftest.py sitecustomize.py usercustomize.py *.pth pyvenv.cfg pip.conf"
)


def is_protected_file(path: str, workspace: str) -> bool:
    """Whether a resolved path is one; capital letters are no difference: some file systems take .GIT for .git."""
    where = Path(path.casefold())
    if not _DIRECTORIES.isdisjoint(where.parts) or any(fnmatch.fnmatchcase(where.name, name) for name in _NAMES):
        return True
    root = Path(workspace.casefold())
    inside = f"/{where.relative_to(root)}/" if where.is_relative_to(root) else f"{where}/"
    return any(f"/{directory}/" in inside for directory in _DIRECTORIES_INSIDE)
