"""The interface of a tool, and of the context it runs in.

A tool is data and one async function (`run`). The JSON schema of its parameters and the Markdown file beside its module
are sent to the model. `list_access` names what a call is about to read, write, execute or fetch, so that permission is
checked before the call starts: a call that waits for a person has not started (P13). Paths from the model are resolved
once, including links and `..`, before that check.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, MutableSet, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from kedge.config.schema import Config
from kedge.protocol.messages import Image
from kedge.protocol.requests import Answer
from kedge.protocol.tools import ToolFacts
from kedge.skills.library import Library
from kedge.tools.errors import ToolError

if TYPE_CHECKING:
    from kedge.tools.process.command import Jobs
    from kedge.tools.process.spawn import Process
    from kedge.tools.sandbox.sandbox import Sandbox

MAX_PATH_CHARS = 4096  # the kernel's limit

AccessKind = Literal["read", "write", "execute", "fetch", "search"]
# How a command runs: "approved" like the user's own commands; "sandboxed" in the read-only sandbox; "unapproved", where
# there is no sandbox, in an environment without secrets and without variables that change the meaning of the command;
# "contained" in mode `auto`: without secrets, in the sandbox that writes only to the workspace.
RunAs = Literal["approved", "sandboxed", "unapproved", "contained"]


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """A path that a call reads or writes, a command it runs, a URL it fetches, or a query it sends."""

    kind: AccessKind
    subject: str  # the resolved path, the command line, the URL, or the query
    description: str  # one line for the person who is asked
    params: dict[str, Any] = {}  # shown by clients, for example the diff
    is_preapproved: bool = False  # sandboxed, and configured not to need a question
    says_read_only: bool = False  # of a tool of an MCP server: a claim of the server, which lets mode plan ask
    can_sandbox: bool = False  # of a command: the read-only sandbox is available
    unsandboxed: bool = False  # of a command: the model asks to run it without the read-only sandbox
    parts: tuple[Access, ...] = ()  # the accesses that a person is asked about together
    sandbox_problem: str = ""  # why the configured sandbox is not available; then a person decides in every mode


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call. The model sees all but `metadata`, which is for clients and `ToolScope.known_files`."""

    content: str
    advice: str = ""  # follows the content; for the model alone
    is_error: bool = False
    metadata: dict[str, Any] | None = None
    images: Sequence[Image] = ()

    @property
    def text(self) -> str:
        """The text for the model."""
        return self.content + self.advice


class FileEdit(NamedTuple):
    """The new content of a file, planned for the content with this SHA-256."""

    path: Path
    digest: str
    data: bytes


class LanguageService(Protocol):
    """Language servers of the workspace. Lines count from 1. Methods raise `ToolError`; results are for the model."""

    async def list_diagnostics(self, path: Path | None, scope: ToolScope, offset: int) -> str: ...
    async def find_definition(self, path: Path, line: int, symbol: str, scope: ToolScope) -> str: ...
    async def find_references(self, path: Path, line: int, symbol: str, scope: ToolScope, offset: int) -> str: ...
    async def describe_symbol(self, path: Path, line: int, symbol: str, scope: ToolScope) -> str: ...
    async def list_symbols(self, path: Path, scope: ToolScope, offset: int) -> str: ...
    async def search_symbols(self, query: str, scope: ToolScope, offset: int) -> str: ...
    async def plan_rename(
        self, path: Path, line: int, symbol: str, new_name: str, scope: ToolScope
    ) -> list[FileEdit]: ...
    async def list_action_titles(self, path: Path, first: int, last: int, scope: ToolScope) -> list[str]: ...
    async def plan_action(self, path: Path, first: int, last: int, title: str, scope: ToolScope) -> list[FileEdit]: ...


class ToolScope(Protocol):
    """The directory, configuration and sandbox that the calls of one turn share."""

    @property
    def directory(self) -> Path: ...  # the workspace, resolved
    @property
    def env(self) -> Mapping[str, str]: ...  # the caller's variables, or the server's
    @property
    def config(self) -> Config: ...
    @property
    def scratch(self) -> Path: ...  # the session's directory for long outputs; it may not exist yet
    @property
    def languages(self) -> LanguageService | None: ...  # None: switched off
    @property
    def approved_path(self) -> Path | None: ...  # of a running call: the only path it may touch, resolved
    @property
    def approved_paths(self) -> frozenset[Path]: ...  # of a running call of a tool that changes several files
    @property
    def is_hidden(self) -> Callable[[str], bool] | None: ...  # whether a rule forbids to read a resolved path
    @property
    def sandbox(self) -> Sandbox: ...
    @property
    def library(self) -> Library: ...  # skills and agents
    @property
    def session_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def sees_images(self) -> bool: ...
    @property
    def max_result_chars(self) -> int: ...  # of one result; a longer one is cut

    # Resolved path → SHA-256 of the bytes that the model last saw or wrote. Computed from the history, so it survives a
    # restart and drops what a summary left out. A result adds to it with metadata {"files": {path: digest}}.
    @property
    def known_files(self) -> MutableMapping[str, str]: ...

    # Those of the known files that the model edited without reading them: it may not replace them as a whole. A result
    # adds to it with metadata {"unviewed": [path]} beside "files".
    @property
    def unviewed_files(self) -> MutableSet[str]: ...


