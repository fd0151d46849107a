"""Text encodings and kinds of binary files, detected from the first bytes of a file."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

_BOMS = (  # UTF-32 before UTF-16, whose BOM is a prefix of it
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# The encodings of browsers (https://encoding.spec.whatwg.org), all of them linear and written in C. Python's
# others are not safe for web pages: punycode takes quadratic time, hex and bz2 give no text.
WEB_ENCODINGS = frozenset(
    {
        "utf-8", "utf-16", "utf-16-le", "utf-16-be", "ascii", "cp866", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic",
        "gbk", "gb2312", "gb18030", "big5", "big5hkscs", "euc_jp", "iso2022_jp", "shift_jis", "cp932", "euc_kr",
        "cp949", "tis-620", "cp874", *(f"cp{number}" for number in range(1250, 1259)),
        *(f"iso8859-{number}" for number in range(1, 17) if number != 12),
    }
)  # fmt: skip
_UTF8_CHARACTER = re.compile(rb"[\xc3-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_PDF = b"%PDF-"  # may start with text only
_KINDS = (
    (b"\x7fELF", "a program (ELF)"),
    (_PDF, "a PDF document; pdftotext in bash may show its text"),
    (b"PK\x03\x04", "a ZIP archive (or a document, wheel or jar in one); unzip -l in bash lists it"),
    (b"\x1f\x8b", "compressed with gzip; zcat in bash shows it"),
    (b"BZh", "compressed with bzip2; bzcat in bash shows it"),
    (b"\xfd7zXZ\0", "compressed with xz; xzcat in bash shows it"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; zstdcat in bash shows it"),
    (b"SQLite format 3\0", "an SQLite database; sqlite3 in bash can query it"),
    (b"\xca\xfe\xba\xbe", "a Java class or a Mach-O program"),
    (b"\xcf\xfa\xed\xfe", "a program (Mach-O)"),
    (b"\0asm", "a WebAssembly module"),
    (b"OggS", "Ogg media"),
    (b"ID3", "MP3 audio"),
    (b"RIFF", "RIFF media"),
)
# Tab, newline, form feed, return, backspace, escape.
_CONTROLS_OF_TEXT = frozenset(b"\t\n\x0c\r\x08\x1b")
_MAX_CONTROLS = 0.02  # as a part of all bytes of a text


class Encoding(NamedTuple):
    name: str

    def decoder(self) -> codecs.IncrementalDecoder:
        return codecs.getincrementaldecoder(self.name)("replace")

    def notes(self, *, has_replaced: bool) -> tuple[str, ...]:
        notes: list[str] = []
        if self.name not in ("utf-8", "utf-8-sig"):
            notes.append(f"The file is not UTF-8; it was decoded as {self.name}.")
        if has_replaced:
            notes.append("Invalid bytes were replaced by \ufffd.")
        return tuple(notes)


def web_encoding(charset: str | None) -> str:
    """Return the codec for the charset of a web page; UTF-8 for unknown and unsafe ones."""
    try:
        name = codecs.lookup(charset or "utf-8").name
    except (LookupError, ValueError):  # ValueError: a NUL in it
        return "utf-8"
    return name if name in WEB_ENCODINGS else "utf-8"


def describe_binary(head: bytes) -> str | None:
    """Return a description of a binary file that continues "FILE …"; None for text."""
    for magic, kind in _KINDS:
        if head.startswith(magic) and (magic == _PDF or not _is_text(head)):
            return f"is a binary file: {kind}."
    if not _is_text(head):
        return "is a binary file; use bash with file, xxd or a program made for it."
    return None


def detect_encoding(head: bytes) -> Encoding:
    for bom, name in _BOMS:
        if head.startswith(bom):
            return Encoding(name)
    return Encoding("utf-8" if _is_utf8(head) or has_utf8(head) else "latin-1")


def has_utf8(data: bytes) -> bool:
    """Return whether there is a multi-byte UTF-8 character: then it is UTF-8, maybe with invalid bytes."""
    return _UTF8_CHARACTER.search(data) is not None


def _is_text(head: bytes) -> bool:
    if any(head.startswith(bom) for bom, _ in _BOMS):
        return True
    if b"\0" in head:
        return False
    if _is_utf8(head):
        return True
    controls = sum(1 for byte in head[:8192] if byte < 32 and byte not in _CONTROLS_OF_TEXT)
    return controls <= len(head[:8192]) * _MAX_CONTROLS


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # incremental: the last character may be cut
    except UnicodeDecodeError:
        return False
    return True
