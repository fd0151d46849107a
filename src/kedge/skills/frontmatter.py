"""Reads the frontmatter of Markdown files: the `key: value` lines between two lines `---`.

It is a lenient reader of the part of YAML that people write there. What YAML rejects or reads in a surprising way is
taken as it was meant: colons and brackets in a value, `yes` as a word, tabs, a byte order mark, lines of Windows. It
never raises, and needs time in proportion to the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

MAX_LINES = 1_000  # of the frontmatter; more is no frontmatter

# A key at the beginning of a line, perhaps in quotes.
_KEY = re.compile(r"""(?:"([^"\\]{1,80})"|'([^']{1,80})'|([A-Za-z_][\w.-]{0,79}))[ \t]*:(?=[ \t]|$)""")
_BLOCK = re.compile(r"([|>])[+\-0-9]{0,2}[ \t]*(?:#.*)?")
_ITEM = re.compile(r"-(?:[ \t]+|$)")
_COMMENT = re.compile(r"(?:^|[ \t])#")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "", "e": "", "a": "", "b": "", "/": "/", "_": " ", " ": " "}
_TRUE = frozenset({"true", "yes", "on", "1", "y"})
_FALSE = frozenset({"false", "no", "off", "0", "n"})
_NULL = frozenset({"null", "~"})

Value = str | list[str] | dict[str, str]


class Frontmatter(msgspec.Struct, frozen=True):
    """The fields in front of a text, and the text (`body`) after them."""

    body: str
    fields: dict[str, Value] = {}
    written: dict[str, str] = {}  # values of one line as they are written, without quotes: `[a] [b]`
    problem: str = ""  # why the frontmatter could not be read as a whole

    def text(self, *names: str) -> str:
        """Return the first of these fields as text; a list with its items joined, and no field as an empty text."""
        for name in names:
            match self.fields.get(name):
                case None | "":
                    continue
                case str() as value:
                    return value
                case list() as items:
                    return self.written.get(name) or ", ".join(items)
                case _:
                    continue
        return ""

    def items(self, name: str) -> list[str] | None:
        """Return the items of a list, of a text with commas, or of a text with spaces; None without the field.

        Commas and spaces inside parentheses do not separate: `Bash(git log:*), Read`.
        """
        match self.fields.get(name):
            case str() as value:
                return _split_items(value)
            case list() as items:
                return [item for item in items if item]
            case dict() as flags:  # as opencode writes it: `tools: {write: false}`
                return [key for key, flag in flags.items() if flag.lower() not in _FALSE]
            case None:
                return None

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name).strip().lower()
        return True if value in _TRUE else False if value in _FALSE else default

    def table(self, name: str) -> dict[str, str]:
        value = self.fields.get(name)
        return value if isinstance(value, dict) else {}


