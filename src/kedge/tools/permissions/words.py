"""A word of a command line as the shell would pass it on: quotes removed, braces expanded, or not known.

What is not known (a variable, a substitution) stays so: nobody may take it for something harmless.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_WORDS = 256  # of one brace expansion; more is not worth knowing
_ANSI = re.compile(r"\\(?:([abeEfnrtv\\'\"?])|x([0-9a-fA-F]{1,2})|([0-7]{1,3})|c(.)|(.))", re.DOTALL)
_ANSI_LETTERS = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
_RANGE = re.compile(r"(-?\d{1,6})\.\.(-?\d{1,6})")

# A character and whether it was quoted; None stands for text that is not known.
Char = tuple[str | None, bool]


class Word(msgspec.Struct, frozen=True):
    text: str | None  # None: not known
    is_glob: bool = False  # unquoted * ? [: stands for the names of files
    is_one: bool = True  # if it is not known: at least that it is one word

    @property
    def shown(self) -> str:
        return "…" if self.text is None else self.text


UNKNOWN = Word(None, is_one=False)
Values = Mapping[str, Word]  # what variables are known to hold here


def words_of(node: Node, source: bytes, values: Values, home: str | None) -> list[Word]:
    """The words that one argument of the syntax tree becomes."""
    chars = _chars(node, source, values, in_quotes=False)
    spread = _braces(chars)
    if spread is None:
        return [UNKNOWN]
    return [_word(each, home) for each in spread]


def _chars(node: Node, source: bytes, values: Values, *, in_quotes: bool) -> list[Char]:
    text = source[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")
    match node.type:
        case "raw_string":
            return [*_quoted(""), *_quoted(text[1:-1])]
        case "ansi_c_string":
            if re.search(r"\\x\{|\\[uU]", text):
                return [(None, True)]  # what it becomes depends on the shell's version and locale
            return _quoted(_ansi(text[2:-1]))
        case "string" | "translated_string" | "concatenation" | "command_name":
            return _composed(node, source, values)
        case "simple_expansion":
            known = values.get(text[1:])
            if known is None or known.text is None:
                return [(None, in_quotes and text != "$@")]
            if in_quotes:
                return [(char, not known.is_glob) for char in known.text]
            if re.search(r"\s", known.text) or (not known.is_glob and re.search(r"[*?\[]", known.text)):
                return [(None, False)]  # split or expanded once more
            return [(char, not known.is_glob) for char in known.text] or [(None, False)]
        case "word" | "number" | "extglob_pattern" | "regex" | "test_operator" | "brace_expression" | "variable_name":
            return _bare(text)
        case "$":
            return [("$", True)]
        case "process_substitution":
            return _quoted("/dev/fd/63")  # a pipe; what is in it is judged by itself
        case "expansion":
            return [(None, in_quotes and "@" not in text)]  # "${a[@]}" is many words
        case _:
            return [(None, in_quotes)]


def _composed(node: Node, source: bytes, values: Values) -> list[Char]:
    """A string or a concatenation: what its children say, and what lies between them."""
    in_quotes = node.type == "string"
    start, end = node.start_byte, node.end_byte
    chars: list[Char] = []
    if in_quotes:
        chars += _quoted("")
        start, end = start + 1, end - 1
    children = list(node.children)
    for index, child in enumerate(children):
        if child.start_byte < start or child.end_byte > end:
            continue  # the quotes
        chars += _between(source[start : child.start_byte], in_quotes)
        start = child.end_byte
        if child.type == "$" and not in_quotes and index + 1 < len(children) and children[index + 1].type == "string":
            continue  # $"…" is translated, and there is nothing to translate to
        if child.type == "string_content":
            chars += _between(source[child.start_byte : child.end_byte], in_quotes=True)
        else:
            chars += _chars(child, source, values, in_quotes=in_quotes)
    return chars + _between(source[start:end], in_quotes)


def _between(raw: bytes, in_quotes: bool) -> list[Char]:
    text = raw.decode("utf-8", "surrogateescape")
    if in_quotes:
        return _quoted(re.sub(r'\\([$`"\\])', r"\1", text.replace("\\\n", "")))
    return _bare(text)


def _quoted(text: str) -> list[Char]:
    """An empty string is quoted, too: it makes a word."""
    return [("", True), *((char, True) for char in text)]


def _bare(text: str) -> list[Char]:
    chars: list[Char] = []
    index = 0
    while index < len(text):
        if text[index] == "\\" and index + 1 < len(text):
            if text[index + 1] != "\n":
                chars.append((text[index + 1], True))
            index += 2
        else:
            chars.append((text[index], False))
            index += 1
    return chars


def _ansi(text: str) -> str:
    def decoded(found: re.Match[str]) -> str:
        letter, byte, octal, control, other = found.groups()
        if letter is not None:
            return _ANSI_LETTERS[letter]
        if control is not None:
            return chr(ord(control.upper()) & 0x1F)
        if other is not None:
            return "\\" + other
        number = int(octal, 8) & 0xFF if octal is not None else int(byte, 16)
        return chr(number) if number < 0x80 else chr(0xDC00 + number)  # a byte of a character

    decoded_text = _ANSI.sub(decoded, text)
    raw = decoded_text.partition("\0")[0].encode("utf-8", "surrogateescape")  # the shell stops at NUL
    return raw.decode("utf-8", "surrogateescape")


def _braces(chars: list[Char]) -> list[list[Char]] | None:
    """`a{b,c}` is two words. None: too many, or written so that it is not certain."""
    for start, char in enumerate(chars):
        if char != ("{", False) or (start and chars[start - 1] == ("$", False)):
            continue
        depth, commas, end = 0, list[int](), None
        for index in range(start, len(chars)):
            match chars[index]:
                case ("{", False):
                    depth += 1
                case ("}", False):
                    depth -= 1
                    if depth == 0:
                        end = index
                        break
                case (",", False) if depth == 1:
                    commas.append(index)
                case _:
                    pass
        if end is None:
            continue
        inside = chars[start + 1 : end]
        options: list[list[Char]]
        if commas:
            edges = [start, *commas, end]
            options = [chars[low + 1 : high] for low, high in pairwise(edges)]
        elif ".." in "".join(text or "\0" for text, quoted in inside if not quoted):
            counted = _counted(inside)
            if counted is None:
                return None
            options = counted
        else:
            continue
        spread: list[list[Char]] = []
        for option in options:
            more = _braces([*chars[:start], *option, *chars[end + 1 :]])
            if more is None or len(spread) + len(more) > MAX_WORDS:
                return None
            spread += more
        return spread
    return [chars]


def _counted(inside: list[Char]) -> list[list[Char]] | None:
    found = _RANGE.fullmatch("".join(text or "\0" for text, _ in inside))
    if found is None or found[1].lstrip("-").startswith("0") or found[2].lstrip("-").startswith("0"):
        return None  # letters, steps and leading zeros: rare, and not worth the risk
    low, high = int(found[1]), int(found[2])
    if abs(high - low) >= MAX_WORDS:
        return None
    step = 1 if high >= low else -1
    return [[(char, False) for char in str(number)] for number in range(low, high + step, step)]


def _word(chars: list[Char], home: str | None) -> Word:
    if any(text is None for text, _ in chars):
        return Word(None, is_one=all(quoted for text, quoted in chars if text is None))
    text = "".join(text or "" for text, _ in chars)
    if chars and chars[0] == ("~", False):
        rest = text[1:]
        if rest and not rest.startswith("/"):
            return Word(None)  # another person's home, or where the shell was before
        if home is None:
            return Word(None)
        if chars[1:2] and chars[1][1]:
            return Word(text)  # ~"" and ~\/x are no tilde to the shell
        text = os.path.normpath(home) + rest
    elif re.search(r"[=:]~", text) and any(char == ("~", False) for char in chars):
        return Word(None)  # PATH=~/x: expanded in assignments, and not everywhere else
    is_glob = any(each in ("*", "?", "[") and not quoted for each, quoted in chars)
    return Word(text, is_glob=is_glob)