class ToolContext(ToolScope, Protocol):
    """The context of one running call. The call is canceled by asyncio; its recorded processes are ended for it."""

    @property
    def call_id(self) -> str: ...
    def write(self, text: str) -> None: ...  # live output for watching clients (`tool_output`)
    @property
    def may_run_unsandboxed(self) -> bool: ...  # a person allowed this call although the sandbox is not available
    @property
    def run_as(self) -> RunAs: ...
    @property
    def readable_paths(self) -> Sequence[str]: ...  # paths outside the workspace that a sandboxed command may read
    @property
    def jobs(self) -> Jobs: ...  # of the workspace
    async def record_process(self, pid: int) -> Process: ...  # records the group of which `pid` is the leader
    def record_change(
        self, path: Path, data: bytes | None = None, counts: tuple[int, int] | None = None
    ) -> AbstractAsyncContextManager[None]: ...  # surrounds the change of a file; stores the old version first
    async def find_search_key(self) -> str | None: ...  # of the configured search service; raises ToolError
    async def add_cost(self, dollars: float) -> None: ...  # of a service that the call used
    async def run_command(self, line: str) -> str: ...  # the output of one of `list_commands`, or why it was not run
    # The answer of a sub-agent: one of the library, or the general one. Raises ToolError.
    async def delegate(self, prompt: str, title: str, agent: str = "") -> str: ...
    @property
    def is_attended(self) -> bool: ...  # whether a person can answer questions
    async def ask(self, questions: list[dict[str, Any]]) -> Answer: ...  # while the call runs; durable (P14)
    async def state(self) -> bytes | None: ...  # what `keep_state` stored, also before a restart
    async def keep_state(self, state: bytes | None) -> None: ...  # None: from now on a crash interrupts the call
    @property
    def is_stopping(self) -> bool: ...  # a cancellation comes from the server's stop; the next one goes on
    @property
    def answer(self) -> Answer | None: ...  # the person's answer to `list_questions`


Run = Callable[[ToolContext, Any], Awaitable[Output]]
ListAccess = Callable[[ToolScope, Any], Awaitable[Sequence[Access]]]
ListQuestions = Callable[[Any], list[dict[str, Any]]]
ListRules = Callable[[ToolScope, Any], Sequence[str]]
ListCommands = Callable[[ToolScope, Any], Awaitable[Sequence[str]]]


class JsonParams(msgspec.Struct, frozen=True):
    """The input of a tool that has a JSON schema instead of a struct."""

    values: dict[str, Any]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is not built in has its own `text` and `input_schema`, and gets `JsonParams`."""

    facts: ToolFacts
    params: type[msgspec.Struct]
    run: Run
    list_access: ListAccess | None = None
    changes_several: bool = False  # files: the call may touch `ToolContext.approved_paths`
    list_questions: ListQuestions | None = None  # for a person, asked before the call starts; may raise ToolError
    text: str | None = None
    input_schema: dict[str, Any] | None = None
    list_commands: ListCommands | None = None  # that the call runs; permission is asked for each before it starts
    list_rules: ListRules | None = None  # permission rules that hold from this call on, until the turn ends

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def is_read_only(self) -> bool:
        return self.facts.is_read_only

    @property
    def description(self) -> str:
        """The text for the model: of a built-in tool, the Markdown file beside its module."""
        if self.text is not None:
            return self.text
        return (Path(__file__).parent / "builtin" / f"{self.name}.md").read_text(encoding="utf-8").strip()


def resolve_path(scope: ToolScope, given: str) -> Path:
    """Return the absolute path without links for a path that may start with `~` or be relative to the workspace.

    It need not exist. A running call gets its approved path: resolving again could follow a link made meanwhile.
    """
    if scope.approved_path is not None:
        return scope.approved_path
    if not given.strip():
        raise ToolError("The path is empty;", "give the path of a file.")
    if "\0" in given:
        raise ToolError("The path contains a NUL character, which no file name can;", "give the path without it.")
    if len(given) > MAX_PATH_CHARS:
        raise ToolError(f"The path has {len(given):,} characters, more than any path can have;", "give only the path.")
    try:
        return Path(os.path.realpath(scope.directory / _expand_home(given, scope)))
    except (OSError, ValueError, RuntimeError) as error:  # an unknown home directory, or half a surrogate pair
        raise ToolError(f"{given!r} is not a possible path ({error});", "give another.") from error


def display_path(scope: ToolScope, path: Path) -> str:
    """Return a resolved path relative to the workspace if it is inside, else absolute."""
    return str(path.relative_to(scope.directory) if path.is_relative_to(scope.directory) else path)


def _expand_home(given: str, scope: ToolScope) -> str:
    """Expand `~` to the caller's home, which may differ from the server's."""
    home = scope.env.get("HOME")
    if home and (given == "~" or given.startswith("~/")):
        return home + given[1:]
    return str(Path(given).expanduser()) if given.startswith("~") else given
