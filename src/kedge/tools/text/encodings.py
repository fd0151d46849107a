"""What the first bytes of a file say: an image, another kind of binary file, or text in some encoding."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

_BOMS = (  # the longer first: one of UTF-32 begins like one of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What the web names as a charset: the encodings that browsers know (https://encoding.spec.whatwg.org). All of them are
# linear and written in C. Python's others are not for pages: punycode takes quadratic time, hex and bz2 give no text.
OF_THE_WEB = frozenset(
    {
        "utf-8", "utf-16", "utf-16-le", "utf-16-be", "ascii", "cp866", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic",
        "gbk", "gb2312", "gb18030", "big5", "big5hkscs", "euc_jp", "iso2022_jp", "shift_jis", "cp932", "euc_kr",
        "cp949", "tis-620", "cp874", *(f"cp{number}" for number in range(1250, 1259)),
        *(f"iso8859-{number}" for number in range(1, 17) if number != 12),
    }
)  # fmt: skip
_UTF8_CHARACTER = re.compile(rb"[\xc3-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_PDF = b"%PDF-"  # the beginning of one may look like text
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
# Tab, newline, form feed, return, backspace, escape: what text holds beside characters.
_CONTROLS_OF_TEXT = frozenset(b"\t\n\x0c\r\x08\x1b")
_MOST_CONTROLS = 0.02  # of the bytes; more of them than that is no text


class Encoding(NamedTuple):
    name: str

    def decoder(self) -> codecs.IncrementalDecoder:
        return codecs.getincrementaldecoder(self.name)("replace")

    def notes(self, *, has_replaced: bool) -> tuple[str, ...]:
        found: list[str] = []
        if self.name not in ("utf-8", "utf-8-sig"):
            found.append(f"The file is not in UTF-8; it was read as {self.name}.")
        if has_replaced:
            found.append("Bytes that are no text were replaced by \ufffd.")
        return tuple(found)


def web_encoding(charset: str | None) -> str:
    """The codec for what a page says of itself; UTF-8 for anything that pages are not written in."""
    try:
        name = codecs.lookup(charset or "utf-8").name
    except (LookupError, ValueError):  # ValueError: a NUL in it
        return "utf-8"
    return name if name in OF_THE_WEB else "utf-8"


def image_type(head: bytes) -> str | None:
    """The media type, if it is an image of a kind that models see."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def binary_kind(head: bytes) -> str | None:
    """What to say of a file that is no text; None of one that is."""
    for magic, kind in _KINDS:
        if head.startswith(magic) and (magic == _PDF or not _is_text(head)):
            return f"is a binary file: {kind}."
    if not _is_text(head):
        return "is a binary file; use bash with file, xxd or a program made for it."
    return None


def encoding_of(head: bytes) -> Encoding:
    for bom, name in _BOMS:
        if head.startswith(bom):
            return Encoding(name)
    return Encoding("utf-8" if _is_utf8(head) or has_utf8(head) else "latin-1")


def has_utf8(data: bytes) -> bool:
    """Whether a character of UTF-8 is in there: then it is UTF-8, also with something broken in it."""
    return _UTF8_CHARACTER.search(data) is not None


def _is_text(head: bytes) -> bool:
    if any(head.startswith(bom) for bom, _ in _BOMS):
        return True
    if b"\0" in head:
        return False
    if _is_utf8(head):
        return True
    controls = sum(1 for byte in head[:8192] if byte < 32 and byte not in _CONTROLS_OF_TEXT)
    return controls <= len(head[:8192]) * _MOST_CONTROLS


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # a character at the end may be cut
    except UnicodeDecodeError:
        return False
    return True
