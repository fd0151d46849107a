"""New errors after an edit, for the model: of the edited files, and of open files that the edit broke.

Only errors that were not there before are reported, once. Diagnostics that are not there in time are left out; what
they show comes with a later result.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kedge.jsonrpc.errors import PeerError
from kedge.lsp.documents import Document, ErrorKey, FileChange, read_snapshot
from kedge.lsp.manager import LanguageServers
from kedge.lsp.messages import SEVERITIES, Diagnostic, Position
from kedge.lsp.server import LanguageServer
from kedge.protocol.text_safety import one_line
from kedge.tools.port import ToolScope, display_path

WAIT_S = 2.0  # a result waits so long for diagnostics of a running server
BASELINE_S = 30.0  # in the background, after a file was shown
MAX_PER_FILE = 20
MAX_FILES = 6
MAX_MESSAGE_CHARS = 400
MAX_CODE_CHARS = 60
PREPARE_S = 1.0  # an edit of a file that was not viewed waits so long for the errors that it has
MAX_MISSED = 2  # nothing waits for a server that had nothing to say in time so often in a row
MAX_OTHERS = 20  # open documents that are asked for again after an edit


class Finding(NamedTuple):
    """An error to report."""

    path: Path
    line: int  # both count from 1
    column: int
    text: str
    server: str


class Reporter:
    """Knows which errors the model was told of, by the documents of a workspace's servers."""

    def __init__(self, servers: LanguageServers) -> None:
        self._servers = servers
        self._tasks: set[asyncio.Task[None]] = set()
        self._late: dict[Path, None] = {}  # edited files whose diagnostics did not come in time
        self._lines_before: dict[Path, frozenset[str]] = {}  # of files that were edited before their errors were known

    def touch(self, path: Path) -> None:
        """Start the servers of a file that the model sees, and learn which errors it has already; returns at once."""
        self._start(self._learn_baseline(path))

    async def prepare(self, paths: Sequence[Path]) -> None:
        """Learn which errors files have that are about to be edited, for a short time; else remember their lines."""
        deadline = asyncio.get_running_loop().time() + PREPARE_S
        for path in paths:
            servers = await self._servers.find(path)
            documents = [document for server in servers if (document := server.documents.find(path)) is not None]
            is_known = len(documents) == len(servers) and all(each.known_errors is not None for each in documents)
            if is_known and not await self._servers.is_starting(path):
                continue
            snapshot = await asyncio.to_thread(read_snapshot, path)
            lines = snapshot.text.splitlines() if snapshot is not None else []
            self._lines_before.setdefault(path, frozenset(line.strip() for line in lines))
            for server in servers:
                with contextlib.suppress(PeerError):
                    document = await server.documents.sync(path)
                    if document is not None and document.known_errors is None:
                        await self._diagnose(server, document, deadline)
                        if document.is_diagnosed:
                            _take_new(server, document)

    def note_changes(self, changes: Mapping[Path, FileChange]) -> None:
        """Tell the servers of files that a command changed; returns at once."""
        self._start(self._sync(changes))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until what was begun in the background is done."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def check(self, changes: Mapping[Path, FileChange], wait_s: float = WAIT_S) -> list[Finding]:
        """Return the new errors after these changes of files."""
        deadline = asyncio.get_running_loop().time() + wait_s
        paths = list(dict.fromkeys([*changes, *self._late]))
        self._late.clear()
        await self._sync(changes)
        by_server: dict[LanguageServer, list[Path]] = {}
        for path in paths:
            for server in await self._servers.find(path):
                by_server.setdefault(server, []).append(path)
            if await self._servers.is_starting(path):
                self._late[path] = None
        checks = [self._check_server(server, its, deadline) for server, its in by_server.items()]
        found = [finding for each in await asyncio.gather(*checks) for finding in each]
        for path in paths:
            if path not in self._late:
                self._lines_before.pop(path, None)
        return _drop_doubles(found)

    async def _check_server(self, server: LanguageServer, paths: Sequence[Path], deadline: float) -> list[Finding]:
        findings: list[Finding] = []
        with contextlib.suppress(PeerError):
            edited = [document for path in paths if (document := await server.documents.sync(path)) is not None]
            others = [document for document in server.documents.list() if document not in edited][-MAX_OTHERS:]
            if (options := server.pull_options) is not None and options.inter_file_dependencies:
                for document in others:
                    document.diagnosed_version = None
            asked = [*edited, *(each for each in others if not each.is_diagnosed)]
            is_fresh = await asyncio.gather(*(self._diagnose(server, each, deadline) for each in asked))
            self._late |= {document.path: None for document, fresh in zip(asked, is_fresh, strict=True) if not fresh}
            for document in (*edited, *others):
                if document.is_diagnosed:
                    is_known = document in edited or document.known_errors is not None
                    found = _take_new(server, document, self._lines_before.get(document.path))
                    findings += found if is_known else ()
        return findings

    async def _diagnose(self, server: LanguageServer, document: Document, deadline: float) -> bool:
        left = deadline - asyncio.get_running_loop().time()
        if document.missed >= MAX_MISSED:
            left = 0.0
        is_fresh = False
        with contextlib.suppress(PeerError):
            is_fresh = await server.diagnose(document, max(left, 0.0)) is not None
        document.missed = 0 if is_fresh else document.missed + 1
        return is_fresh

    async def _learn_baseline(self, path: Path) -> None:
        for server in await self._servers.find_ready(path, BASELINE_S):
            with contextlib.suppress(PeerError):
                document = await server.documents.sync(path)
                if document is None or document.known_errors is not None or path in self._lines_before:
                    continue  # in the last case it was edited meanwhile
                version = document.version
                await server.diagnose(document, BASELINE_S)
                is_new = document.known_errors is None and path not in self._lines_before
                if is_new and document.is_diagnosed and document.version == version:
                    _take_new(server, document)

    async def _sync(self, changes: Mapping[Path, FileChange]) -> None:
        """Tell every server: of its open documents their texts, and of other files that something happened to them."""
        for server in self._servers.running():
            with contextlib.suppress(PeerError):
                is_open = {path for path in changes if server.documents.find(path) is not None}
                await server.documents.sync_all()
                await server.documents.tell_changed({p: change for p, change in changes.items() if p not in is_open})


