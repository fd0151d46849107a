"""Language servers as clients see them: `GET W/lsps`, and the payload of `lsp_event`."""

from __future__ import annotations

from typing import Literal

import msgspec

# "stopped": it was idle, and is started again when it is needed. "failed": `error` says why; it is tried again later.
LspState = Literal["starting", "ready", "stopped", "failed"]


class LspServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server that was started for a root: a directory of the workspace, as a path relative to it."""

    name: str
    root: str
    state: LspState
    is_busy: bool = False  # it loads or indexes the project
    error: str | None = None
    pid: int | None = None
    documents: int = 0  # open in it
    errors: int = 0  # in those documents
    warnings: int = 0
    stderr: str | None = None  # the end of what it wrote to its standard error


class LspServers(msgspec.Struct, frozen=True):
    servers: list[LspServer]


class LspEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a server changed, or the number of errors in its documents did."""

    name: str
    root: str
    state: LspState
    is_busy: bool = False
    error: str | None = None
    errors: int = 0
    warnings: int = 0
