"""The editor's memory on disk: sent prompts (`History`) and unsent drafts (`EditorStore`); and walking the history.

Several interfaces may use the files at once: history lines are appended whole, under a lock. Unsent drafts are saved in
a file for each interface and workspace; the next interface takes over those whose process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kedge.protocol.address import is_process_alive, open_private
from kedge.tui.editor.draft import Content

if TYPE_CHECKING:
    from textual.timer import Timer
    from textual.widget import Widget

SAVE_S = 1.0  # the most typing that a crash may lose
MAX_ENTRIES = 1_000
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_ENTRY_CHARS = 20_000  # longer entries are kept in memory only
MAX_OWN = 50  # entries whose images and pastes are kept, in memory


class _Line(msgspec.Struct, frozen=True):
    text: str


_decode_line = msgspec.json.Decoder(_Line).decode


class History:
    """Sent prompts of all sessions, one JSON line each. Without a path, or if the file fails, kept in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._read: tuple[int, int] = (-1, -1)  # inode and size of the file when it was read
        self._stored: list[Content] = []
        self._own: dict[str, Content] = {}  # sent from here, with chips; by text
        self._unstored: list[Content] = []  # not in the file

    def entries(self) -> list[Content]:
        """Return the entries, oldest first; of equal texts only the newest."""
        self._refresh()
        latest = {each.text: each for each in (*self._stored, *self._unstored)}
        order = dict.fromkeys(each.text for each in reversed((*self._stored, *self._unstored)))
        return [self._own.get(text, latest[text]) for text in reversed(order)]

    def search(self, text: str, limit: int) -> list[Content]:
        """Return the newest entries that contain the text, newest first."""
        wanted = text.casefold().strip()
        return [each for each in reversed(self.entries()) if wanted in each.text.casefold()][:limit]

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
            self._unstored = [*(each for each in self._unstored if each.text != text), Content(text)][-MAX_ENTRIES:]

    def _append(self, text: str) -> bool:
        assert self._path is not None
        try:
            self._refresh()
            if self._stored and self._stored[-1].text == text:
                return True
            with self._lock_file(), open(self._path, "ab", buffering=0, opener=open_private) as file:
                file.write(msgspec.json.encode(_Line(text)) + b"\n")
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
                lines = self._shorten()
                found = self._path.stat()
        except OSError:
            return
        self._read = (found.st_ino, found.st_size)
        self._stored = [content for line in lines[-2 * MAX_ENTRIES :] if (content := _decode_content(line)) is not None]

    def _shorten(self) -> list[bytes]:
        assert self._path is not None
        with self._lock_file():
            lines = self._path.read_bytes().splitlines()[-MAX_ENTRIES:]
            while lines and sum(map(len, lines)) > MAX_FILE_BYTES // 2:
                del lines[: max(1, len(lines) // 4)]
            _replace_file(self._path, b"".join(line + b"\n" for line in lines))
        return lines

    @contextlib.contextmanager
    def _lock_file(self) -> Generator[None]:
        assert self._path is not None
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._path.with_suffix(".lock"), "ab", opener=open_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _replace_file(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    with open(temporary, "wb", opener=open_private) as file:
        file.write(data)
    temporary.replace(path)


def _decode_content(line: bytes) -> Content | None:
    try:
        return Content(_decode_line(line).text)
    except msgspec.DecodeError:  # cut off by a full disk, or edited by hand
        return None


MAX_DRAFT_BYTES = 16 * 1024 * 1024  # of one file; larger drafts are not saved

_encode_drafts = msgspec.msgpack.Encoder().encode
_decode_drafts = msgspec.msgpack.Decoder(list[Content]).decode


def state_directory(data_dir: str | None, environ: Mapping[str, str]) -> Path:
    """Return the directory for the interface's files: in a chosen data directory, else as XDG has it."""
    if chosen := data_dir or environ.get("KEDGE_DATA_DIR"):
        return Path(chosen).expanduser() / "interface"
    state = environ.get("XDG_STATE_HOME") or ""
    home = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    return home / "kedge"


class EditorStore:
    """`workspace` identifies the workspace: its host and directory. Without a directory nothing is saved."""

    def __init__(self, directory: Path | None = None, workspace: str = "") -> None:
        self.history = History(directory / "history" if directory else None)
        self._drafts = directory / "drafts" if directory else None
        self._key = hashlib.sha256(workspace.encode("utf-8", "replace")).hexdigest()[:16]
        self._lock = threading.Lock()
        self._newest = 0

    def take_over_drafts(self) -> list[Content]:
        """Return the unsent drafts of interfaces that have ended, oldest first, and delete their files."""
        if self._drafts is None:
            return []
        found: list[tuple[float, list[Content]]] = []
        for path in sorted(self._drafts.glob(f"{self._key}.*.draft")) if self._drafts.is_dir() else []:
            owner = path.name.split(".")[1]
            if owner.isdecimal() and int(owner) != os.getpid() and is_process_alive(int(owner)):
                continue
            with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
                found.append((path.stat().st_mtime, _decode_drafts(path.read_bytes())))
            with contextlib.suppress(OSError):
                path.unlink()
        return [content for _, contents in sorted(found, key=lambda each: each[0]) for content in contents]

    def save_drafts(self, contents: Sequence[Content], version: int) -> None:
        """Save drafts. Threads may call this out of order: a version older than the saved one is ignored."""
        if self._drafts is None:
            return
        kept = [content for content in contents if not content.is_blank]
        path = self._drafts / f"{self._key}.{os.getpid()}.draft"
        with self._lock, contextlib.suppress(OSError):  # a full disk must not end the interface
            if version < self._newest:
                return
            self._newest = version
            if not kept:
                path.unlink(missing_ok=True)
                return
            data = _encode_drafts(kept)
            if len(data) > MAX_DRAFT_BYTES:
                return
            self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace_file(path, data)


class DraftSaver:
    """Saves an editor's drafts a moment after they changed, in a thread."""

    def __init__(self, widget: Widget, store: EditorStore, drafts: Callable[[], list[Content]]) -> None:
        self._widget = widget
        self._store = store
        self._drafts = drafts
        self._version = 0
        self._timer: Timer | None = None

    def save_soon(self) -> None:
        if self._timer is None and self._widget.is_mounted:
            self._timer = self._widget.set_timer(SAVE_S, self.save)

    def save(self) -> None:
        self._timer = None
        self._version += 1
        self._widget.run_worker(partial(self._save_in_thread, self._drafts(), self._version), group="save")

    async def _save_in_thread(self, drafts: list[Content], version: int) -> None:
        await asyncio.to_thread(self._store.save_drafts, drafts, version)

    def close(self) -> None:
        """Save at once."""
        if self._timer is not None:
            self._timer.stop()
        self._version += 1
        self._store.save_drafts(self._drafts(), self._version)


class HistoryWalk:
    """Moves through the history with Up and Down; the unsent text is at its end, and edits of entries are kept."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._entries: list[Content] = []
        self._at = 0  # len(entries): the unsent text
        self._edits: dict[int, Content] = {}

    @property
    def changed(self) -> dict[int, Content]:
        """Texts that were edited and are not shown now, by their place in the history."""
        edits = sorted(self._edits.items(), key=lambda edit: edit[0])
        return {at: content for at, content in edits if at != self._at and not content.is_blank}

    def older(self, current: Content) -> Content | None:
        """Return the entry before; None if there is none."""
        if not self._edits and self._at == len(self._entries):
            self._entries = self._history.entries()
            self._at = len(self._entries)
        if self._at == 0:
            return None
        return self._step(current, -1)

    def newer(self, current: Content) -> Content | None:
        if self._at >= len(self._entries):
            return None
        return self._step(current, +1)

    def finish(self) -> tuple[Content | None, list[Content]]:
        """End the walk after a submit; return the text before the walk, and changed entries that were not submitted."""
        end, changed = len(self._entries), self.changed
        self._entries, self._at, self._edits = [], 0, {}
        return changed.pop(end, None), list(changed.values())

    def _step(self, current: Content, by: int) -> Content:
        if self._at == len(self._entries) or current.text != self._entries[self._at].text:
            self._edits[self._at] = current
        else:
            self._edits.pop(self._at, None)
        self._at += by
        shown = self._entries[self._at] if self._at < len(self._entries) else Content()
        return self._edits.get(self._at, shown)
