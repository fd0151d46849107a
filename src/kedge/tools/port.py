"""What a tool is, and what it gets to work with.

A tool is data and one async function: its parameters are a struct whose JSON schema the model sees, its description is
the Markdown file beside its module. What it wants to do that may need a person's leave is told before it starts
(`wants`), because a call that only waits for a person has not started (P13).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from kedge.config.schema import Config
from kedge.protocol.messages import Image
from kedge.protocol.requests import Answer

if TYPE_CHECKING:
    from kedge.tools.process.jobs import Jobs
    from kedge.tools.sandbox.sandbox import Sandbox

WantKind = Literal["read", "write", "execute", "fetch"]
# How a command runs: as the user's own commands do; in the read-only sandbox; or, where there is no sandbox, in an
# environment without secrets and without anything that changes what the command means.
RunAs = Literal["approved", "sandboxed", "unapproved"]


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """Something a call is about to do: a path to read or write (resolved), a command to run, an address to fetch."""

    kind: WantKind
    subject: str
    description: str  # one line for the person who is asked
    params: dict[str, Any] = {}  # what a client shows beside it, like the diff
    is_free: bool = False  # it is held by a sandbox, and configured not to be asked about
    can_sandbox: bool = False  # of a command: the read-only sandbox can be had for it
    unsandboxed: bool = False  # of a command: the model wants it to run without the read-only sandbox
    sandbox_problem: str = ""  # why its sandbox is unavailable: then a person decides, whatever the mode


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """A call's result. `metadata` is for clients and for `Place.known_files`; the model sees the rest."""

    content: str
    is_error: bool = False
    metadata: dict[str, Any] | None = None
    images: Sequence[Image] = ()


class Place(Protocol):
    """Where a call happens."""

    @property
    def directory(self) -> Path: ...  # the workspace, resolved
    @property
    def env(self) -> Mapping[str, str]: ...  # the caller's variables, or the server's
    @property
    def config(self) -> Config: ...
    @property
    def scratch(self) -> Path: ...  # this session's own directory for outputs too long to show; it may not be there yet
    @property
    def judged_path(self) -> Path | None: ...  # of a call at work: the resolved path that it may touch, and no other
    @property
    def hidden(self) -> Callable[[str], bool] | None: ...  # of a resolved path: whether a rule forbids to read it
    @property
    def sandbox(self) -> Sandbox: ...  # what holds its commands
    @property
    def session_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def sees_images(self) -> bool: ...
    @property
    def known_files(self) -> MutableMapping[str, str]: ...

    # resolved path → SHA-256 of its bytes when the model last saw or wrote it; made from the history, so that it holds
    # after a restart, and forgets what a summary left out. A result adds to it with metadata {"files": {path: digest}}.


class Process(Protocol):
    """A process group on record, and whoever left it: ended with its turn, or by the next server (P6, P13)."""

    @property
    def mark(self) -> str: ...  # in its environment (`KEDGE_PROCESS`) it tells whose a child is that left the group
    async def members(self) -> list[str]: ...  # who is still alive, by name and number
    def limit(self, *, processes: int, memory_bytes: int) -> None: ...  # of all together, where a control group can
    async def end(self) -> list[str]: ...  # gently, then surely; returns who outlived even that
    async def keep(self) -> None: ...  # let it outlive its turn: it ends with its workspace or the server
    async def forget(self) -> None: ...  # it has ended; also after the turn


class ToolContext(Place, Protocol):
    """One call at work. It stops by asyncio's cancellation; whatever it started that is recorded is ended for it."""

    @property
    def call_id(self) -> str: ...
    def write(self, text: str) -> None: ...  # shown at once to whoever watches (`tool_output`)
    @property
    def may_run_unsandboxed(self) -> bool: ...  # a person let this call run although there is no sandbox for it
    @property
    def run_as(self) -> RunAs: ...  # whether a command was approved, and if not, how it is confined
    @property
    def readable(self) -> Sequence[str]: ...  # what a sandboxed command may read outside the workspace
    @property
    def jobs(self) -> Jobs: ...  # of this workspace
    async def process_started(self, pid: int) -> Process: ...  # a process group's leader
    def changing(
        self, path: Path, data: bytes | None = None, counts: tuple[int, int] | None = None
    ) -> AbstractAsyncContextManager[None]: ...  # around the change of a file, whose old version is kept first
    async def delegate(self, prompt: str, title: str) -> str: ...  # a sub-agent's answer; raises ToolError
    @property
    def answer(self) -> Answer | None: ...  # a person's, to what the tool asks


Run = Callable[[ToolContext, Any], Awaitable[Output]]
Wants = Callable[[Place, Any], Awaitable[Sequence[Want]]]
Asks = Callable[[Any], list[dict[str, Any]]]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    params: type[msgspec.Struct]
    run: Run
    is_read_only: bool = False  # calls of one step that are may run side by side
    wants: Wants | None = None
    asks: Asks | None = None  # questions for a person, put before the call starts; may raise ToolError

    @property
    def description(self) -> str:
        """The Markdown file beside the tool's module."""
        return (Path(__file__).parent / "builtin" / f"{self.name}.md").read_text(encoding="utf-8").strip()
