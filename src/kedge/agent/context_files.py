"""Context files: instructions for agents (such as `AGENTS.md`), of the user and of the project.

The order is from general to specific: the user's file, then those from the repository's root down to the workspace.
Those of subdirectories are read when the model works there. An unreadable file never fails a run. In an untrusted
repository, links out of it are not followed: they could point to a secret.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from kedge.config.schema import Config
from kedge.files.safe_open import open_file
from kedge.protocol.messages import Message, ToolResult, replace_surrogates

MAX_FILE_BYTES = 64 * 1024  # about 16,000 tokens: the model can read the rest of a longer file when needed
MAX_ALL_BYTES = 192 * 1024
MAX_LEVELS = 32  # parent directories that are searched
GLOBAL_NAME = "AGENTS.md"
LEADS_OUT = "[Not read: it is a link that leads out of the repository. The user can allow it with: kedge config trust]"


class ContextFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """`others`: files with the same text, which is sent once. `digest` is that of the text before it was cut."""

    path: str
    text: str
    digest: str = ""
    is_cut: bool = False
    others: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.others)


NESTED = (
    "\n\n[kedge: this part of the workspace has instructions of its own. They apply to everything in their directory"
    " and below it.]\n\n"
)


def format_file(file: ContextFile, note: str = "") -> str:
    """Return a section for the model; its heading ends with the note."""
    others = f" (the same text is in {', '.join(file.others)})" if file.others else ""
    cut = "\n[It is longer: read the file when you need the rest.]" if file.is_cut else ""
    return f"# Instructions from {file.path}{others}{f', {note}' if note else ''}\n\n{file.text}{cut}"


def find_shown_files(history: Iterable[Message]) -> dict[str, str]:
    """Return the digests of the context files that results of tools have shown to the model, by path."""
    shown: dict[str, str] = {}
    for message in history:
        for part in message.parts if message.role == "tool" else ():
            match part:
                case ToolResult(metadata={"instructions": {**files}}):
                    shown |= {str(path): str(digest) for path, digest in files.items()}
                case _:
                    pass
    return shown


async def load_context_files(
    directory: Path, config: Config, env: Mapping[str, str], max_bytes: int = MAX_ALL_BYTES
) -> list[ContextFile]:
    """Load the configured context files in a thread: a workspace may be on a slow disk."""
    return await asyncio.to_thread(_load, directory, config, env, max_bytes)


def _load(directory: Path, config: Config, env: Mapping[str, str], max_bytes: int) -> list[ContextFile]:
    from kedge.config.trust import is_trusted  # slow to import: not at the server's start

    trusted = is_trusted(directory, config.trusted, Path(env.get("HOME") or Path.home()))
    trusted = trusted and config.sandbox.mode == "off"  # a sandboxed command could link to a file it may not read
    names, user_directory = config.agent.context_files, user_config_directory(env)
    return read_context_files(directory, names, user_directory, is_trusted=trusted, max_bytes=max_bytes)


def user_config_directory(env: Mapping[str, str]) -> Path | None:
    """Return the directory of the user's own files; None if the environment names no home."""
    if (config := env.get("XDG_CONFIG_HOME", "")).startswith("/"):
        return Path(config) / "kedge"
    return Path(home) / ".config" / "kedge" if (home := env.get("HOME")) else None


def read_context_files(
    directory: Path,
    names: Sequence[str],
    global_dir: Path | None,
    *,
    is_trusted: bool = False,
    max_bytes: int = MAX_ALL_BYTES,
) -> list[ContextFile]:
    found: list[ContextFile] = []
    seen: set[tuple[int, int]] = set()
    left = min(max_bytes, MAX_ALL_BYTES)
    for path, within in _list_candidates(directory, names, global_dir):
        try:
            file = _read(path, None if is_trusted else within, seen, min(MAX_FILE_BYTES, max(left, 0)))
        except (OSError, RuntimeError, ValueError):
            continue  # missing, unreadable, a cycle of links, a name with a NUL
        if file is None:
            continue
        if (same := _find_same(file, found)) is not None:
            found[same] = msgspec.structs.replace(found[same], others=(*found[same].others, file.path))
        else:
            found.append(file)
            left -= len(file.text.encode())
    return found


