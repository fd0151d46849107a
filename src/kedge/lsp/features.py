"""What the tools ask of language servers: diagnostics, definitions, references, hover, symbols, renames, code actions.

Results are text for the model, one place a line, bounded and paged. Places are given as a path, a line that counts from
1, and a name in that line: models count columns badly.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from kedge.jsonrpc.errors import PeerError
from kedge.lsp.documents import Document, has_mark, read_snapshot
from kedge.lsp.edits import list_paths, plan_edits
from kedge.lsp.manager import LanguageServers
from kedge.lsp.messages import (
    SYMBOL_KINDS,
    CodeAction,
    Place,
    Position,
    Range,
    Symbol,
    WorkspaceEdit,
    as_object,
)
from kedge.lsp.positions import LineIndex, uri_to_path
from kedge.lsp.reports import describe, make_finding
from kedge.lsp.server import LanguageServer
from kedge.protocol.text_safety import one_line, program_output
from kedge.tools.errors import ToolError
from kedge.tools.port import FileEdit, ToolScope, display_path

T = TypeVar("T")

START_S = 20.0  # a tool waits so long for a server that starts
DIAGNOSE_S = 10.0
INDEX_S = 15.0  # a server that still loads the project is asked again until then
SETTLE_S, SETTLE_MIN_S = 6.0, 1.5  # a server that runs so long has found the files of its project
ASK_AGAIN_S = 0.5
PAGE = 50  # places in one result
MAX_HOVER_CHARS = 4_000
MAX_LINE_CHARS = 160
MAX_SYMBOL_DEPTH = 4

Places = Place | list[Place] | None


class Target(NamedTuple):
    """A name in a file, and a server that may know it."""

    server: LanguageServer
    document: Document
    position: Position
    symbol: str


class LanguageFeatures:
    """Implements `kedge.tools.port.LanguageService`."""

    def __init__(self, servers: LanguageServers) -> None:
        self._servers = servers

    async def list_diagnostics(self, path: Path | None, scope: ToolScope, offset: int) -> str:
        """Return the problems of a file, or of all files that are open in a server."""
        if path is not None:
            servers = await self._find_servers(path, scope)
            pairs = [(server, await _open(server, path, scope)) for server in servers]
        else:
            pairs = self._servers.open_documents()
            for server in self._servers.running():
                with contextlib.suppress(PeerError):
                    await server.documents.sync_all()
        pairs = [(server, document) for server, document in pairs if not _is_hidden(scope, document.path)]
        if not pairs:
            return "No file is open in a language server yet. Name a path."
        missing: list[str] = []
        lines: list[str] = []
        results = await asyncio.gather(*(_diagnose(server, document) for server, document in pairs))
        for (server, document), diagnostics in zip(pairs, results, strict=True):
            if diagnostics is None:
                missing.append(f"{server.name} did not answer in time for {display_path(scope, document.path)}.")
                continue
            diagnostics.sort(key=lambda each: (each.severity or 1, each.range.start.line))
            for each in diagnostics:
                finding = make_finding(server, document, each)
                place = f"{display_path(scope, finding.path)}:{finding.line}:{finding.column}"
                lines.append(f"{place}: {describe(each)} ({server.name})")
        return "\n".join([_page(lines, offset, "problems") if lines else "No problems.", *missing])

    async def find_definition(self, path: Path, line: int, symbol: str, scope: ToolScope) -> str:
        return await self._find_places("textDocument/definition", "definition", path, line, symbol, scope, 0)

    async def find_references(self, path: Path, line: int, symbol: str, scope: ToolScope, offset: int) -> str:
        return await self._find_places("textDocument/references", "references", path, line, symbol, scope, offset)

    async def describe_symbol(self, path: Path, line: int, symbol: str, scope: ToolScope) -> str:
        """Return what the server shows when the pointer rests on a name: its type and documentation."""
        for target in await self._find_targets(path, line, symbol, "hover_provider", scope):
            answer = await _ask(target.server, "textDocument/hover", _at(target), Any)
            text = _read_markup(as_object(answer).get("contents")).strip()
            if text:
                return program_output(text[:MAX_HOVER_CHARS] + ("\n… (cut)" if len(text) > MAX_HOVER_CHARS else ""))
        return f"The language server knows nothing about `{symbol}`."

    async def list_symbols(self, path: Path, scope: ToolScope, offset: int) -> str:
        for server in await self._find_servers(path, scope):
            if not server.capabilities.document_symbol_provider:
                continue
            document = await _open(server, path, scope)
            params = {"textDocument": {"uri": document.uri}}
            symbols = await _ask(server, "textDocument/documentSymbol", params, list[Symbol] | None)
            return (
                _page(_format_outline(symbols or (), 0), offset, "symbols")
                or f"No symbols in {display_path(scope, path)}."
            )
        raise _unsupported("symbols", path, scope)

    async def search_symbols(self, query: str, scope: ToolScope, offset: int) -> str:
        """Return the symbols of the workspace that match a query, from all running servers."""
        servers = [server for server in self._servers.running() if server.capabilities.workspace_symbol_provider]
        if not servers:
            raise ToolError(
                "No language server that searches symbols is running;",
                "use another lsp_ tool on a file of the language first, or grep.",
            )
        params = {"query": query}
        answers = await asyncio.gather(
            *(_ask_until_loaded(each, "workspace/symbol", params, list[Symbol] | None) for each in servers)
        )
        lines = [line for symbols in answers for each in symbols or () if (line := _format_found(each, scope))]
        return _page(lines, offset, "symbols") or f"No symbol matches {query!r}."

    async def plan_rename(self, path: Path, line: int, symbol: str, new_name: str, scope: ToolScope) -> list[FileEdit]:
        """Return the changes of a rename in all files. Raises `ToolError`."""
        problem = ""
        for target in await self._find_targets(path, line, symbol, "rename_provider", scope):
            params = {**_at(target), "newName": new_name}
            try:
                edit = await _ask_until_loaded(target.server, "textDocument/rename", params, WorkspaceEdit | None)
                if edit is not None and await _open_marked(target.server, list_paths(edit), scope):
                    edit = await _ask(target.server, "textDocument/rename", params, WorkspaceEdit | None)
            except ToolError as error:
                problem = error.problem
                continue
            if edit is not None and (edit.changes or edit.document_changes):
                texts = {document.path: document.text for document in target.server.documents.list()}
                name = target.symbol.rpartition(".")[2]
                return await asyncio.to_thread(plan_edits, edit, target.server.encoding, scope, name, texts)
        raise ToolError(
            problem or f"The language server cannot rename `{symbol}` here.", "Check the line, or change it by hand."
        )

    async def list_actions(
        self, path: Path, first: int, last: int, scope: ToolScope
    ) -> list[tuple[LanguageServer, CodeAction]]:
        """Return the code actions for lines of a file that only edit text."""
        found: list[tuple[LanguageServer, CodeAction]] = []
        for server in await self._find_servers(path, scope):
            if not server.capabilities.code_action_provider:
                continue
            document = await _open(server, path, scope)
            await _diagnose(server, document)
            index = document.index(server.encoding)
            end = Position(last - 1, len(index.line(last - 1).encode()))
            span = Range(Position(first - 1, 0), index.to_position(index.to_offset(end)))
            inside = [each for each in document.diagnostics if first - 1 <= each.range.start.line <= last - 1]
            for only in (None, ["source"]):
                context: dict[str, Any] = {"diagnostics": msgspec.to_builtins(inside)}
                if only is not None:
                    context["only"] = only
                params = {"textDocument": {"uri": document.uri}, "range": msgspec.to_builtins(span), "context": context}
                answer = await _ask(server, "textDocument/codeAction", params, list[Any] | None)
                for each in answer or ():
                    with contextlib.suppress(msgspec.ValidationError):
                        action = msgspec.convert(each, CodeAction)
                        is_usable = action.edit is not None or action.data is not msgspec.UNSET
                        if action.disabled is None and is_usable and action.title == one_line(action.title):
                            found.append((server, action))
        titles: set[str] = set()
        return [pair for pair in found if pair[1].title not in titles and not titles.add(pair[1].title)]

    async def list_action_titles(self, path: Path, first: int, last: int, scope: ToolScope) -> list[str]:
        return [action.title for _, action in await self.list_actions(path, first, last, scope)][:PAGE]

    async def plan_action(self, path: Path, first: int, last: int, title: str, scope: ToolScope) -> list[FileEdit]:
        """Return the changes of the code action with this title. Raises `ToolError`."""
        actions = await self.list_actions(path, first, last, scope)
        for server, action in actions:
            if action.title != title:
                continue
            edit = action.edit
            if edit is None:
                resolved = await _ask(server, "codeAction/resolve", msgspec.to_builtins(action), CodeAction)
                edit = resolved.edit
            if edit is None:
                break
            texts = {document.path: document.text for document in server.documents.list()}
            return await asyncio.to_thread(plan_edits, edit, server.encoding, scope, None, texts)
        titles = "".join(f"\n- {action.title}" for _, action in actions[:PAGE]) or " none."
        raise ToolError(
            f"There is no action {one_line(title)!r} that edits text here.", f"Actions for these lines:{titles}"
        )

    # --- finding the server and the place

    async def _find_servers(self, path: Path, scope: ToolScope) -> list[LanguageServer]:
        servers = await self._servers.find_ready(path, START_S)
        if servers:
            return servers
        states = [each for each in self._servers.list_states() if each.state != "ready" and each.error]
        why = f" ({states[-1].name}: {states[-1].error})" if states else ""
        raise ToolError(
            f"No language server for {display_path(scope, path)} is running{why};", "use grep and view instead."
        )

    async def _find_targets(
        self, path: Path, line: int, symbol: str, capability: str, scope: ToolScope
    ) -> list[Target]:
        """Return the place of a name, for each server that has the capability. Raises `ToolError`."""
        targets: list[Target] = []
        for server in await self._find_servers(path, scope):
            if not getattr(server.capabilities, capability):
                continue
            document = await _open(server, path, scope)
            index = document.index(server.encoding)
            offset = _find_symbol(index, line, symbol, display_path(scope, path))
            targets.append(Target(server, document, index.to_position(offset), symbol))
        if not targets:
            raise _unsupported(capability.removesuffix("_provider").replace("_", " "), path, scope)
        return targets

    async def _find_places(
        self, method: str, what: str, path: Path, line: int, symbol: str, scope: ToolScope, offset: int
    ) -> str:
        for target in await self._find_targets(path, line, symbol, f"{what}_provider", scope):
            params = _at(target)
            if what == "references":
                params["context"] = {"includeDeclaration": True}
            answer = await _ask_until_loaded(target.server, method, params, Places)
            if await _open_marked(target.server, [path for path, _ in _list_places(answer)], scope):
                answer = await _ask_until_loaded(target.server, method, params, Places)
            places = [place for place in _list_places(answer) if not _is_hidden(scope, place[0])]
            if places:
                lines = await asyncio.to_thread(_format_places, places, target.server, scope)
                return _page(lines, offset, what)
        return f"No {what} of `{symbol}` found."


async def _open(server: LanguageServer, path: Path, scope: ToolScope) -> Document:
    try:
        document = await server.documents.sync(path)
    except PeerError as error:
        raise ToolError(f"{server.name}: {error.text}.") from error
    if document is None:
        raise ToolError(f"{display_path(scope, path)} is not there, is no text, or is too large for a language server.")
    return document


async def _open_marked(server: LanguageServer, paths: Iterable[Path], scope: ToolScope) -> bool:
    """Open the files that begin with a byte order mark; return whether there is one.

    Some servers count the mark in files that they read themselves. In an open document there is none.
    """
    closed = [
        path
        for path in dict.fromkeys(paths)
        if server.documents.find(path) is None and path.is_relative_to(scope.directory) and not _is_hidden(scope, path)
    ]
    marked = [path for path in closed if await asyncio.to_thread(has_mark, path)]
    for path in marked:
        with contextlib.suppress(PeerError):
            await server.documents.sync(path)
    return bool(marked)


async def _diagnose(server: LanguageServer, document: Document) -> list[Any] | None:
    try:
        diagnostics = await server.diagnose(document, DIAGNOSE_S)
    except PeerError:
        return None
    return None if diagnostics is None else list(diagnostics)


async def _ask(server: LanguageServer, method: str, params: Any, type_: Any) -> Any:
    try:
        return await server.request_fresh(method, params, type_)
    except PeerError as error:
        raise ToolError(f"{server.name} could not answer: {one_line(error.text, 300)}.") from error


async def _ask_until_loaded(server: LanguageServer, method: str, params: Any, type_: Any) -> Any:
    """As `_ask`, for answers about the whole project, which a server that is still loading it would give in part.

    Not every server says that it is loading: the answers of one that was just started count when they repeat.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + INDEX_S
    answer: Any = None
    while True:
        was_busy, before = server.is_busy, answer
        answer = await _ask(server, method, params, type_)
        is_settled = now() - server.ready_at > SETTLE_S or (answer == before and now() - server.ready_at > SETTLE_MIN_S)
        if now() > deadline or (is_settled and not was_busy):
            return answer
        if was_busy:
            await server.wait_until_idle(deadline)
        else:
            await asyncio.sleep(ASK_AGAIN_S)


