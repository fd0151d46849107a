"""The payloads of the Language Server Protocol that the client reads and writes. No IO.

Payloads are decoded leniently: unknown fields are ignored, and a malformed item of a list costs only itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec

from kedge.jsonrpc.errors import InvalidAnswer
from kedge.version import VERSION

T = TypeVar("T")
Json = dict[str, Any]

CONTENT_MODIFIED = -32801
SERVER_CANCELLED = -32802
METHOD_NOT_FOUND = -32601

ERROR, WARNING, INFORMATION, HINT = 1, 2, 3, 4
SEVERITIES = {ERROR: "error", WARNING: "warning", INFORMATION: "information", HINT: "hint"}

SYMBOL_KINDS = (
    *("", "file", "module", "namespace", "package", "class", "method", "property", "field", "constructor", "enum"),
    *("interface", "function", "variable", "constant", "string", "number", "boolean", "array", "object", "key"),
    *("null", "enum member", "struct", "event", "operator", "type parameter"),
)


class _Payload(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class Position(_Payload, frozen=True):
    """Both count from 0; `character` counts code units of the negotiated encoding."""

    line: int
    character: int


class Range(_Payload, frozen=True):
    start: Position
    end: Position


class Location(_Payload, frozen=True):
    uri: str
    range: Range


class Place(_Payload, frozen=True):
    """A `Location`, or a `LocationLink` with the range of the name itself."""

    uri: str = ""
    range: Range | None = None
    target_uri: str = ""
    target_selection_range: Range | None = None


class Diagnostic(_Payload, frozen=True):
    range: Range
    message: str
    severity: int | None = None
    code: int | str | None = None
    source: str | None = None
    data: Any = msgspec.UNSET  # goes back to the server with a request for code actions

    @property
    def is_error(self) -> bool:
        return self.severity in (None, ERROR)


class PublishedDiagnostics(_Payload, frozen=True):
    uri: str
    diagnostics: list[Any]
    version: int | None = None


class DiagnosticReport(_Payload, frozen=True):
    """The answer to a pull. `unchanged` refers to the result with the id that the request named."""

    kind: str = "full"
    items: list[Any] = []
    result_id: str | None = None


class TextEdit(_Payload, frozen=True):
    range: Range
    new_text: str


class DocumentId(_Payload, frozen=True):
    uri: str
    version: int | None = None


class DocumentChange(_Payload, frozen=True):
    """Edits of a document; with a `kind`, the creation, renaming or deletion of a file instead."""

    text_document: DocumentId | None = None
    edits: list[TextEdit] = []
    kind: str | None = None


class WorkspaceEdit(_Payload, frozen=True):
    changes: dict[str, list[TextEdit]] | None = None
    document_changes: list[DocumentChange] | None = None


class Symbol(_Payload, frozen=True):
    """A `DocumentSymbol` (with `range`, `children`) or a `SymbolInformation` (with `location`)."""

    name: str
    kind: int = 0
    detail: str | None = None
    range: Range | None = None
    children: list[Symbol] | None = None
    location: Place | None = None  # of a result of workspace/symbol, the range may be missing
    container_name: str | None = None


class CodeAction(_Payload, frozen=True):
    title: str
    kind: str | None = None
    edit: WorkspaceEdit | None = None
    data: Any = msgspec.UNSET
    disabled: Any = None
    diagnostics: Any = None


class DiagnosticOptions(_Payload, frozen=True):
    identifier: str | None = None
    inter_file_dependencies: bool = False


class Capabilities(_Payload, frozen=True):
    """What a server announced. Providers are `true`, an object of options, or absent."""

    position_encoding: str = "utf-16"
    text_document_sync: Any = None
    diagnostic_provider: DiagnosticOptions | None = None
    definition_provider: Any = None
    references_provider: Any = None
    hover_provider: Any = None
    document_symbol_provider: Any = None
    workspace_symbol_provider: Any = None
    rename_provider: Any = None
    code_action_provider: Any = None


class ServerInfo(_Payload, frozen=True):
    name: str = ""
    version: str | None = None


class InitializeResult(_Payload, frozen=True):
    capabilities: Capabilities = Capabilities()
    server_info: ServerInfo | None = None


def decode_as(type_: type[T], raw: msgspec.Raw | bytes, method: str) -> T:
    """Decode the result of a request. Raises `InvalidAnswer`."""
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidAnswer(f"the answer to {method} is malformed ({error})") from error


def convert_diagnostics(items: Sequence[Any]) -> list[Diagnostic]:
    diagnostics: list[Diagnostic] = []
    for item in items:
        with contextlib.suppress(msgspec.ValidationError):
            diagnostics.append(msgspec.convert(item, Diagnostic))
    return diagnostics


def initialize_params(root_uri: str, root_name: str, pid: int, options: Any) -> Json:
    """Return the parameters of `initialize`. They announce only what the client does."""
    params: Json = {
        "processId": pid,
        "clientInfo": {"name": "kedge", "version": VERSION},
        "rootUri": root_uri,
        "workspaceFolders": [{"uri": root_uri, "name": root_name}],
        "capabilities": {
            "general": {"positionEncodings": ["utf-8", "utf-16", "utf-32"]},
            "workspace": {
                "configuration": True,
                "workspaceFolders": True,
                "didChangeConfiguration": {"dynamicRegistration": True},
                "didChangeWatchedFiles": {"dynamicRegistration": True},
                "workspaceEdit": {"documentChanges": True},
                "diagnostics": {"refreshSupport": True},
            },
            "window": {"workDoneProgress": True},
            "textDocument": {
                "synchronization": {"didSave": True},
                "publishDiagnostics": {"versionSupport": True, "dataSupport": True},
                "diagnostic": {"dynamicRegistration": True, "relatedDocumentSupport": False},
                "definition": {"linkSupport": True},
                "references": {},
                "hover": {"contentFormat": ["markdown", "plaintext"]},
                "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
                "rename": {"prepareSupport": False},
                "codeAction": {
                    "codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["quickfix", "source"]}},
                    "resolveSupport": {"properties": ["edit"]},
                    "dataSupport": True,
                },
            },
        },
    }
    if options is not None:
        params["initializationOptions"] = options
    return params


def as_object(value: Any) -> Json:
    """Return a JSON object; an empty one for any other value."""
    return cast("Json", value) if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[Json]:
    """Return the objects of a JSON array."""
    return [as_object(each) for each in cast("list[Any]", value)] if isinstance(value, list) else []
