"""The documents that are open in a language server. Their texts are those of the files on disk.

A person, a command or git may change a file at any time, so each use of a document begins with a look at its file.
"""

from __future__ import annotations

import asyncio
import codecs
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from kedge.files.safe_open import open_file, read_regular_file
from kedge.lsp.messages import Diagnostic, Json
from kedge.lsp.positions import LineIndex, PositionEncoding, path_to_uri, replace_surrogates
from kedge.tools.text.text_file import BinaryFile, decode_text

MAX_OPEN = 40  # documents of one server; the one used longest ago is closed
MAX_DOCUMENT_BYTES = 2 * 1024 * 1024  # a larger source file is generated

Signature = tuple[int, int, int, int]
CREATED, CHANGED, DELETED = 1, 2, 3  # what happened to a file, in the protocol's numbers
FileChange = int
ErrorKey = tuple[str, str, str]  # code, message, text of the line


class Snapshot(NamedTuple):
    """What is on disk: the text as the server gets it."""

    text: str
    signature: Signature


def read_snapshot(path: Path, unless: Signature | None = None) -> Snapshot | None:
    """Return the text of a file; None if it is no text file of a reasonable size, or is still as it was. Blocks."""
    try:
        fd = open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        signature = _signature(os.fstat(fd))
        if signature == unless or signature[1] > MAX_DOCUMENT_BYTES:
            return None
        try:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
            text, _ = decode_text(data)
        except (OSError, BinaryFile):
            return None
    return None if len(data) > MAX_DOCUMENT_BYTES else Snapshot(replace_surrogates(text), signature)


def has_mark(path: Path) -> bool:
    """Whether a file begins with the byte order mark of UTF-8. Blocks."""
    data = read_regular_file(path, MAX_DOCUMENT_BYTES)
    return data is not None and data.startswith(codecs.BOM_UTF8)


def read_signature(path: Path) -> Signature | None:
    try:
        return _signature(path.stat())
    except OSError:
        return None


def _signature(status: os.stat_result) -> Signature:
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)


