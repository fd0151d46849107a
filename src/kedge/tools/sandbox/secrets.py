"""What no held command reads, wherever it is configured: keys, passwords and what browsers remember."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

SECRETS = (
    # keys, and who may use them
    *("~/.ssh", "~/.gnupg", "~/.password-store", "~/.local/share/keyrings", "~/.config/op"),
    # clouds and clusters
    *("~/.aws", "~/.azure", "~/.config/gcloud", "~/.oci", "~/.kube", "~/.docker/config.json", "~/.vault-token"),
    *("~/.terraform.d/credentials.tfrc.json", "~/.config/doctl", "~/.fly", "~/.config/containers/auth.json"),
    # hosts of code, and of packages
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
    # agents, Kedge among them
    *("~/.config/kedge", "~/.local/share/kedge", "~/.claude", "~/.codex", "~/.gemini"),
    # browsers and mail
    *("~/.mozilla", "~/.thunderbird", "~/.config/google-chrome", "~/.config/chromium"),
    *("~/.config/BraveSoftware", "~/.config/microsoft-edge", "~/.config/vivaldi", "~/.config/opera"),
    *("~/snap/firefox", "~/snap/chromium", "~/.var/app/org.mozilla.firefox", "~/.var/app/com.google.Chrome"),
    # what was typed
    *("~/.bash_history", "~/.zsh_history", "~/.local/share/fish/fish_history", "~/.python_history", "~/.psql_history"),
    *("~/.mysql_history", "~/.node_repl_history", "~/.lesshst", "~/.viminfo"),
    *("~/.pgpass", "~/.my.cnf"),
)

# Files of keys and passwords among a machine's settings and a toolchain's files, by their names.
_SECRET_NAME = re.compile(
    r"^(g?shadow-?|passwd-|group-|opasswd|sudoers.*|id_(rsa|dsa|ecdsa|ed25519)|.*_key|.*\.(key|keytab|p12|pfx|jks|kdbx)"
    r"|.*secrets?(\.\w+)?|.*credentials?(\.\w+)?|.*passwd\.client|sasl_passwd.*|\.?netrc|\.npmrc|\.pypirc|\.pgpass"
    r"|auth\.json|debian\.cnf|msmtprc|machine-id-secret|private|system-connections)$",
    re.IGNORECASE,
)
_MAX_ENTRIES = 50_000


def private_files(directory: str, *, depth: int, must_be_public: bool) -> tuple[str, ...]:
    """The files and directories below that look like secrets by their names or, with `must_be_public`, are not
    readable by everybody: root could read those although they were meant for root alone."""
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
            yield entry.path  # there is too much to look at
        elif is_directory and depth > 1:
            yield from _private_files(entry.path, depth - 1, must_be_public, left)


def _is_public(entry: os.DirEntry[str], is_directory: bool) -> bool:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return False
    wanted = stat.S_IROTH | stat.S_IXOTH if is_directory else stat.S_IROTH
    return mode & wanted == wanted
