"""Suggest the rules that "allow for this session" remembers: as narrow as the request, never one that runs anything."""

from __future__ import annotations

import os
from pathlib import Path

from kedge.tools.permissions.paths import Roots, is_secret
from kedge.tools.permissions.rules import host_of, quote_path, quote_word
from kedge.tools.permissions.shell.parse import Command, names

# Any words may follow these: they build, check or test this project.
_PREFIXES = frozenset(
    tuple(words.split())
    for line in (
        "npm test, npm run *, pnpm test, pnpm run *, yarn test, yarn run *, bun test, bun run *",
        "cargo build, cargo test, cargo check, cargo clippy, cargo fmt, cargo doc",
        "go build, go test, go vet, go fmt, dotnet build, dotnet test, mvn test, gradle test",
        "pytest, python -m pytest, python3 -m pytest, uv run pytest, poetry run pytest",
        "python -m unittest, python3 -m unittest",
        "ruff check, ruff format, mypy, pyright, black, isort, tsc, eslint, prettier, jest, vitest",
        "npx tsc, npx eslint, npx prettier, npx jest, npx vitest, rspec, phpunit, ctest, swift test",
        "git add, git commit",
    )
    for words in line.split(", ")
)
# They run code from their arguments or input: each call can do something else.
_INTERPRETERS = names(
    "python python2 python3 pypy pypy3 node nodejs deno bun perl ruby php lua awk gawk mawk nawk sed tclsh expect R"
    " Rscript julia ghci scala groovy osascript pwsh powershell sqlite3 psql mysql gdb ed ex vi vim emacs m4 sh bash"
    " dash ash ksh mksh zsh fish csh tcsh rbash busybox"
)
_NEVER = names(
    "sudo doas su eval source . exec env xargs find parallel ssh watch trap script chroot flock nsenter unshare"
    " strace systemd-run at crontab alias enable hash bind shopt docker podman kubectl rm dd mkfs shutdown reboot kill"
    " killall pkill chmod curl wget nc scp rsync timeout nice nohup setsid command builtin tee"
)


def rule_for_command(command: Command) -> str | None:
    words = command.words
    name = (words[0].text or "").rpartition("/")[2]
    if name in _NEVER or command.assigned:
        return None
    for length in (3, 2, 1):
        start = tuple(word.text for word in words[:length])
        if None in start or len(start) < length or any(word.is_glob for word in words[:length]):
            continue
        if start in _PREFIXES or (length == 3 and (*start[:2], "*") in _PREFIXES):
            return f"bash({' '.join(quote_word(text or '') for text in start)} *)"
    if any(word.text is None or word.is_glob for word in words):
        return None
    if name in _INTERPRETERS and not _is_script(command):
        return None
    return f"bash({' '.join(quote_word(word.text or '') for word in words)})"


def rule_for_read(path: str, roots: Roots) -> str:
    is_directory = os.path.isdir(path)
    is_wide = path == "/" or any(Path(each).is_relative_to(path) for each in (roots.directory, roots.home) if each)
    if is_directory and not is_wide and not is_secret(path):
        return f"view({quote_path(path)}/**)"
    return f"view({quote_path(path)})"


def rule_for_write(path: str, roots: Roots) -> str:
    """A rule for the whole workspace; for a protected file, or one outside, a rule for that file."""
    return "edit(**)" if roots.is_free_to_edit(path) and roots.is_in_workspace(path) else f"edit({quote_path(path)})"


def rule_for_fetch(url: str) -> str | None:
    host = host_of(url)
    if host is None:
        return None
    return f"fetch(domain:[{host}])" if ":" in host else f"fetch(domain:{host})"


def _is_script(command: Command) -> bool:
    """Whether it runs a script file (`python tool.py`), and no code from the command line."""
    first = command.words[1].text if len(command.words) > 1 else None
    return first is not None and not first.startswith("-") and "." in first and not set(first) & set(" ;(){}'\"\n$")