def _find_same(file: ContextFile, found: Sequence[ContextFile]) -> int | None:
    """Return the index of a file with the same text. The rest of one that was cut is not known."""
    if file.is_cut or file.text == LEADS_OUT:
        return None
    return next((i for i, each in enumerate(found) if each.text == file.text and not each.is_cut), None)


def _list_candidates(
    directory: Path, names: Sequence[str], global_dir: Path | None
) -> Iterator[tuple[Path, Path | None]]:
    """Yield paths of possible context files, and the directory that a link must not lead out of."""
    if global_dir is not None:
        yield global_dir / GLOBAL_NAME, None
    downwards = list(repository_levels(directory))
    root = downwards[0].resolve()
    for level in downwards:
        yield from ((level / name, root) for name in names)


def repository_levels(directory: Path) -> Iterable[Path]:
    """Return the directories from the repository's root to the workspace; without a repository the workspace alone."""
    upwards = [directory, *directory.parents][:MAX_LEVELS]
    root = next((i for i, level in enumerate(upwards) if (level / ".git").exists()), 0)
    return reversed(upwards[: root + 1])


def _read(path: Path, within: Path | None, seen: set[tuple[int, int]], max_bytes: int) -> ContextFile | None:
    """Read a context file. Returns None for one that was read before under another name, such as a link."""
    real = path.resolve(strict=True)
    if within is not None and not real.is_relative_to(within):
        return ContextFile(_show(path), LEADS_OUT, "link")
    # Not blocking: a named pipe instead of a file must not delay a run.
    fd = open_file(real, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or (info.st_dev, info.st_ino) in seen:
            return None
        seen.add((info.st_dev, info.st_ino))
        data = file.read(MAX_FILE_BYTES + 1)
    whole = _decode(data).strip()
    if not whole:
        return None
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return ContextFile(_show(path), _decode(data[:max_bytes]).strip(), digest, is_cut=len(data) > max_bytes)


def _show(path: Path) -> str:
    return replace_surrogates(str(path))


MAX_NESTED_BYTES = 16 * 1024  # of all that one result shows: about 4,000 tokens; less in a small context window
MAX_NESTED_FILES = 4
# Their files are of other projects: what these want is no instruction here.
_FOREIGN = frozenset({".git", "node_modules", "site-packages", ".venv", "venv", "vendor", "third_party", ".tox"})


def read_nested_files(
    workspace: Path,
    touched: Path,
    names: Sequence[str],
    known: Collection[str],
    is_hidden: Callable[[str], bool] | None = None,
    max_bytes: int = MAX_NESTED_BYTES,
) -> list[ContextFile]:
    """Return the context files from below the workspace's root down to a path whose digests are not `known`.

    `workspace` and `touched` are resolved. Links that lead out of the workspace are not followed, and `touched` itself
    is left out: the call is about it.
    """
    if not touched.is_relative_to(workspace):
        return []
    lower = touched.relative_to(workspace).parts if touched.is_dir() else touched.relative_to(workspace).parts[:-1]
    if _FOREIGN.intersection(lower):
        return []
    found: list[ContextFile] = []
    seen: set[tuple[int, int]] = set()
    left = min(max_bytes, MAX_NESTED_BYTES)
    for depth in range(1, len(lower) + 1):
        for path in (workspace.joinpath(*lower[:depth], name) for name in names):
            if left <= 0 or len(found) == MAX_NESTED_FILES:
                return found
            try:
                file = None if is_hidden and is_hidden(str(path.resolve())) else _read(path, workspace, seen, left)
            except (OSError, RuntimeError, ValueError):
                continue
            if file is None or file.text == LEADS_OUT or file.digest in known or path == touched:
                continue
            if _find_same(file, found) is None:
                found.append(file)
                left -= len(file.text.encode())
    return found


def read_written_file(workspace: Path, path: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the digest of a context file that a tool has just written, by its path; empty for any other file."""
    if not any(path.parts[-len(Path(name).parts) :] == Path(name).parts for name in names):
        return {}
    try:
        file = _read(path, workspace, set(), MAX_FILE_BYTES)
    except (OSError, RuntimeError, ValueError):
        return {}
    return {} if file is None else {file.path: file.digest}


def _decode(data: bytes) -> str:
    """Decode text in the usual encodings; replace what cannot be decoded."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace").replace("\0", "")
    return data.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\0", "")
