"""Which git commands only read, and whether a repository's settings could make them run a program."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from kedge.files.safe_open import read_regular_file
from kedge.tools.permissions.shell import UNKNOWN, Word, names

# Options that only change what is shown: none of them writes a file or runs a program.
_OPTIONS = names(
    "--abbrev-commit --abbrev-ref --absolute-git-dir --after --all --all-match --author --author-date-order --before"
    " --branches --cached --cherry-pick --color --committer --contains --count --date --date-order --decorate --deleted"
    " --diff-filter --dirty --exact-match --exclude-standard --find-renames --first-parent --fixed-strings --follow"
    " --format --full-name --git-common-dir --git-dir --glob --graph --grep --heads --ignore-all-space --ignore-case"
    " --ignore-space-change --ignored --is-inside-work-tree --left-right --list --line-number --line-porcelain --long"
    " --max-count --max-depth --merge-base --merged --merges --minimal --modified --name-only --name-status"
    " --no-abbrev-commit --no-color --no-decorate --no-ext-diff --no-merged --no-merges --no-patch --no-renames"
    " --no-textconv --numstat --oneline --others --patch --points-at --porcelain --pretty --quiet --raw --remotes"
    " --reverse --short --shortstat --show-current --show-prefix --show-stash --show-toplevel --since --skip --sort"
    " --staged --stat --summary --tags --text --topo-order --unified --untracked-files --until --verbose --verify"
    " --word-diff --word-regexp"
)
_FLAGS = re.compile(r"-[abcdeilmnopqrstuvwzACEFGHILMPSTUW]+[\d,:;.+-]*|-\d+")
_READING = names(
    "status log show diff blame describe rev-parse rev-list ls-files ls-tree cat-file grep shortlog name-rev show-ref"
    " for-each-ref merge-base check-ignore check-attr count-objects version whatchanged diff-tree diff-index"
    " diff-files branch tag remote stash worktree reflog config var"
)
# These commands change something unless their first word, or one of their options, makes them list.
_LISTING_WORDS = {
    "remote": ("", "get-url"),
    "stash": ("list", "show"),
    "worktree": ("list",),
    "reflog": ("", "show", "HEAD"),
    "config": ("get", "list"),
}
_LISTING_OPTIONS = {
    "branch": "-l --list --contains --no-contains --merged --no-merged --points-at --show-current",
    "tag": "-l --list --contains --no-contains --merged --no-merged --points-at -n",
    "config": "--get --get-all --get-regexp --list -l",
}
_LISTING_FLAG = re.compile(
    r"-[arvlin]+|--(?:all|remotes|verbose|list|no-color|show-current|ignore-case|merged|no-merged|contains|no-contains"
    r"|points-at|(?:format|sort|color|column|merged|no-merged|contains|no-contains|points-at)=.*)"
)
_CHANGING = re.compile(
    r"--(?:out|ext-diff|textconv|open-files|no-index|delete|move|copy|edit|set|unset|add|replace|remove|force|rename)"
    r".*|-\w*[dDmMcCfuxO]\w*"
)
# They print names, never the contents of files.
_LISTING_NAMES = names(
    "status branch tag remote rev-parse ls-files ls-tree describe version worktree merge-base show-ref"
)
_MAX_FORMS = 20
_GLOBAL_FLAGS = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"})
_GLOBAL_VALUED = names("-C -c --git-dir --work-tree --namespace --config-env --super-prefix")
# Settings that neither name a program nor include other settings. All others may.
_HARMLESS_SECTION = re.compile(r'\[(?:core|user|init|pull|push|fetch|gc|color|remote|branch)(?: "[^"\\\n]*")?\]')
_HARMLESS_SETTING = re.compile(
    r"(?:repositoryformatversion|filemode|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|safecrlf"
    r"|name|email|defaultbranch|rebase|ff|default|autosetupremote|prune|auto|ui|fetch|merge|remote|bare)"
    r" = [\w./:*+@ -]*|url = (?![^/]*::)[\w./:~+@%-]*",
    re.IGNORECASE,
)
# Hooks that reading commands run, and files that lead to settings or objects elsewhere.
_SUSPICIOUS = (
    *("hooks/post-index-change", "hooks/reference-transaction", "modules", "config.worktree", "commondir"),
    "objects/info/alternates",
)
_INNER = ("info", "refs", "refs/heads", "refs/remotes", "refs/tags", "logs", "objects", "objects/info", "objects/pack")
_MAX_SETTINGS_BYTES = 256 * 1024
_MAX_INDEX_BYTES = 64 * 1024 * 1024
_GITLINK = b"\x00\x00\xe0\x00"  # the mode of a submodule in an index


def find_exact_reads(texts: Sequence[str]) -> tuple[Word, ...] | None:
    """The paths that git reads, if the command certainly only reads; `texts` are the words after `git`."""
    where, rest = _split_globals(texts)
    if where is None or not rest or rest[0] not in _READING:
        return None
    name, rest = rest[0], rest[1:]
    options = [text for text in rest if text.startswith("-") and text not in ("-", "--")]
    if not all(text.partition("=")[0] in _OPTIONS or _FLAGS.fullmatch(text) for text in options):
        return None
    if any("%G" in text for text in rest):
        return None  # runs gpg
    if not _only_lists(name, rest) or name in ("config", "var"):
        return None
    plain = [text for text in rest if not text.startswith("-")]
    return (Word(where), *(Word(f"{where}/{text}" if where != "." else text) for text in plain))


def find_loose_reads(words: Sequence[Word]) -> tuple[Word, ...] | None:
    """The words that may be paths, of a git command that may run in the read-only sandbox; None for any other."""
    where, rest = _split_globals([word.shown for word in words])
    if where is None or not rest or rest[0] not in _READING or not _only_lists(rest[0], rest[1:]):
        return None
    if any(_CHANGING.fullmatch(text) for text in rest[1:]) and rest[0] in ("branch", "tag", "config", "remote"):
        return None
    if any(re.match(r"--(?:out|ext-diff|open-files|no-index)|-O", text) for text in rest[1:]):
        return None
    return (Word(where), *(word for word in words if not word.shown.startswith("-")))


def _split_globals(texts: Sequence[str]) -> tuple[str | None, list[str]]:
    """The directory of `-C` (None: there are other global options), and the words from the subcommand on."""
    where, rest = ".", list(texts)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-C" and rest and where == ".":
            where = rest.pop(0)
        elif option not in _GLOBAL_FLAGS:
            return None, rest
    return where, rest


def strip_globals(words: Sequence[Word]) -> list[list[Word]]:
    """The forms of `git -C dir -c a=b push` without global options, for a rule that denies `git push`."""
    rest = list(words[1:])
    forms: list[list[Word]] = []
    while rest and rest[0].shown.startswith("-"):
        if len(forms) > _MAX_FORMS:
            return [[UNKNOWN]]
        option = rest.pop(0).shown
        if option in _GLOBAL_VALUED and rest:
            rest.pop(0)
        elif option not in _GLOBAL_FLAGS and "=" not in option and len(rest) > 1:
            forms.append([words[0], *rest[1:]])  # it may have a value
    return [*forms, [words[0], *rest]]


def _only_lists(name: str, rest: Sequence[str]) -> bool:
    """Whether a command that can list or change only lists. The first word decides: it is no option's value."""
    plain = [text for text in rest if not text.startswith("-")]
    first = rest[0] if rest else ""
    if name in _LISTING_WORDS:
        is_listed = first in _LISTING_WORDS[name] or first.partition("=")[0] in _LISTING_OPTIONS.get(name, "").split()
        return "--" not in rest and (is_listed or (not plain and "" in _LISTING_WORDS[name]))
    if name in _LISTING_OPTIONS:
        if not all(_LISTING_FLAG.fullmatch(text) for text in rest if text.startswith("-")):
            return False
        return not plain or first.partition("=")[0] in _LISTING_OPTIONS[name].split()
    return True


