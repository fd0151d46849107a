"""Read and parse configuration files; a file is read again only when it changed on disk."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kedge.config.errors import Problem
from kedge.config.toml_layout import TomlLayout

# A hundred times what people write, and about a second to parse. A repository may contain any file under that name.
MAX_BYTES = 256 * 1024
# File system clocks are coarse: a file this recent may change again without a change of its times.
FRESH_NS = 2_000_000_000
MAX_PARTS = 32  # of a dotted key; Kedge's own keys have at most five

_STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:\\.|(?!""").)*+"{0,5}'
    r"|'''(?:(?!''').)*+'{0,5}"
    r'|"(?:\\.|[^"\\\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_KEY = re.compile(r"[A-Za-z0-9_\-. \t]++")

Signature = tuple[int, int, int, int, int]


class Document(NamedTuple):
    """A parsed file. An unusable one has problems and no values."""

    path: Path
    values: dict[str, Any]
    layout: TomlLayout
    digest: bytes  # of the content: tells a change from a touch
    problems: tuple[Problem, ...] = ()


class FileCache:
    """Parsed documents by path. Thread-safe: at worst two threads read the same file."""

    def __init__(self) -> None:
        self._documents: dict[Path, tuple[Signature, Document]] = {}

    def read(self, path: Path, parse: Callable[[Path, bytes], Document] | None = None) -> Document | None:
        """Return the current document of a file, or None if there is no such file."""
        try:
            current = _signature(path.stat())
            cached = self._documents.get(path)
            if cached is not None and cached[0] == current:
                return cached[1]
            signature, content = read_config_file(path)
        except OSError as error:
            self._documents.pop(path, None)
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            return _unusable(path, f"cannot be read: {error.strerror or error}", b"")
        document = (parse or parse_document)(path, content)
        if time.time_ns() - max(signature[2:4]) > FRESH_NS:
            self._documents[path] = (signature, document)
        else:
            self._documents.pop(path, None)
        return document


def parse_document(path: Path, content: bytes) -> Document:
    import tomllib

    digest = hashlib.sha256(content).digest()
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _unusable(path, "is not UTF-8; save it as UTF-8", digest, line)
    if (deep := find_deep_key(text)) is not None:
        return _unusable(path, f"has a key of more than {MAX_PARTS} parts", digest, deep)
    try:
        return Document(path, tomllib.loads(text), TomlLayout(text), digest)
    except tomllib.TOMLDecodeError as error:
        line, reason = _split_toml_error(str(error), text)
        return _unusable(path, f"is not valid TOML: {reason}", digest, line)
    except RecursionError:
        return _unusable(path, "is nested too deeply", digest)
    except ValueError:  # Python refuses integers of thousands of digits
        return _unusable(path, "has a number that is too long", digest)


def read_config_file(path: Path) -> tuple[Signature, bytes]:
    """Read a regular file; return its signature and content. Raises OSError. Never blocks on a named pipe."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        if status.st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, f"it is over {MAX_BYTES >> 10} KiB")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return _signature(status), file.read(MAX_BYTES)
    finally:
        os.close(fd)


def find_deep_key(text: str) -> int | None:
    """Return the line of the first key with more than `MAX_PARTS` parts, or None.

    Checked before parsing, because `tomllib` takes quadratic time for `a.a.a.…`. The scan is linear. For valid TOML it
    finds strings and comments exactly as a parser does; behind a syntax error it may not, but no parser gets there.
    """
    if text.count(".") < MAX_PARTS:
        return None
    plain = _STRINGS_AND_COMMENTS.sub(_replace_string, text)
    for found in _KEY.finditer(plain):
        if found[0].count(".") >= MAX_PARTS:
            return plain.count("\n", 0, found.start()) + 1
    return None


def _replace_string(found: re.Match[str]) -> str:
    """Turn a string into one letter (it may be a quoted part of a key), and keep line numbers."""
    return ("" if found[0].startswith("#") else "s") + "\n" * found[0].count("\n")


def _signature(status: os.stat_result) -> Signature:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _unusable(path: Path, why: str, digest: bytes, line: int = 0) -> Document:
    return Document(path, {}, TomlLayout(""), digest or why.encode(), (Problem(str(path), line, "", why),))


def _split_toml_error(error: str, text: str) -> tuple[int, str]:
    """Split tomllib's message, which ends with "(at line 3, column 7)" or "(at end of document)"."""
    what, _, where = error.rpartition(" (at ")
    if where.startswith("line "):
        line, _, column = where.removeprefix("line ").rstrip(")").partition(", column ")
        return int(line), f"{what}, in column {column}"
    return text.rstrip("\n").count("\n") + 1, f"{what or error}, at its end"


Layer = Literal["default", "system", "user", "workspace", "environment"]

NAME = "config.toml"  # in a `kedge` directory of the system or the user
WORKSPACE_NAME = "kedge.toml"
SYSTEM = Path("/etc")


class ConfigPaths(NamedTuple):
    system: tuple[Path, ...]
    user: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> ConfigPaths:
        """Follow the XDG Base Directory Specification; relative paths in its variables are ignored."""
        dirs = [Path(each) for each in env.get("XDG_CONFIG_DIRS", "").split(":") if each.startswith("/")]
        home = env.get("XDG_CONFIG_HOME", "")
        config = Path(home) if home.startswith("/") else Path(env.get("HOME") or Path.home()) / ".config"
        weakest_first = [SYSTEM, *reversed(dirs or [SYSTEM / "xdg"])]
        return cls(tuple(each / "kedge" / NAME for each in weakest_first), config / "kedge" / NAME)


def workspace_files(directory: Path) -> list[Path]:
    """Return the `kedge.toml` paths from the repository's root down to the workspace.

    Without a repository, only the workspace's own. Directories above are ignored: on a shared machine other users may
    be able to write there.
    """
    chain = [directory, *directory.parents]
    root = next((index for index, each in enumerate(chain) if (each / ".git").exists()), 0)
    return [each / WORKSPACE_NAME for each in reversed(chain[: root + 1])]
