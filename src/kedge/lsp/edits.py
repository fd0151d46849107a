"""Edits that a server proposes: checked against the files on disk, all or none. Blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kedge.lsp.messages import TextEdit, WorkspaceEdit
from kedge.lsp.positions import LineIndex, PositionEncoding, replace_surrogates, uri_to_path
from kedge.protocol.text_safety import one_line
from kedge.tools.errors import ToolError
from kedge.tools.port import FileEdit, ToolScope, display_path
from kedge.tools.text.text_file import TextFile, read_text_file

MAX_FILES = 100
MAX_EDITS = 5_000


def collect_edits(edit: WorkspaceEdit) -> dict[str, list[TextEdit]]:
    """Return the edits by URI. Raises `ToolError` if a file would be created, renamed or deleted."""
    collected: dict[str, list[TextEdit]] = {}
    for change in edit.document_changes or ():
        if change.kind is not None or change.text_document is None:
            raise ToolError(
                f"The language server also wants to {one_line(change.kind or 'change', 20)} a file,"
                " which this tool does not do;",
                "make this change with the other tools.",
            )
        collected.setdefault(change.text_document.uri, []).extend(change.edits)
    if edit.document_changes is None:
        for uri, edits in (edit.changes or {}).items():
            collected.setdefault(uri, []).extend(edits)
    collected = {uri: edits for uri, edits in collected.items() if edits}
    places = sum(map(len, collected.values()))
    if len(collected) > MAX_FILES or places > MAX_EDITS:
        raise ToolError(
            f"The change has {places:,} places in {len(collected)} files, which is too many;",
            "change them with a script.",
        )
    return collected


def list_paths(edit: WorkspaceEdit) -> list[Path]:
    """Return the files that would change."""
    uris = [
        *(edit.changes or ()),
        *(each.text_document.uri for each in edit.document_changes or () if each.text_document),
    ]
    return [path for uri in uris if (path := uri_to_path(uri)) is not None]


def plan_edits(
    edit: WorkspaceEdit,
    encoding: PositionEncoding,
    scope: ToolScope,
    expected: str | None = None,
    known_texts: Mapping[Path, str] = {},
) -> list[FileEdit]:
    """Return the new content of each file. Raises `ToolError`.

    `expected`: the text that each edit must replace, so that an outdated view of the server changes nothing.
    `known_texts`: the texts that the server was sent, which must still be those on disk.
    """
    planned: list[FileEdit] = []
    for uri, edits in sorted(collect_edits(edit).items()):
        given = uri_to_path(uri)
        if given is None:
            raise ToolError(f"The language server wants to change {one_line(uri)}, which is no file.")
        path = given.resolve()
        shown = display_path(scope, path)
        if scope.is_hidden is not None and scope.is_hidden(str(path)):
            raise ToolError(f"The change includes {shown}, which you may not read;", "change the other files by hand.")
        before = read_text_file(path, shown)
        text = replace_surrogates(before.raw)
        if known_texts.get(given, text) != text:
            raise ToolError(f"{shown} changed meanwhile.", "Make the call again.")
        raw = _apply_edits(before, LineIndex(text, encoding), edits, shown, expected)
        planned.append(FileEdit(path, before.digest, before.encode_text(raw)))
    return planned


def _apply_edits(
    before: TextFile, index: LineIndex, edits: Sequence[TextEdit], shown: str, expected: str | None
) -> str:
    """Return the text with its own line ends after these edits. Raises `ToolError`."""
    spans = sorted(((*index.to_span(each.range), each.new_text) for each in edits), key=lambda span: span[:2])
    pieces: list[str] = []
    at = 0
    for start, end, new in spans:
        if start < at:
            raise ToolError(f"The language server proposes changes of {shown} that overlap.")
        if expected is not None and index.text[start:end] != expected:
            raise ToolError(
                f"The language server's view of {shown} is outdated: it expects `{expected}` where there is"
                f" `{index.text[start:end][:60]}`.",
                "Wait a moment and make the call again.",
            )
        plain = new.replace("\r\n", "\n")
        pieces += [before.raw[at:start], plain.replace("\n", "\r\n") if before.newline == "\r\n" else plain]
        at = end
    return "".join([*pieces, before.raw[at:]])
