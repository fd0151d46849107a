"""A file over HTTP that goes on where it stopped: after a dropped connection, and after the program was ended."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path

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
