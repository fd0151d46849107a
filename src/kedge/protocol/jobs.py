"""Background jobs of a workspace, as clients see them."""

from __future__ import annotations

from typing import Literal

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A command that outlives the run that started it. It ends with its workspace or the server."""

    id: str
    command: str
    description: str
    session_id: str
    run_id: str
    state: Literal["running", "ended"]
    exit_code: int | None  # of its shell; negative: the signal that ended it
    started_at: float
    output_file: str


class JobList(msgspec.Struct, frozen=True):
    """Newest first."""

    jobs: list[Job]
