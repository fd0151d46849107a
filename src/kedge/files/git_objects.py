"""What git has need not be read and kept again: a tracked file that its index knows as clean is one of its objects.

Only read, and only where git stores files byte for byte. An object is fetched when a command changed its file, which is
moments after the look that relied on it; should it be gone by then, the version is said not to be kept.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import subprocess
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kedge.files.environment import GIT_OPTIONS, find_program
from kedge.files.listing import make_git_env

PREFIX = "git:"  # of a digest that names an object of git
MIN_FILES = 200  # unknown ones; fewer are read as quickly
_ENTRY = struct.Struct(">10I20sH")
_LIMIT_S = 20.0
# Attributes by which a file and its object differ.
_CONVERSIONS = (b"text", b"eol", b"crlf", b"filter", b"ident", b"working-tree-encoding")
_SPECIAL_FLAGS = 0x8000 | 0x3000  # assumed to be unchanged, or in a conflict
_EXTENDED = 0x4000


class Indexed(NamedTuple):
    """What the index says of a clean file."""

    sha: str
    size: int
    mtime: tuple[int, int]
    ctime: tuple[int, int]
    inode: int

    def is_it(self, status: os.stat_result) -> bool:
        return (
            stat.S_ISREG(status.st_mode)
            and self.size == status.st_size
            and self.inode == status.st_ino & 0xFFFFFFFF
            and self.mtime == divmod(status.st_mtime_ns, 1_000_000_000)
            and self.ctime == divmod(status.st_ctime_ns, 1_000_000_000)
        )


def index_of(root: bytes, env: Mapping[str, str], paths: Iterable[bytes]) -> dict[bytes, Indexed]:
    """By paths from `root`; nothing where there is no repository, or where it stores files another way."""
    said = _git(root, env, "rev-parse", "--show-object-format", "--git-path", "index", "--show-prefix")
    lines = (said or b"").split(b"\n")
    if len(lines) < 3 or lines[0] != b"sha1":
        return {}
    index = os.path.join(root, lines[1])
    if _git(root, env, "config", "--get-regexp", r"^core\.(autocrlf|eol|attributesfile|trustctime|checkstat)$"):
        return {}
    attributes = [os.path.join(root, path) for path in paths if path.rpartition(b"/")[2] == b".gitattributes"]
    above = [os.path.join(root, *[b".."] * up, b".gitattributes") for up in range(1, lines[2].count(b"/") + 1)]
    beside = os.path.join(os.path.dirname(index), b"info", b"attributes")
    home = os.fsencode(env.get("XDG_CONFIG_HOME") or f"{env.get('HOME', '')}/.config")
    if any(_converts(path) for path in [*attributes, *above, beside, home + b"/git/attributes", b"/etc/gitattributes"]):
        return {}
    try:
        with open(index, "rb") as file:
            return _parsed(file.read(), os.fstat(file.fileno()).st_mtime_ns, lines[2])
    except (OSError, struct.error, IndexError, ValueError):
        return {}


def sha_of(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()


def objects(root: bytes, env: Mapping[str, str], shas: Iterable[str]) -> dict[str, bytes]:
    """Those that are there."""
    wanted = sorted(set(shas))
    if not wanted:
        return {}
    said = _git(root, env, "cat-file", "--batch", stdin="".join(f"{sha}\n" for sha in wanted).encode()) or b""
    found: dict[str, bytes] = {}
    at = 0
    while (end := said.find(b"\n", at)) >= 0:
        words = said[at:end].split()
        at = end + 1
        if len(words) == 3 and words[1] == b"blob":
            size = int(words[2])
            data = said[at : at + size]
            if sha_of(data) == words[0].decode():
                found[words[0].decode()] = data
            at += size + 1
    return found


def ignored(root: bytes, env: Mapping[str, str], paths: Iterable[bytes]) -> set[bytes]:
    """Those that are tracked although the rules leave them out: they may have been there before git knew them."""
    wanted = b"".join(path + b"\0" for path in paths)
    said = _git(root, env, "check-ignore", "--no-index", "-z", "--stdin", stdin=wanted) if wanted else None
    return set((said or b"").split(b"\0")) - {b""}


def _converts(path: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            lines = [line for line in file.read().splitlines() if not line.lstrip().startswith(b"#")]
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(word in line for line in lines for word in _CONVERSIONS)


def _parsed(data: bytes, written_ns: int, prefix: bytes) -> dict[bytes, Indexed]:
    magic, version, count = struct.unpack_from(">4sII", data)
    if magic != b"DIRC" or version not in (2, 3, 4):
        return {}
    found: dict[bytes, Indexed] = {}
    at, path = 12, b""
    for _ in range(count):
        fields = _ENTRY.unpack_from(data, at)
        start = at + _ENTRY.size + (2 if fields[11] & _EXTENDED else 0)
        if version == 4:
            strip, start = _varint(data, start)
            end = data.index(b"\0", start)
            path = path[: len(path) - strip] + data[start:end]
            after = end + 1
        else:
            end = data.index(b"\0", start)
            path = data[start:end]
            after = at + ((end - at) // 8 + 1) * 8
        at = after
        mtime = (fields[2], fields[3])
        # One that was changed when the index was written may have changed again right after.
        is_old = mtime[0] * 1_000_000_000 + mtime[1] < written_ns
        if (
            is_old
            and stat.S_ISREG(fields[6])
            and not fields[11] & (_SPECIAL_FLAGS | _EXTENDED)
            and path.startswith(prefix)
        ):
            entry = Indexed(fields[10].hex(), fields[9], mtime, (fields[0], fields[1]), fields[5])
            found[path[len(prefix) :]] = entry
    is_split = any(data.startswith(name, at) for name in (b"link", b"sdir"))
    return {} if is_split else found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at + 1


def _git(root: bytes, env: Mapping[str, str], *words: str, stdin: bytes = b"") -> bytes | None:
    clean = make_git_env(env, root)
    git = find_program("git", clean, root)
    if git is None:
        return None
    try:
        done = subprocess.run(
            [git, *GIT_OPTIONS, *words],
            cwd=root,
            env=clean,
            input=stdin,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