def read_frontmatter(text: str) -> Frontmatter:
    """Return the fields and the body of a Markdown text; one without frontmatter is all body."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    lines = text.lstrip("\n").split("\n")
    if lines[0].rstrip() != "---":
        return Frontmatter(text.strip())
    end = next((at for at, line in enumerate(lines[1 : MAX_LINES + 2], 1) if line.rstrip() in ("---", "...")), None)
    if end is None:
        return Frontmatter(text.strip(), problem="the line `---` that ends the frontmatter is missing")
    fields, written = _read_fields(lines[1:end])
    return Frontmatter("\n".join(lines[end + 1 :]).strip(), fields, written)


class _Entry(NamedTuple):
    """A key, the text after its colon, and the lines below it up to the next key."""

    key: str
    first: str
    below: list[str]


def _read_fields(lines: Sequence[str]) -> tuple[dict[str, Value], dict[str, str]]:
    fields: dict[str, Value] = {}
    written: dict[str, str] = {}
    for entry in _split_entries(lines):
        first = entry.first.strip()
        if first and not entry.below:
            written[entry.key] = _unquote(first)
        fields[entry.key] = _read_value(first, entry.below)
    return fields, written


def _split_entries(lines: Sequence[str]) -> list[_Entry]:
    entries: list[_Entry] = []
    for line in lines:
        key = None if line[:1] in (" ", "\t") else _KEY.match(line)
        if key is not None:
            entries.append(_Entry(next(filter(None, key.groups())), line[key.end() :], []))
        elif entries and not (line.startswith("#") and not entries[-1].first.strip().startswith(("|", ">"))):
            entries[-1].below.append(line)
    for entry in entries:
        while entry.below and not entry.below[-1].strip():
            entry.below.pop()
    return entries


def _read_value(first: str, below: list[str]) -> Value:
    if block := _BLOCK.fullmatch(first):
        return _read_block(below, is_folded=block[1] == ">")
    is_bare = not first or first.startswith("#")
    if is_bare and below:
        content = [line.strip() for line in below if line.strip() and not line.strip().startswith("#")]
        if content and _ITEM.match(content[0]):
            return _read_list(content)
        if content and all(_KEY.match(line) for line in content):
            return _read_map(content)
    text = " ".join(["" if is_bare else first, *(line.strip() or "\n" for line in below)]).strip()
    text = text.replace(" \n ", "\n").replace("\n ", "\n")
    if text.startswith("[") and (items := _read_flow_list(text)) is not None:
        return items
    if text.startswith("{") and (flow := _read_flow_map(text)) is not None:
        return flow
    return _read_scalar(text)


def _read_block(lines: Sequence[str], *, is_folded: bool) -> str:
    expanded = [line.expandtabs(2) for line in lines]
    margin = min((len(line) - len(line.lstrip()) for line in expanded if line.strip()), default=0)
    texts = [line[margin:].rstrip() for line in expanded]
    if not is_folded:
        return "\n".join(texts).strip("\n")
    return "\n".join(" ".join(paragraph) for paragraph in _split_paragraphs(texts))


def _split_paragraphs(lines: Sequence[str]) -> list[list[str]]:
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line:
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [paragraph for paragraph in paragraphs if paragraph]


def _read_list(lines: Sequence[str]) -> list[str]:
    items: list[list[str]] = []
    for line in lines:
        if mark := _ITEM.match(line):
            items.append([line[mark.end() :]])
        elif items:
            items[-1].append(line)
    return [_read_scalar(" ".join(item)) for item in items]


def _read_map(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        if key := _KEY.match(line):
            found[next(filter(None, key.groups()))] = _read_scalar(line[key.end() :].strip())
    return found


def _read_flow_list(text: str) -> list[str] | None:
    """Return the items of `[a, "b"]`; None if the text is not one list, such as `[a] [b]`."""
    inner = _inside(text, "[", "]")
    return None if inner is None else [_read_scalar(item) for item in _split_items(inner, at_spaces=False)]


def _read_flow_map(text: str) -> dict[str, str] | None:
    inner = _inside(text, "{", "}")
    if inner is None:
        return None
    pairs = [item.partition(":") for item in _split_items(inner, at_spaces=False)]
    return {_read_scalar(key): _read_scalar(value) for key, _, value in pairs}


def _inside(text: str, opening: str, closing: str) -> str | None:
    text = _strip_comment(text)
    inner = text[1:-1]
    return inner if text.endswith(closing) and len(text) > 1 and opening not in inner and closing not in inner else None


def _split_items(text: str, *, at_spaces: bool = True) -> list[str]:
    """Split at commas, or at spaces if there are no commas, outside of quotes and parentheses."""
    items = _split(text, ",\n")
    if at_spaces and len(items) == 1:
        items = _split(text, ", \t\n")
    return [item for item in (_unquote(each.strip()) for each in items) if item]


def _split(text: str, separators: str) -> list[str]:
    items: list[str] = []
    depth, quote, start, is_start = 0, "", 0, True
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and is_start:
            quote = char
        elif char in "()":
            depth = max(depth + (1 if char == "(" else -1), 0)
        elif char in separators and not depth:
            items.append(text[start:at])
            start, is_start = at + 1, True
            continue
        is_start = is_start and char.isspace()
    return [*items, text[start:]]


def _read_scalar(text: str) -> str:
    text = text.strip()
    if text[:1] in ('"', "'"):
        return _unquote(text)
    text = _strip_comment(text)
    return "" if text.lower() in _NULL else text


def _strip_comment(text: str) -> str:
    comment = _COMMENT.search(text)
    return text[: comment.start()].rstrip() if comment else text


def _unquote(text: str) -> str:
    """Return a text without the quotes around it. One with quotes that do not enclose all of it stays as it is."""
    quote = text[:1]
    if quote not in ('"', "'"):
        return text
    end = _find_end(text, quote)
    if end < 0 or ((rest := text[end + 1 :].strip()) and not rest.startswith("#")):
        return text
    inner = text[1:end]
    return inner.replace("''", "'") if quote == "'" else _ESCAPE.sub(_unescape, inner)


def _find_end(text: str, quote: str) -> int:
    at = 1
    while at < len(text):
        if quote == '"' and text[at] == "\\":
            at += 1
        elif text[at] == quote:
            if quote == '"' or text[at + 1 : at + 2] != "'":
                return at
            at += 1
        at += 1
    return -1


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "xu" and len(code) > 1:
        char = chr(int(code[1:], 16))
        return char if char.isprintable() else ""
    return _ESCAPED.get(code, code)
