"""What is known of a soak when it is over: what every client sent and was told, and what the log says. Plain data, so
that each check can be shown a story with a mistake in it.

One `Record` is one workspace. Times are those of the monotonic clock of the process that made the load.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from typing import Literal

from kedge.protocol.events import Event
from kedge.protocol.runs import OnBusy, Permissions, RunKind, RunState

Ending = Literal["completed", "failed", "any"]


def no_numbers() -> array[int]:
    return array("q")


@dataclasses.dataclass(frozen=True)
class Asked:
    """One request: `status` is None where no answer came; the server may have done it all the same."""

    began: float
    ended: float
    status: int | None
    code: str = ""  # of an error
    has_retry_after: bool = False


@dataclasses.dataclass(frozen=True)
class Body:
    """What makes two prompts the same (P3)."""

    session_id: str
    prompt: str
    kind: RunKind = "prompt"
    on_busy: OnBusy = "queue"
    permissions: Permissions = "ask"
    model: str | None = None


@dataclasses.dataclass(frozen=True)
class Sent:
    """One try to send a prompt. With `202` it has its receipt."""

    run_id: str
    body: Body
    asked: Asked
    seq: int = 0
    state: RunState = "queued"
    replayed: bool = False
    told: str = ""  # the run that the receipt names
    by_command: bool = False  # sent by `kedge run`, whose answers nobody but itself saw


@dataclasses.dataclass(frozen=True)
class Work:
    """What a run was asked to do: how it ends if nothing comes between, the mark that its command leaves in a file, and
    the number by which its long process is found."""

    run_id: str
    ending: Ending = "any"
    answer: str | None = None
    mark: str = ""
    process: str = ""


@dataclasses.dataclass(frozen=True)
class Cancel:
    """`cancelled` is what the answer named. Of one run: the state that the answer told."""

    scope: Literal["session", "run", "queue", "delete", "command"]
    target: str
    asked: Asked
    cancelled: tuple[str, ...] = ()
    state: RunState | None = None
    is_requested: bool = False


@dataclasses.dataclass(frozen=True)
class Reply:
    """One answer to a request of a run, and what the server made of it."""

    request_id: str
    client: str
    action: str
    asked: Asked
    resolved: bool = False
    by: str = ""
    told: str = ""  # the action that counts


@dataclasses.dataclass
class Segment:
    """One connection of a reader: what it asked for and what it was shown, in order."""

    after: int | None
    log_id: str | None
    told_after: int | None = None  # by `connected`; None: it never came
    told_head: int = 0
    told_log_id: str = ""
    reset: tuple[str, int] | None = None
    seqs: array[int] = dataclasses.field(default_factory=no_numbers)
    digests: array[int] = dataclasses.field(default_factory=no_numbers)
    delivered: list[tuple[int, int]] = dataclasses.field(default_factory=list[tuple[int, int]])
    """`caught_up` and `heartbeat`: after how many events it came, and up to where all was delivered."""

    @property
    def cursor(self) -> int | None:
        """Where its reader comes back."""
        if self.told_after is None:
            return self.after
        known = [self.reset[1] if self.reset else self.told_after]
        known += [self.seqs[-1]] if self.seqs else []
        known += [self.delivered[-1][1]] if self.delivered else []
        return max(known)


@dataclasses.dataclass
class Reading:
    """A subscriber over all its connections. One that `is_faithful` came back each time with its cursor, began at 0 and
    stayed to the end."""

    name: str
    session_id: str | None = None
    is_faithful: bool = False
    segments: list[Segment] = dataclasses.field(default_factory=list[Segment])
    wrong_texts: list[str] = dataclasses.field(default_factory=list[str])
    texts: int = 0  # that were put together from pieces and were the same as in the log
    stalls: int = 0


@dataclasses.dataclass(frozen=True)
class Command:
    """A `kedge run` that ended: with this exit code, and this on its standard output."""

    run_id: str
    session_id: str
    args: tuple[str, ...]
    code: int
    out: str
    err: str
    signum: int | None = None
    timeout_s: float | None = None
    is_plain: bool = True  # standard output is the answer
    is_rejecting: bool = False


@dataclasses.dataclass(frozen=True)
class Page:
    """Messages of a session as REST told them: id and digest of each that was finished, in order."""

    session_id: str
    as_of_seq: int
    finished: tuple[tuple[str, int], ...]
    order: tuple[str, ...]


@dataclasses.dataclass
class Final:
    """The workspace when all is over, by REST and by the database."""

    busy: list[str] = dataclasses.field(default_factory=list[str])
    pending: list[str] = dataclasses.field(default_factory=list[str])
    sessions: list[str] = dataclasses.field(default_factory=list[str])
    pages: list[Page] = dataclasses.field(default_factory=list[Page])
    runs: dict[str, RunState] = dataclasses.field(default_factory=dict[str, RunState])
    stored_runs: dict[str, tuple[RunState, int]] = dataclasses.field(default_factory=dict[str, tuple[RunState, int]])


@dataclasses.dataclass(frozen=True)
class Life:
    """One server process. `survivors` are processes of earlier servers that still ran when this one was ready."""

    began: float
    ended: float
    how: Literal["killed", "told to leave"]
    exit_code: int
    survivors: tuple[str, ...] = ()
    told_at: float = 0.0  # to leave


@dataclasses.dataclass
class Record:
    name: str
    workspace_id: str
    path: str = ""
    log_id: str = ""
    log: list[Event] = dataclasses.field(default_factory=list[Event])
    digests: array[int] = dataclasses.field(default_factory=no_numbers)  # of the log's envelopes, as a stream tells it
    paged: array[int] = dataclasses.field(default_factory=no_numbers)  # the same by `W/log`
    stored: array[int] = dataclasses.field(default_factory=no_numbers)  # the same from the database
    sent: list[Sent] = dataclasses.field(default_factory=list[Sent])
    works: dict[str, Work] = dataclasses.field(default_factory=dict[str, Work])
    cancels: list[Cancel] = dataclasses.field(default_factory=list[Cancel])
    replies: list[Reply] = dataclasses.field(default_factory=list[Reply])
    readings: list[Reading] = dataclasses.field(default_factory=list[Reading])
    commands: list[Command] = dataclasses.field(default_factory=list[Command])
    pages: list[Page] = dataclasses.field(default_factory=list[Page])
    other: Counter[tuple[str, int | None]] = dataclasses.field(default_factory=Counter[tuple[str, int | None]])
    """Whatever else was asked, by name and status."""
    refused: list[Asked] = dataclasses.field(default_factory=list[Asked])  # every 503
    ends_seen: dict[str, float] = dataclasses.field(default_factory=dict[str, float])  # when a reader was shown it
    marks: Counter[str] = dataclasses.field(default_factory=Counter[str])
    left_after_cancel: list[str] = dataclasses.field(default_factory=list[str])  # processes of cancelled runs
    final: Final = dataclasses.field(default_factory=Final)
    lives: list[Life] = dataclasses.field(default_factory=list[Life])


@dataclasses.dataclass(frozen=True)
class Sample:
    """The server at one moment."""

    at: float
    life: int
    rss_bytes: int
    descriptors: int
    threads: int
    wal_bytes: int


@dataclasses.dataclass
class Machine:
    """What the load cost."""

    samples: list[Sample] = dataclasses.field(default_factory=list[Sample])
    lives: list[Life] = dataclasses.field(default_factory=list[Life])
    database_bytes: int = 0  # when all is written and closed
    versions_bytes: int = 0
    server_log_bytes: int = 0
    content_bytes: int = 0  # of messages and prompts, each once
    events: int = 0
    at_rest: Sample | None = None  # when nothing was busy any more
    orphans: list[str] = dataclasses.field(default_factory=list[str])  # processes that outlived the last server
    tracebacks: list[str] = dataclasses.field(default_factory=list[str])  # in the server's log
    crashes: list[str] = dataclasses.field(default_factory=list[str])  # stacks of an interpreter
    is_database_sound: bool = True


def digest_of(data: bytes) -> int:
    """Equal bytes have equal digests, in one process; half a million of them fit into four megabytes."""
    return hash(data)