def _at(target: Target) -> dict[str, Any]:
    position = {"line": target.position.line, "character": target.position.character}
    return {"textDocument": {"uri": target.document.uri}, "position": position}


def _find_symbol(index: LineIndex, line: int, symbol: str, shown: str) -> int:
    """Return the offset of a name in a line that counts from 1. Raises `ToolError`."""
    if not symbol.strip():
        raise ToolError("The symbol is empty;", "give a name as it is in the line.")
    text = index.line(line - 1)
    # A dotted name: its last part is what it names.
    name = re.escape(symbol.rpartition(".")[2] if symbol not in text else symbol)
    found = re.search(rf"(?<!\w){name}(?!\w)", text) or re.search(name, text)
    if found is None:
        shown_line = text.strip()[:MAX_LINE_CHARS]
        raise ToolError(
            f"`{symbol}` is not in line {line} of {shown}, which is: {shown_line!r}.", "Give a name of that line."
        )
    dotted = found[0].rpartition(".")[0]
    return index.to_offset(Position(line - 1, 0)) + found.start() + (len(dotted) + 1 if dotted else 0)


def _is_hidden(scope: ToolScope, path: Path) -> bool:
    """Whether a rule forbids the model to read a file."""
    return scope.is_hidden is not None and scope.is_hidden(str(path))


