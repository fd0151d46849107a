"""Paths: which may be read or edited without asking, which are secret or protected, and what a word resolves to."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path

import msgspec

from kedge.tools.permissions.shell import names

MAX_ENTRIES = 20_000  # directory entries listed to expand one wildcard
MAX_MATCHES = 2000  # paths of one wildcard; each is checked
MAX_LINKS = 40  # as in the kernel
MAX_DIRECTORIES = 8  # in which a command may run, after its `cd`s
HARMLESS_DEVICES = frozenset({"/dev/null", "/dev/zero", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty"})
_SECRET_NAMES = names(
    ".env .env.* *.pem *.key *.p12 *.pfx *.kdbx id_rsa* id_dsa* id_ecdsa* id_ed25519* .netrc .pgpass .npmrc .pypirc"
    " .git-credentials credentials credentials.* shadow *_history"
)
_SECRET_PARTS = names(".ssh .aws .gnupg .kube .docker .azure .password-store gcloud")

_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/opt/", "/nix/store/")

Directories = frozenset[str] | None  # in which a command may run; None: unknown


class Roots(msgspec.Struct, frozen=True):
    """The directories of a run, resolved; the paths given to its methods must be resolved, too."""

    directory: str
    scratch: str | None = None
    home: str | None = None

    def is_free_to_read(self, path: str) -> bool:
        return self._is_inside(path) or is_harmless_device(path)

    def is_free_to_edit(self, path: str) -> bool:
        """Whether mode `auto-edit` may write it: it is in the workspace, and no other program runs or obeys it.

        Not in the scratch directory: programs read files there, and the user does not see them.
        """
        return self.is_in_workspace(path) and not self.is_protected(path)

    def is_protected(self, path: str) -> bool:
        return is_protected_file(path, self.directory)

    def is_system(self, path: str) -> bool:
        """Whether it belongs to the system's programs and libraries, which every command may read."""
        return path.startswith(_SYSTEM) and not is_secret(path) and not self._is_home(path)

    def is_hidden_by_sandbox(self, path: str) -> bool:
        """Whether the read-only sandbox hides it, also if a rule allows reading it: secrets, the home, its parents."""
        return is_secret(path) or (self.home is not None and Path(self.home).is_relative_to(path))

    def _is_home(self, path: str) -> bool:
        return self.home is not None and Path(path).is_relative_to(self.home)

    def is_in_workspace(self, path: str) -> bool:
        return Path(path).is_relative_to(self.directory)

    def _is_inside(self, path: str) -> bool:
        roots = (self.directory,) if self.scratch is None else (self.directory, self.scratch)
        return any(Path(path).is_relative_to(root) for root in roots)


def is_harmless_device(path: str) -> bool:
    return path in HARMLESS_DEVICES or re.fullmatch(r"/dev/fd/\d+", path) is not None


def is_written_safely(path: str) -> bool:
    """Whether a redirection may write to it. `/dev/stdin` and similar stand for whichever file is open there."""
    return path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")


def is_secret(path: str) -> bool:
    where = Path(path)
    return not _SECRET_PARTS.isdisjoint(where.parts) or any(
        fnmatch.fnmatchcase(where.name.lower(), name) for name in _SECRET_NAMES
    )


def resolve_all(directories: Directories, text: str, *, is_glob: bool) -> tuple[str, ...] | None:
    """Every path that a word may mean, links and `..` resolved; None if that is unknown."""
    if "\0" in text or len(text) > 4096:
        return None
    if is_harmless_device(text):
        return (text,)  # they stand for the shell's own files
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
                return None  # looks like an option, or splits into several words in a variable
            resolved = _resolve(os.path.join(directory, path))
            if resolved is None:
                return None
            found.add(resolved)
            if len(found) > MAX_MATCHES:
                return None
    return tuple(sorted(found))


def change_directory(directories: Directories, text: str) -> Directories:
    """The directories after `cd text`: old ones, in case it fails, and new ones. None if `..` and links disagree."""
    if directories is None:
        return None
    after = set(directories)
    for directory in directories:
        target = os.path.join(directory, text)
        logical = os.path.normpath(target)
        if _resolve(target) is None or _resolve(target) != _resolve(logical):
            return None
        after.add(logical)
    return frozenset(after) if len(after) <= MAX_DIRECTORIES else None


def _resolve(path: str) -> str | None:
    """Resolve an absolute path. None if it loops, or leads through /proc, which differs for each process."""
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
            done = step  # not a link, or missing
        except ValueError:
            return None  # not a valid file name
        else:
            links += 1
            done = "" if target.startswith("/") else done
            left += [each for each in reversed(target.split("/")) if each not in ("", ".")]
        if links > MAX_LINKS or done in ("/proc", "/dev/fd"):
            return None
    return done or "/"


def _is_uncertain_glob(text: str) -> bool:
    """Whether shells may disagree: `.*` may match `..`, and brackets depend on classes and locale."""
    return "[" in text or any(re.match(r"\.+[*?]", part) for part in text.split("/"))


def _expand(directory: str, text: str) -> list[str] | None:
    """The paths that a wildcard matches now, or, like the shell, the pattern itself. None if that takes too long."""
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
                f"{path}/{name}" if path else name for name in fnmatch.filter(names, part) if _may_match(name, part)
            ]
        found = [path for path in matched if os.path.lexists(os.path.join(directory, path))]
    existing = [path for path in found if os.path.lexists(os.path.join(directory, path))]
    return existing or [text]


def _may_match(name: str, pattern: str) -> bool:
    """Wildcards do not match a leading dot."""
    return not name.startswith(".") or pattern.startswith(".")


# Anywhere in the path, also above the workspace, which may lie in `~/.config`. All in lower case.
_DIRECTORIES = frozenset({".git", ".hg", ".svn", ".kedge", ".husky", ".ssh", ".config"})
# Only below the workspace.
_DIRECTORIES_INSIDE = names(
    ".github/workflows .github/actions .github/instructions .gitea/workflows .forgejo/workflows .circleci .buildkite"
    " .vscode .idea .zed .devcontainer .cargo .bundle .yarn .mise"
    " .claude .agents .cursor .codex .opencode .gemini .windsurf .clinerules"
    # Programs installed by a virtual environment or a package manager are found by name, and run.
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
    """Whether other programs run or obey the file, so that changing it needs approval, also in mode `auto-edit`.

    These are files that git, shells, editors, CI, package managers or coding agents read by themselves, not those that
    run on request (a Makefile, package.json, a test). Case is ignored: some file systems take .GIT for .git."""
    where = Path(path.casefold())
    if not _DIRECTORIES.isdisjoint(where.parts) or any(fnmatch.fnmatchcase(where.name, name) for name in _NAMES):
        return True
    root = Path(workspace.casefold())
    inside = f"/{where.relative_to(root)}/" if where.is_relative_to(root) else f"{where}/"
    return any(f"/{directory}/" in inside for directory in _DIRECTORIES_INSIDE)
