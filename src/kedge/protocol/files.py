"""Files that a session changed, and the results of undo, redo and fork."""

from __future__ import annotations

from typing import Literal

import msgspec

from kedge.protocol.errors import Conflict, ErrorBody
from kedge.protocol.sessions import Session

FileStatus = Literal["created", "modified", "deleted"]
# Why the author of a change is unknown: a background job was running and no command, so it was the job or the user; or
# the server crashed, so it was the interrupted command or the user.
Unsure = Literal["background_job", "interrupted"]
# Why a file is not restored: it was changed since, something else is at its path, it was too large to be stored, it is
# not a regular file, its version was pruned, or the author of a change is unknown (other files are still restored).
Obstacle = Literal["changed", "in_the_way", "too_large", "special", "not_kept", "background_job", "interrupted"]


class FileStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an undo, a redo or a fork does to a file, or why it cannot."""

    path: str
    status: FileStatus  # what it does to the file
    obstacle: Obstacle | None = None


class SessionFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that a session or a run changed, from before the first change to after the last."""

    path: str
    status: FileStatus
    versions: int  # number of changes
    added: int
    removed: int
    diff: str | None = None


class SessionFiles(msgspec.Struct, frozen=True):
    """`notes` are for the user: commands whose changes are unknown, in a tree that is too large to watch."""

    files: list[SessionFile]
    notes: list[str]


class SessionFilesQuery(msgspec.Struct, frozen=True):
    run_id: str | None = None
    diff: bool = False


class UndoBody(msgspec.Struct, frozen=True, kw_only=True):
    """`message_id`: everything from this message on (default: from the last user message on)."""

    message_id: str | None = None
    dry_run: bool = False
    force: bool = False
    include_unsure: bool = (
        False  # also files that a background job, an interrupted command or the user may have changed
    )


class RedoBody(msgspec.Struct, frozen=True, kw_only=True):
    dry_run: bool = False


class ForkBody(msgspec.Struct, frozen=True, kw_only=True):
    """`message_id`: the last message of the new session (default: the last one)."""

    message_id: str | None = None
    with_files: bool = False
    dry_run: bool = False
    force: bool = False
    include_unsure: bool = False


class Rewound(Session, frozen=True, kw_only=True):
    """The session afterwards (after a fork: the new one), and what was done to files.

    `prompt` is the prompt that an undo removed, as the user types it: a command starts with `!`.
    """

    files: list[FileStep]
    notes: list[str]
    dry_run: bool
    prompt: str | None = None


class NothingToRedo(Conflict):
    def __init__(self) -> None:
        super().__init__("nothing_to_redo", "nothing to redo: no undo since the last prompt of this session")


class FilesConflictBody(ErrorBody, frozen=True):
    files: tuple[FileStep, ...] = ()


class FilesConflict(Conflict):
    """Changes of the user would be lost; nothing was done."""

    def __init__(self, message: str, files: list[FileStep]) -> None:
        super().__init__("files_conflict", message)
        self.files = files

    @property
    def body(self) -> FilesConflictBody:
        return FilesConflictBody(self.code, self.message, tuple(self.files))
