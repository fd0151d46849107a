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


# What an undo restores: files and conversation, or only one of them.
Restore = Literal["both", "files", "conversation"]


class FileStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an undo, a redo or a fork does to a file, or why it cannot. Without line counts, they are not known."""

    path: str
    status: FileStatus  # what it does to the file
    obstacle: Obstacle | None = None
    added: int | None = None  # lines
    removed: int | None = None


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
    restore: Restore = "both"
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


TimelineState = Literal["current", "undone", "dropped"]  # undone: can be redone; dropped: cannot any more


class TimelineFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of a file. An undo leaves an `unsure` one, unless it is asked to include it."""

    path: str
    status: FileStatus
    added: int
    removed: int
    unsure: Unsure | None = None
    undone: bool = False


class TimelineCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one call of a tool changed. `command` is that of `bash`, or of the user (tool `shell`)."""

    tool: str
    files: list[TimelineFile]
    command: str | None = None
    more: int = 0  # files that are not listed


class TimelineTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Files that going back to a prompt would change, by the record, and their lines."""

    files: int = 0
    added: int = 0
    removed: int = 0
    unsure: int = 0  # files that are left, because what changed them is not known


class TimelineTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt, and the changes up to the next one."""

    seq: int
    message_id: str
    run_id: str
    prompt: str
    created_at: float
    state: TimelineState
    calls: list[TimelineCall]
    back: TimelineTotal


class TimelineUndo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An undo of the session. `state`: undone (can be redone), redone, or dropped (by a later prompt)."""

    seq: int
    message_id: str  # it went back to before this message
    restore: Restore
    state: Literal["undone", "redone", "dropped"]
    at: float | None = None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a session's files, oldest first: its prompts with their changes, and its undos."""

    turns: list[TimelineTurn]
    undos: list[TimelineUndo]
    omitted: int  # earlier prompts that are not listed
    notes: list[str]


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
