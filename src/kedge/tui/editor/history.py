"""Prompts that were sent, of all sessions, newest last: lines of JSON in a file that only its owner reads.

Two interfaces may write at once: each line is appended whole, and whoever shortens the file keeps the others waiting.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kedge.tui.editor.draft import Content

MAX_ENTRIES = 1_000
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_ENTRY_CHARS = 20_000  # longer ones are known to this interface alone: a file of prompts is no place for logs
MAX_OWN = 50  # whose images and pastes are still at hand


class _Line(msgspec.Struct, frozen=True):
    text: str


_decode_line = msgspec.json.Decoder(_Line).decode


class History:
    """Without a path it is kept in memory alone. A file that cannot be used loses nobody's prompt: it is not there."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._read: tuple[int, int] = (-1, -1)  # the file's identity and size when it was read
        self._stored: list[Content] = []
        self._own: dict[str, Content] = {}  # what was sent from here, with its chips; by its text
        self._beside: list[Content] = []  # what is in no file

    def entries(self) -> list[Content]:
        """Oldest first, each text once, where it was used last."""
        self._refresh()
        latest = {each.text: each for each in (*self._stored, *self._beside)}
        order = dict.fromkeys(each.text for each in reversed((*self._stored, *self._beside)))
        return [self._own.get(text, latest[text]) for text in reversed(order)]

    def add(self, content: Content) -> None:
        if content.is_blank:
            return
        text = content.expanded
        if content.chips:
            self._own.pop(text, None)
            self._own[text] = content
            for old in list(self._own)[:-MAX_OWN]:
                del self._own[old]
        if self._path is None or len(text) > MAX_ENTRY_CHARS or not self._append(text):
            self._beside = [*(each for each in self._beside if each.text != text), Content(text)][-MAX_ENTRIES:]

    def _append(self, text: str) -> bool:
        assert self._path is not None
        try:
            self._refresh()
            if self._stored and self._stored[-1].text == text:
                return True
            with self._locked():
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.write(file, msgspec.json.encode(_Line(text)) + b"\n")
                finally:
                    os.close(file)
        except (OSError, UnicodeError):
            return False
        return True

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            found = self._path.stat()
            if (found.st_ino, found.st_size) == self._read:
                return
            lines = self._path.read_bytes().splitlines()
            if len(lines) > 2 * MAX_ENTRIES or found.st_size > MAX_FILE_BYTES:
                lines = self._shortened()
                found = self._path.stat()
        except OSError:
            return
        self._read = (found.st_ino, found.st_size)
        self._stored = [content for line in lines[-2 * MAX_ENTRIES :] if (content := _content(line)) is not None]

    def _shortened(self) -> list[bytes]:
        assert self._path is not None
        with self._locked():
            lines = self._path.read_bytes().splitlines()[-MAX_ENTRIES:]
            while lines and sum(map(len, lines)) > MAX_FILE_BYTES // 2:
                del lines[: max(1, len(lines) // 4)]
            beside = self._path.with_suffix(".new")
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as writing:
                writing.write(b"".join(line + b"\n" for line in lines))
            beside.replace(self._path)
        return lines

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        assert self._path is not None
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _content(line: bytes) -> Content | None:
    try:
        return Content(_decode_line(line).text)
    except msgspec.DecodeError:  # cut by a full disk, or somebody's hand
        return None


# What the interface remembers between its lives: sent prompts, and what was being written, also after a crash.


MAX_KEPT_BYTES = 16 * 1024 * 1024  # of one draft with its images; what is larger lives as long as its interface

_encode_drafts = msgspec.msgpack.Encoder().encode
_decode_drafts = msgspec.msgpack.Decoder(list[Content]).decode


def state_directory(data_dir: str | None, environ: Mapping[str, str]) -> Path:
    """Beside the data where a data directory was chosen; else where the user's programs keep their state."""
    if chosen := data_dir or environ.get("KEDGE_DATA_DIR"):
        return Path(chosen).expanduser() / "interface"
    state = environ.get("XDG_STATE_HOME") or ""
    home = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    return home / "kedge"


class Memory:
    """`workspace` tells one from another: its directory, and the host it is on. Without a directory nothing is kept."""

    def __init__(self, directory: Path | None = None, workspace: str = "") -> None:
        self.history = History(directory / "history" if directory else None)
        self._drafts = directory / "drafts" if directory else None
        self._key = hashlib.sha256(workspace.encode("utf-8", "replace")).hexdigest()[:16]
        self._lock = threading.Lock()
        self._newest = 0

    def take_over(self) -> list[Content]:
        """What was being written here when other interfaces ended, oldest first; it is this one's now."""
        if self._drafts is None:
            return []
        found: list[tuple[float, list[Content]]] = []
        for path in sorted(self._drafts.glob(f"{self._key}.*.draft")) if self._drafts.is_dir() else []:
            owner = path.name.split(".")[1]
            if owner.isdecimal() and int(owner) != os.getpid() and _is_alive(int(owner)):
                continue
            with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
                found.append((path.stat().st_mtime, _decode_drafts(path.read_bytes())))
            with contextlib.suppress(OSError):
                path.unlink()
        return [content for _, contents in sorted(found, key=lambda each: each[0]) for content in contents]

    def keep(self, contents: Sequence[Content], version: int) -> None:
        """Keep what is written, and what is on its way. Of versions that come in another order the newest counts."""
        if self._drafts is None:
            return
        kept = [content for content in contents if not content.is_blank]
        path = self._drafts / f"{self._key}.{os.getpid()}.draft"
        with self._lock, contextlib.suppress(OSError):  # a full disk must not end an interface
            if version < self._newest:
                return
            self._newest = version
            if not kept:
                path.unlink(missing_ok=True)
                return
            data = _encode_drafts(kept)
            if len(data) > MAX_KEPT_BYTES:
                return
            self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside = path.with_suffix(".new")
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(data)
            beside.replace(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


# Walking the history: what was being written is at its end, and every entry that was changed on the way stays so.


class Left(NamedTuple):
    """What a submit leaves behind: what was being written before, and other entries that were changed."""

    draft: Content | None
    changed: list[Content]


class Recall:
    def __init__(self, history: History) -> None:
        self._history = history
        self._entries: list[Content] = []
        self._at = 0  # len(entries): what is being written
        self._changed: dict[int, Content] = {}

    @property
    def held(self) -> list[Content]:
        """What was written and is not shown now: Down, or Up, brings it back."""
        return [content for at, content in sorted(self._changed.items()) if at != self._at and not content.is_blank]

    def older(self, current: Content) -> Content | None:
        """The entry before; None: there is none."""
        if not self._changed and self._at == len(self._entries):
            self._entries = self._history.entries()
            self._at = len(self._entries)
        if self._at == 0:
            return None
        return self._step(current, -1)

    def newer(self, current: Content) -> Content | None:
        if self._at >= len(self._entries):
            return None
        return self._step(current, +1)

    def leave(self) -> Left:
        """The walk is over: what it shows now was sent."""
        end = len(self._entries)
        changed = {at: content for at, content in self._changed.items() if at != self._at and not content.is_blank}
        self._entries, self._at, self._changed = [], 0, {}
        return Left(changed.pop(end, None), list(changed.values()))

    def _step(self, current: Content, by: int) -> Content:
        if self._at == len(self._entries) or current.text != self._entries[self._at].text:
            self._changed[self._at] = current
        else:
            self._changed.pop(self._at, None)
        self._at += by
        shown = self._entries[self._at] if self._at < len(self._entries) else Content()
        return self._changed.get(self._at, shown)
