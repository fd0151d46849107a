"""How the interface was started."""

from __future__ import annotations

from typing import NamedTuple

from kedge.protocol.runs import Mode


class Launch(NamedTuple):
    directory: str = "."
    host: str | None = None
    data_dir: str | None = None
    token_file: str | None = None
    session_id: str | None = None
    is_continued: bool = False  # go on with the session that was used last
    model: str | None = None
    mode: Mode | None = None
