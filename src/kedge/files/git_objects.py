"""Contents from git's object store: a file that git's index lists as clean need not be read and stored again.

Only for repositories that store files byte for byte; nothing is written. An object is read when a command changed its
file, moments after the scan. If it was deleted by then, that version is not available.
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

PREFIX = "git:"  # of a digest that is the name of a git object
MIN_FILES = 200  # fewer new files are read just as fast
_ENTRY = struct.Struct(">10I20sH")
_LIMIT_S = 20.0
# Attributes with which a file and its object may differ.
_CONVERSIONS = (b"text", b"eol", b"crlf", b"filter", b"ident", b"working-tree-encoding")
_SPECIAL_FLAGS = 0x8000 | 0x3000  # assume-unchanged, or in a conflict
_EXTENDED = 0x4000


class Indexed(NamedTuple):
    """A clean file in the index."""

    sha: str
    size: int
    mtime: tuple[int, int]
    ctime: tuple[int, int]
    inode: int

    def matches(self, status: os.stat_result) -> bool:
        return (
            stat.S_ISREG(status.st_mode)
            and self.size == status.st_size
            and self.inode == status.st_ino & 0xFFFFFFFF
            and self.mtime == divmod(status.st_mtime_ns, 1_000_000_000)
            and self.ctime == divmod(status.st_ctime_ns, 1_000_000_000)
        )


def read_index(root: bytes, env: Mapping[str, str], paths: Iterable[bytes]) -> dict[bytes, Indexed]:
    """Return the clean files by path relative to `root`; empty without a repository, or if it converts files."""
    answer = _git(root, env, "rev-parse", "--show-object-format", "--git-path", "index", "--show-prefix")
    lines = (answer or b"").split(b"\n")
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
            return _parse_index(file.read(), os.fstat(file.fileno()).st_mtime_ns, lines[2])
    except (OSError, struct.error, IndexError, ValueError):
        return {}


def compute_sha(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()


def read_objects(root: bytes, env: Mapping[str, str], shas: Iterable[str]) -> dict[str, bytes]:
    """Return the objects that exist, by name."""
    wanted = sorted(set(shas))
    if not wanted:
        return {}
    output = _git(root, env, "cat-file", "--batch", stdin="".join(f"{sha}\n" for sha in wanted).encode()) or b""
    found: dict[str, bytes] = {}
    at = 0
    while (end := output.find(b"\n", at)) >= 0:
        header = output[at:end].split()
        at = end + 1
        if len(header) == 3 and header[1] == b"blob":
            size = int(header[2])
            data = output[at : at + size]
            if compute_sha(data) == header[0].decode():
                found[header[0].decode()] = data
            at += size + 1
    return found


def find_ignored(root: bytes, env: Mapping[str, str], paths: Iterable[bytes]) -> set[bytes]:
    """Return the paths that match an ignore rule although they are tracked: they may be older than their tracking."""
    wanted = b"".join(path + b"\0" for path in paths)
    output = _git(root, env, "check-ignore", "--no-index", "-z", "--stdin", stdin=wanted) if wanted else None
    return set((output or b"").split(b"\0")) - {b""}


def _converts(path: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            lines = [line for line in file.read().splitlines() if not line.lstrip().startswith(b"#")]
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(word in line for line in lines for word in _CONVERSIONS)


def _parse_index(data: bytes, written_ns: int, prefix: bytes) -> dict[bytes, Indexed]:
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
        # A file as young as the index may have changed again in the same clock tick.
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


def _git(root: bytes, env: Mapping[str, str], *args: str, stdin: bytes = b"") -> bytes | None:
    clean = make_git_env(env, root)
    git = find_program("git", clean, root)
    if git is None:
        return None
    try:
        done = subprocess.run(
            [git, *GIT_OPTIONS, *args],
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
