"""What the interface remembers between its lives: sent prompts, and what was being written, also after a crash.

What is written is kept in a file for each interface and workspace. The next one that starts there takes over those
whose interface is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kedge.tui.editor.draft import Content
from kedge.tui.editor.history import History

MAX_KEPT_BYTES = 16 * 1024 * 1024  # of one draft with its images; what is larger lives as long as its interface

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Content]).decode


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
                found.append((path.stat().st_mtime, _decode(path.read_bytes())))
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
            data = _encode(kept)
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