def _take_new(server: LanguageServer, document: Document, lines_before: frozenset[str] | None = None) -> list[Finding]:
    """Return the errors that the model does not know of; it knows them from now on.

    `lines_before`: of the text before the first edit. Where the errors of that text are not known, those in other lines
    count as new.
    """
    errors = document.list_errors(server.encoding)
    if document.known_errors is None and lines_before is not None:
        document.known_errors = Counter(key for key, _ in errors if key[2] in lines_before)
    left: Counter[ErrorKey] = Counter(document.known_errors or {})
    document.known_errors = Counter(key for key, _ in errors)
    new: list[Finding] = []
    for key, error in errors:
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(make_finding(server, document, error))
    return new


def make_finding(server: LanguageServer, document: Document, diagnostic: Diagnostic) -> Finding:
    index, start = document.index(server.encoding), diagnostic.range.start
    column = index.to_offset(start) - index.to_offset(Position(start.line, 0))
    return Finding(document.path, start.line + 1, column + 1, describe(diagnostic), server.name)


def describe(diagnostic: Diagnostic) -> str:
    """Return one line: severity, message, and the code that turns it off."""
    message = one_line(diagnostic.message, MAX_MESSAGE_CHARS)
    code = f" [{one_line(str(diagnostic.code), MAX_CODE_CHARS)}]" if diagnostic.code not in (None, "") else ""
    return f"{SEVERITIES.get(diagnostic.severity or 1, 'error')}: {message}{code}"


def _drop_doubles(findings: Iterable[Finding]) -> list[Finding]:
    """Drop what a second server says of a line that another one complained about already."""
    first: dict[tuple[Path, int], str] = {}
    return [each for each in findings if first.setdefault((each.path, each.line), each.server) == each.server]


def format_findings(findings: Sequence[Finding], scope: ToolScope) -> str:
    """Return lines such as `src/a.py:3:1: error: …`, a bounded number for each file and of files."""
    by_path: dict[Path, list[Finding]] = {}
    for each in findings:
        by_path.setdefault(each.path, []).append(each)
    lines: list[str] = []
    for path, its in list(by_path.items())[:MAX_FILES]:
        lines += [f"{display_path(scope, path)}:{each.line}:{each.column}: {each.text}" for each in its[:MAX_PER_FILE]]
        if len(its) > MAX_PER_FILE:
            lines.append(f"… and {len(its) - MAX_PER_FILE} more in {display_path(scope, path)}")
    if len(by_path) > MAX_FILES:
        rest = sum(len(its) for its in list(by_path.values())[MAX_FILES:])
        lines.append(f"… and {rest} more in {len(by_path) - MAX_FILES} other files")
    return "\n".join(lines)
