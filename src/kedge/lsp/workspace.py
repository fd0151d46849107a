"""The language servers of a workspace as the agent uses them: after edits, for its tools, and described to people."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from kedge.jsonrpc.stdio import RecordedProcess
from kedge.lsp.documents import CHANGED, CREATED, DELETED, FileChange
from kedge.lsp.features import LanguageFeatures
from kedge.lsp.manager import LanguageServers
from kedge.lsp.positions import replace_surrogates
from kedge.lsp.reports import Reporter, format_findings
from kedge.protocol.files import FileStatus
from kedge.protocol.lsp import LspEvent, LspServer, LspServers
from kedge.tools.port import Output, ToolScope, display_path

MAX_EDITED = 50  # files of one result that are checked
MAX_IN_METADATA = 50  # errors that people see below a result
_CHANGES: Mapping[FileStatus, FileChange] = {"created": CREATED, "modified": CHANGED, "deleted": DELETED}


class Host(Protocol):
    """What the servers of a workspace need of the engine."""

    async def record_process(self, pid: int) -> RecordedProcess: ...
    def publish(self, event: LspEvent) -> None: ...


class WorkspaceLanguages:
    def __init__(self, directory: Path, environ: Mapping[str, str], host: Host) -> None:
        self._directory = directory
        self._host = host
        self._published: dict[tuple[str, str], LspEvent] = {}
        self.servers = LanguageServers(directory, environ, host.record_process, self._publish)
        self.features = LanguageFeatures(self.servers)
        self.reporter = Reporter(self.servers)

    async def prepare(self, paths: Collection[Path]) -> None:
        """Files are about to be edited: learn which errors they have."""
        inside = [path for path in paths if path.is_relative_to(self._directory)]
        await self.reporter.prepare(inside[:MAX_EDITED])

    async def add_new_errors(self, output: Output, scope: ToolScope) -> Output:
        """Return the result of an edit with the errors that are new since it."""
        metadata = output.metadata or {}
        created = frozenset(metadata.get("created", ()))
        changes = {Path(name): CREATED if name in created else CHANGED for name in metadata.get("files", ())}
        changes = {path: change for path, change in changes.items() if path.is_relative_to(self._directory)}
        if not changes:
            return output
        found = await self.reporter.check(dict(islice(changes.items(), MAX_EDITED)))
        self._publish()
        hidden = scope.is_hidden
        found = [each for each in found if hidden is None or not hidden(str(each.path))]
        if not found:
            return output
        text = format_findings(found, scope)
        diagnostics = [
            {
                "path": replace_surrogates(display_path(scope, each.path)),
                "line": each.line,
                "column": each.column,
                "message": each.text,
                "server": each.server,
            }
            for each in found[:MAX_IN_METADATA]
        ]
        return msgspec.structs.replace(
            output,
            content=f"{output.content}\n\nNew errors since this change:\n{text}",
            metadata={**metadata, "diagnostics": diagnostics, "errors": len(found)},
        )

    def touch(self, path: Path) -> None:
        """The model reads a file: start its servers, so that they are ready for an edit."""
        if path.is_relative_to(self._directory):
            self.reporter.touch(path)

    def note_changes(self, changes: Mapping[Path, FileStatus]) -> None:
        """A command changed these files."""
        if self.servers.running():
            self.reporter.note_changes({path: _CHANGES[status] for path, status in changes.items()})

    def describe(self) -> LspServers:
        return LspServers(
            [
                LspServer(
                    name=state.name,
                    root=self._show_root(state.root),
                    state=state.state,
                    is_busy=state.is_busy,
                    error=state.error or None,
                    pid=state.pid,
                    documents=state.documents,
                    errors=state.errors,
                    warnings=state.warnings,
                    stderr=state.stderr or None,
                )
                for state in self.servers.list_states()
            ]
        )

    async def close(self) -> None:
        await self.reporter.close()
        await self.servers.close()

    def _show_root(self, root: Path) -> str:
        return replace_surrogates(str(root.relative_to(self._directory)))

    def _publish(self) -> None:
        """Tell the clients what changed since the last time."""
        left = set(self._published)
        for state in self.servers.list_states():
            root = self._show_root(state.root)
            event = LspEvent(
                name=state.name,
                root=root,
                state=state.state,
                is_busy=state.is_busy,
                error=state.error or None,
                errors=state.errors,
                warnings=state.warnings,
            )
            if self._published.get((state.name, root)) != event:
                self._published[state.name, root] = event
                self._host.publish(event)
            left.discard((state.name, root))
        for name, root in left:  # the configuration has it no more, or it made room for another
            del self._published[name, root]
            self._host.publish(LspEvent(name=name, root=root, state="stopped"))