def may_run_programs(directory: str) -> bool:
    """Whether the repository around a directory could make a reading git command run a program."""
    for root in (Path(directory), *Path(directory).parents):
        marker = root / ".git"
        if _exists(marker) and (_is_odd(marker) or _exists(root / ".gitmodules") or _has_programs(marker)):
            return True
        # A bare repository in the tree; its HEAD may be a dangling link.
        if _exists(root / "HEAD") and any(_exists(root / name) for name in ("objects", "commondir", "config")):
            return True
    return False


def shows_contents(texts: Sequence[str]) -> bool:
    """Whether a git command may print contents of files, past ones and denied ones included."""
    _, rest = _split_globals(texts)
    return not rest or rest[0] not in _LISTING_NAMES


def _is_odd(marker: Path) -> bool:
    """Whether it is a worktree or a submodule, whose settings are elsewhere, or a link."""
    return os.path.islink(marker) or not os.path.isdir(marker)


def _has_programs(repository: Path) -> bool:
    """Whether it has hooks that reading commands run, submodules, or settings not known to be harmless."""
    if any(_exists(repository / name) for name in _SUSPICIOUS):
        return True
    if any(repository.glob("sharedindex.*")) or any(map(_has_links, (repository, *map(repository.joinpath, _INNER)))):
        return True
    settings = _read(repository / "config", _MAX_SETTINGS_BYTES)
    index = _read(repository / "index", _MAX_INDEX_BYTES)
    if settings is None or index is None or _GITLINK in index:
        return True
    lines = [line.strip(" \t") for line in settings.decode("utf-8", "replace").split("\n")]
    return not all(not line or _HARMLESS_SECTION.fullmatch(line) or _HARMLESS_SETTING.fullmatch(line) for line in lines)


def _read(path: Path, limit: int) -> bytes | None:
    return read_regular_file(path, limit) if _exists(path) else b""


def _has_links(directory: Path) -> bool:
    """Whether it contains links, which may lead to another repository or any file."""
    try:
        with os.scandir(directory) as entries:
            return any(entry.is_symlink() for entry in entries)
    except OSError:
        return False


def _exists(path: Path) -> bool:
    return os.path.lexists(path)
