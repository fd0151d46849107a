"""The language servers of a workspace as the agent uses them: after edits, for its tools, and described to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kedge.jsonrpc.stdio import RecordedProcess
from kedge.lsp.features import LanguageFeatures
from kedge.lsp.manager import LanguageServers
from kedge.lsp.reports import Reporter, format_findings
from kedge.protocol.lsp import LspEvent, LspServer, LspServers
from kedge.tools.port import Output, ToolScope, display_path

MAX_EDITED = 50  # files of one result that are checked


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

    async def add_new_errors(self, output: Output, scope: ToolScope) -> Output:
        """Return the result of an edit with the errors that are new since it."""
        files = (output.metadata or {}).get("files")
        paths = [path for path in map(Path, files) if path.is_relative_to(self._directory)] if files else []
        if not paths:
            return output
        found = await self.reporter.check(paths[:MAX_EDITED])
        self._publish()
        hidden = scope.is_hidden
        found = [each for each in found if hidden is None or not hidden(str(each.path))]
        if not found:
            return output
        text = format_findings(found, scope)
        metadata: dict[str, Any] = {**(output.metadata or {}), "diagnostics": [
            {
                "path": display_path(scope, each.path),
                "line": each.line,
                "column": each.column,
                "message": each.text,
                "server": each.server,
            }
            for each in found
        ]}  # fmt: skip
        return msgspec.structs.replace(
            output, content=f"{output.content}\n\nNew errors since this change:\n{text}", metadata=metadata
        )

    def touch(self, path: Path) -> None:
        """The model reads a file: start its servers, so that they are ready for an edit."""
        if path.is_relative_to(self._directory):
            self.reporter.touch(path)

    def note_changes(self, paths: Sequence[Path]) -> None:
        """A command changed these files."""
        if self.servers.running():
            self.reporter.note_changes(paths)

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
        return str(root.relative_to(self._directory)) if root.is_relative_to(self._directory) else str(root)

    def _publish(self) -> None:
        """Tell the clients what changed since the last time."""
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