def _list_places(answer: Places) -> list[tuple[Path, Range]]:
    """Return each place once, in the order of files and lines."""
    places: dict[tuple[Path, int, int], tuple[Path, Range]] = {}
    for each in answer if isinstance(answer, list) else [answer] if answer is not None else []:
        path, span = uri_to_path(each.target_uri or each.uri), each.target_selection_range or each.range
        if path is not None and span is not None:
            places.setdefault((path, span.start.line, span.start.character), (path, span))
    return [places[key] for key in sorted(places)]


def _format_places(places: Sequence[tuple[Path, Range]], server: LanguageServer, scope: ToolScope) -> list[str]:
    """Return `path:line:column: text of the line`. Blocks."""
    indexes: dict[Path, LineIndex | None] = {}
    lines: list[str] = []
    for path, span in places:
        if path not in indexes:
            indexes[path] = _read_index(path, server, scope)
        index, line = indexes[path], span.start.line
        column = span.start.character
        text = ""
        if index is not None:
            column = index.to_offset(span.start) - index.to_offset(Position(line, 0))
            text = index.line(line).strip()[:MAX_LINE_CHARS]
        lines.append(f"{display_path(scope, path)}:{line + 1}:{column + 1}: {text}".rstrip(": "))
    return lines


def _read_index(path: Path, server: LanguageServer, scope: ToolScope) -> LineIndex | None:
    """Return the text of a place; None outside of the workspace, where the model may not read without permission."""
    if (document := server.documents.find(path)) is not None:
        return document.index(server.encoding)
    real = path.resolve()
    if not real.is_relative_to(scope.directory) or _is_hidden(scope, real):
        return None
    snapshot = read_snapshot(real)
    return None if snapshot is None else LineIndex(snapshot.text, server.encoding)


