"""Secrets that sandboxed commands cannot read: keys, passwords, browser data."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

SECRETS = (
    # keys and key stores
    *("~/.ssh", "~/.gnupg", "~/.password-store", "~/.local/share/keyrings", "~/.config/op"),
    # clouds and clusters
    *("~/.aws", "~/.azure", "~/.config/gcloud", "~/.oci", "~/.kube", "~/.docker/config.json", "~/.vault-token"),
    *("~/.terraform.d/credentials.tfrc.json", "~/.config/doctl", "~/.fly", "~/.config/containers/auth.json"),
    # code hosts and package registries
    *(
        "~/.netrc",
        "~/.git-credentials",
        "~/.config/git/credentials",
        "~/.config/gh",
        "~/.config/hub",
        "~/.config/glab-cli",
    ),
    *("~/.npmrc", "~/.pypirc", "~/.gem/credentials"),
    *("~/.cargo/credentials", "~/.cargo/credentials.toml", "~/.m2/settings-security.xml"),
    # coding agents, including Kedge
    *("~/.config/kedge", "~/.local/share/kedge", "~/.claude", "~/.codex", "~/.gemini"),
    # browsers and mail
    *("~/.mozilla", "~/.thunderbird", "~/.config/google-chrome", "~/.config/chromium"),
    *("~/.config/BraveSoftware", "~/.config/microsoft-edge", "~/.config/vivaldi", "~/.config/opera"),
    *("~/snap/firefox", "~/snap/chromium", "~/.var/app/org.mozilla.firefox", "~/.var/app/com.google.Chrome"),
    # histories
    *("~/.bash_history", "~/.zsh_history", "~/.local/share/fish/fish_history", "~/.python_history", "~/.psql_history"),
    *("~/.mysql_history", "~/.node_repl_history", "~/.lesshst", "~/.viminfo"),
    *("~/.pgpass", "~/.my.cnf"),
)

# Names of files with keys and passwords, in system settings and toolchains.
_SECRET_NAME = re.compile(
    r"^(g?shadow-?|passwd-|group-|opasswd|sudoers.*|id_(rsa|dsa|ecdsa|ed25519)|.*_key|.*\.(key|keytab|p12|pfx|jks|kdbx)"
    r"|.*secrets?(\.\w+)?|.*credentials?(\.\w+)?|.*passwd\.client|sasl_passwd.*|\.?netrc|\.npmrc|\.pypirc|\.pgpass"
    r"|auth\.json|debian\.cnf|msmtprc|machine-id-secret|private|system-connections)$",
    re.IGNORECASE,
)
_MAX_ENTRIES = 50_000


def find_private_files(directory: str, *, depth: int, must_be_public: bool) -> tuple[str, ...]:
    """Files and directories below a directory whose names look like secrets or, with `must_be_public`, that not every
    user may read: a server run by root could read those."""
    return tuple(_private_files(directory, depth, must_be_public, [_MAX_ENTRIES]))


def _private_files(directory: str, depth: int, must_be_public: bool, left: list[int]) -> Iterator[str]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    left[0] -= len(entries)
    for entry in entries:
        if entry.is_symlink():
            continue
        is_directory = entry.is_dir(follow_symlinks=False)
        if _SECRET_NAME.match(entry.name) or (must_be_public and not _is_public(entry, is_directory)):
            yield entry.path
        elif is_directory and left[0] <= 0:
            yield entry.path  # too many entries to check
        elif is_directory and depth > 1:
            yield from _private_files(entry.path, depth - 1, must_be_public, left)


def _is_public(entry: os.DirEntry[str], is_directory: bool) -> bool:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return False
    wanted = stat.S_IROTH | stat.S_IXOTH if is_directory else stat.S_IROTH
    return mode & wanted == wanted
