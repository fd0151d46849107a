"""What a session did to files, and what becomes of them when it is undone, redone or forked."""

from __future__ import annotations

from typing import Literal

import msgspec

from kedge.protocol.errors import Conflict, ErrorBody
from kedge.protocol.sessions import Session

FileStatus = Literal["created", "modified", "deleted"]
# Why it is not known who changed a file: it changed while a background job was running and no command was, so that it
# was the job or the user; or around a crash of the server, so that it was the interrupted command or the user.
Unsure = Literal["background_job", "interrupted"]
# Why a file stays as it is: somebody changed it since, something else has its place, it was too large to be kept or is
# no file, its version went to make room for newer ones, or it is not known who changed it. With one of the last kind
# the other files are restored all the same.
Obstacle = Literal["changed", "in_the_way", "too_large", "special", "not_kept", "background_job", "interrupted"]


class FileStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an undo, a redo or a fork does to one file, or why it cannot."""

    path: str
    status: FileStatus  # what it does to the file
    obstacle: Obstacle | None = None


class SessionFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that a session, or one of its runs, changed: from before its first change to after its last one."""

    path: str
    status: FileStatus
    versions: int  # how often it was changed
    added: int
    removed: int
    diff: str | None = None


class SessionFiles(msgspec.Struct, frozen=True):
    """`notes` say what is not known: commands in a tree that is too large to watch."""

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
    include_unsure: bool = False  # also what a background job, an interrupted command or the user may have changed


class RedoBody(msgspec.Struct, frozen=True, kw_only=True):
    dry_run: bool = False


class ForkBody(msgspec.Struct, frozen=True, kw_only=True):
    """`message_id`: the last one that the new session has (default: the last one there is)."""

    message_id: str | None = None
    with_files: bool = False
    dry_run: bool = False
    force: bool = False
    include_unsure: bool = False


class Rewound(Session, frozen=True, kw_only=True):
    """The session as it is afterwards, what was done to files, and what was left alone. After a fork: the new session.

    `prompt` is what an undo took back, as a person types it: a command of theirs begins with `!`.
    """

    files: list[FileStep]
    notes: list[str]
    dry_run: bool
    prompt: str | None = None


class NothingToRedo(Conflict):
    def __init__(self) -> None:
        super().__init__("nothing_to_redo", "nothing was undone in this session since its last prompt")


class FilesConflictBody(ErrorBody, frozen=True):
    files: tuple[FileStep, ...] = ()


class FilesConflict(Conflict):
    """Somebody's work would be lost; nothing was touched."""

    def __init__(self, message: str, files: list[FileStep]) -> None:
        super().__init__("files_conflict", message)
        self.files = files

    @property
    def body(self) -> FilesConflictBody:
        return FilesConflictBody(self.code, self.message, tuple(self.files))