def _read_markup(contents: Any) -> str:
    """Return the text of a hover: MarkupContent, a MarkedString, or a list of them."""
    match contents:
        case str():
            return contents
        case {"language": str(language), "value": str(value)}:
            return f"```{language}\n{value}\n```"
        case {"value": str(value)}:
            return value
        case [*items]:
            return "\n\n".join(filter(None, map(_read_markup, items)))
        case _:
            return ""


def _format_outline(symbols: Iterable[Symbol], depth: int) -> list[str]:
    lines: list[str] = []
    for symbol in symbols:
        location = symbol.location
        span = symbol.range or (location.range if location is not None else None)
        where = f"{span.start.line + 1}-{span.end.line + 1}" if span is not None else "?"
        detail = f" {one_line(symbol.detail, MAX_LINE_CHARS)}" if symbol.detail else ""
        lines.append(f"{'  ' * depth}{where}: {_kind(symbol)} {one_line(symbol.name, MAX_LINE_CHARS)}{detail}")
        if symbol.children and depth < MAX_SYMBOL_DEPTH:
            lines += _format_outline(symbol.children, depth + 1)
    return lines


def _format_found(symbol: Symbol, scope: ToolScope) -> str:
    """Return a line; empty for a symbol of no file, or of one that the model may not read."""
    location = symbol.location
    path = uri_to_path(location.uri) if location is not None else None
    if path is None or _is_hidden(scope, path):
        return ""
    where = display_path(scope, path)
    if location is not None and location.range is not None:
        where += f":{location.range.start.line + 1}"
    container = f" in {one_line(symbol.container_name, MAX_LINE_CHARS)}" if symbol.container_name else ""
    return f"{where}: {_kind(symbol)} {one_line(symbol.name, MAX_LINE_CHARS)}{container}"


def _kind(symbol: Symbol) -> str:
    return SYMBOL_KINDS[symbol.kind] if 0 < symbol.kind < len(SYMBOL_KINDS) else "symbol"


def _page(lines: Sequence[str], offset: int, what: str) -> str:
    """Return a page of lines, and how to get the next one."""
    shown = lines[offset : offset + PAGE]
    if len(lines) <= PAGE and not offset:
        return "\n".join(shown)
    end = offset + len(shown)
    more = f" Use offset {end} for the next." if end < len(lines) else ""
    return "\n".join([*shown, f"[{offset + 1}-{end} of {len(lines)} {what}.{more}]"])


def _unsupported(what: str, path: Path, scope: ToolScope) -> ToolError:
    return ToolError(
        f"The language server for {display_path(scope, path)} offers no {what};", "use grep and view instead."
    )