class Document:
    """A file as the server knows it."""

    def __init__(self, path: Path, language: str, snapshot: Snapshot) -> None:
        self.path = path
        self.uri = path_to_uri(path)
        self.language = language
        self.version = 1
        self.text = snapshot.text
        self.signature: Signature = snapshot.signature
        self.diagnostics: list[Diagnostic] = []
        self.diagnosed_version: int | None = None  # of the text that the diagnostics are about
        self.names_versions: bool | None = None  # whether the server says so; None: nothing was published yet
        self.publications = 0
        self.published_at = 0  # position of the last one among all messages of the server
        self.barrier: tuple[int, asyncio.Task[int]] | None = None  # a request behind the text of this version
        self.pull: tuple[int, asyncio.Task[None]] | None = None  # a request for the diagnostics of this version
        self.missed = 0  # so often in a row its diagnostics did not come in time
        self.result_id: str | None = None  # of the last pull
        self.known_errors: Counter[ErrorKey] | None = None  # that the model knows, or that were there before
        self._news = asyncio.Event()
        self._index: tuple[int, LineIndex] | None = None

    @property
    def is_diagnosed(self) -> bool:
        return self.diagnosed_version == self.version

    def replace_text(self, snapshot: Snapshot) -> None:
        self.text, self.signature = snapshot.text, snapshot.signature
        self.version += 1

    def set_diagnostics(self, diagnostics: Sequence[Diagnostic], version: int) -> None:
        self.diagnostics = list(diagnostics)
        self.diagnosed_version = version
        self.wake_waiting()

    def take_published(self, diagnostics: list[Diagnostic], version: int | None, position: int) -> None:
        self.publications += 1
        self.published_at = position
        self.names_versions = version is not None
        if version is None or version >= self.version:
            self.diagnostics = diagnostics
            if version is not None:
                self.diagnosed_version = self.version
        self.wake_waiting()

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._news.wait()

    def wake_waiting(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def index(self, encoding: PositionEncoding) -> LineIndex:
        if self._index is None or self._index[0] != self.version:
            self._index = (self.version, LineIndex(self.text, encoding))
        return self._index[1]

    def list_errors(self, encoding: PositionEncoding) -> list[tuple[ErrorKey, Diagnostic]]:
        """Return the errors of the last diagnostics, in the order of their lines, with what identifies each of them."""
        index = self.index(encoding)
        errors = [each for each in self.diagnostics if each.is_error]
        errors.sort(key=lambda each: (each.range.start.line, each.range.start.character))
        return [((str(e.code or ""), e.message, index.line(e.range.start.line).strip()), e) for e in errors]


class Server(Protocol):
    @property
    def save_options(self) -> SaveOptions: ...
    @property
    def watches_files(self) -> bool: ...
    async def notify(self, method: str, params: Json) -> None: ...


class SaveOptions(NamedTuple):
    """Whether a server wants to hear that a document was saved."""

    is_wanted: bool = False
    with_text: bool = False


class Documents:
    """Opens, updates and closes the documents of one server; they raise `PeerError` if it is gone."""

    def __init__(self, languages: Mapping[str, str], server: Server) -> None:
        self._languages = languages
        self._server = server
        self._open: dict[Path, Document] = {}  # the one used last is the last
        self._lock = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def find(self, path: Path) -> Document | None:
        return self._open.get(path)

    def list(self) -> list[Document]:
        return list(self._open.values())

    def forget_all(self) -> None:
        """The server is gone."""
        documents = self.list()
        self._open.clear()
        for document in documents:
            document.wake_waiting()

    def expire_diagnostics(self) -> None:
        """Forget what the server says is outdated."""
        for document in self._open.values():
            document.diagnosed_version = None

    def wake_waiting(self) -> None:
        for document in self._open.values():
            document.wake_waiting()

    async def sync(self, path: Path) -> Document | None:
        """Return the document of a file with the text that is on disk now; None if it cannot be opened."""
        async with self._lock:
            document = self._open.get(path)
            if document is None:
                return await self._open_new(path)
            if not await self._update(document):
                return None
            self._open[path] = self._open.pop(path)
            return document

    async def sync_all(self) -> None:
        """Look at the files of all open documents."""
        async with self._lock:
            for document in list(self._open.values()):
                await self._update(document)

    async def tell_changed(self, changes: Mapping[Path, FileChange]) -> None:
        """Tell the server of files that changed, appeared or vanished, also of those that are not open."""
        if self._server.watches_files and changes:
            params = {"changes": [{"uri": path_to_uri(path), "type": change} for path, change in changes.items()]}
            await self._server.notify("workspace/didChangeWatchedFiles", params)

    async def _open_new(self, path: Path) -> Document | None:
        snapshot = await asyncio.to_thread(read_snapshot, path)
        language = self._languages.get(path.suffix.lower())
        if snapshot is None or language is None:
            return None
        document = Document(path, language, snapshot)
        self._open[path] = document
        item = {"uri": document.uri, "languageId": language, "version": document.version, "text": document.text}
        await self._server.notify("textDocument/didOpen", {"textDocument": item})
        while len(self._open) > MAX_OPEN:
            await self._close(next(iter(self._open.values())))
        return document

    async def _update(self, document: Document) -> bool:
        """Bring a document up to date; return False if its file is gone, and the document closed."""
        signature = await asyncio.to_thread(read_signature, document.path)
        if signature == document.signature:
            return True
        snapshot = await asyncio.to_thread(read_snapshot, document.path)
        if snapshot is None:
            await self._close(document)
            await self.tell_changed({document.path: DELETED})
            return False
        if snapshot.text == document.text:
            document.signature = snapshot.signature
            return True
        document.replace_text(snapshot)
        identifier = {"uri": document.uri, "version": document.version}
        change = {"textDocument": identifier, "contentChanges": [{"text": document.text}]}
        await self._server.notify("textDocument/didChange", change)
        await self._save(document)
        await self.tell_changed({document.path: CHANGED})
        return True

    async def _save(self, document: Document) -> None:
        if (options := self._server.save_options).is_wanted:
            params: Json = {"textDocument": {"uri": document.uri}}
            if options.with_text:
                params["text"] = document.text
            await self._server.notify("textDocument/didSave", params)

    async def _close(self, document: Document) -> None:
        self._open.pop(document.path, None)
        await self._server.notify("textDocument/didClose", {"textDocument": {"uri": document.uri}})
