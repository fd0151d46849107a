"""A command line parsed by tree-sitter's grammar of bash, within bounds, and checked for what the grammar misses.

The grammar and the shell disagree in corners: a tree is only handed on when nothing in it could hide a command.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Parser

# The parser cannot be stopped (its binding crashes when it tries), and text made to slow it down costs the square of
# the number of its operators: this many take a quarter of a second. A longer command is a file one should read first.
MAX_BYTES = 16 * 1024
MAX_OPERATORS = 1500
MAX_NODES = 20_000
MAX_DEPTH = 150  # of nested syntax: Python's own stack must hold when the tree is walked

_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\\n")
_GLUED = re.compile(r"[^\s\\](?:\\\\)*\\\n|\\\n[^\s#]*\\\n")
_HIDDEN = re.compile(r"(?<!\\)(?:\\\\)*(?:`|\$[({\[])")
_HIDDEN_IN_WORD = re.compile(r"(?<!\\)(?:\\\\)*(?:`|\$[({\[]|[<>]\()")
_BEFORE_COMMENT = re.compile(rb"(?:^|[^\\])[\s;|&()`]$|^\Z")
_DELIMITER = re.compile(r"(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_WORDS = frozenset(
    {
        *("word", "number", "string", "raw_string", "ansi_c_string", "translated_string", "concatenation", "$"),
        *("simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion"),
        *("brace_expression", "extglob_pattern", "regex", "variable_name", "command_name"),
    }
)
_OF_WORDS = frozenset(
    {
        *("command", "for_statement", "array", "file_redirect", "heredoc_redirect", "herestring_redirect"),
        *("declaration_command", "unset_command"),
    }
)
_QUOTES = frozenset({"raw_string", "ansi_c_string", "translated_string", "string"})
_OPAQUE_LEAVES = frozenset({"raw_string", "ansi_c_string", "comment", "heredoc_start", "heredoc_end"})


class Tree(msgspec.Struct, frozen=True):
    root: Node
    source: bytes


class Unreadable(msgspec.Struct, frozen=True):
    why: str


def parse(command: str) -> Tree | Unreadable:
    try:
        source = command.encode()
    except UnicodeEncodeError:
        return Unreadable("it is not valid Unicode")
    if len(source) > MAX_BYTES:
        return Unreadable(f"it has more than {MAX_BYTES // 1024} KiB")
    if len(re.findall(r"[()<>|&;{}\[\]`]", command)) > MAX_OPERATORS:
        return Unreadable(f"it has more than {MAX_OPERATORS:,} operators")
    strange = next((char for char in command if _is_strange(char)), None)
    if strange is not None:
        return Unreadable(f"it holds an unusual character (U+{ord(strange):04X})")
    if _CONTINUED.search(command) and (_GLUED.search(command) or "<<" in command):
        return Unreadable("a line is continued inside a word or beside a here-document")
    # The grammar takes a here-document's end only with the newline after it.
    whole = source if source.endswith(b"\n") else source + b"\n"
    root = _new_parser().parse(whole).root_node
    if root.descendant_count > MAX_NODES:
        return Unreadable("it has too many parts")
    hidden = _hidden(root, whole)
    return Tree(root, whole) if hidden is None else Unreadable(hidden)


def _new_parser() -> Parser:
    """One for each command: calls are judged side by side in threads, and a parser is for one at a time."""
    from tree_sitter import Parser

    return Parser(_language())


@lru_cache(1)
def _language() -> Language:
    # Loaded at the first command: it is not needed to start.
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


def _is_strange(char: str) -> bool:
    """Blanks and controls that the shell takes for letters, or that a person does not see."""
    if char in " \t\n":
        return False
    return unicodedata.category(char) in ("Cc", "Cf", "Zs", "Zl", "Zp", "Cs", "Co")


def _nodes(root: Node) -> Iterator[tuple[Node, int]]:
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack += [(child, depth + 1) for child in reversed(node.children)]


def _hidden(root: Node, source: bytes) -> str | None:
    """What in the tree is not as the shell would read it, or might not be."""
    if root.has_error:
        return "it is not complete or not correct shell syntax"
    heredocs = 0
    for node, depth in _nodes(root):
        if depth > MAX_DEPTH:
            return "it is nested too deeply"
        text = source[node.start_byte : node.end_byte].decode()
        if node.type == "heredoc_redirect":
            heredocs += 1
            if heredocs > 1 or not _is_plain_heredoc(node, source):
                return "its here-document cannot be read for certain"
        if node.type == "command_substitution" and text.startswith("`") and "\\" in text:
            return "it has escapes inside backquotes"
        if node.type == "comment" and not _BEFORE_COMMENT.search(source[max(0, node.start_byte - 2) : node.start_byte]):
            return f"{text[:40]!r} may be no comment"
        if node.type in _QUOTES and _is_quoted_expansion(node):
            return "it has quotes inside an expansion inside quotes"
        if _is_literal_heredoc(node, source):
            continue
        if not node.children:
            if node.is_named and node.type not in _OPAQUE_LEAVES:
                is_text = node.type in ("string_content", "heredoc_content", "heredoc_body")
                if not is_text and "\n" in text.replace("\\\n", ""):
                    return f"{text[:40]!r} cannot be read for certain"
                if (_HIDDEN if is_text else _HIDDEN_IN_WORD).search(text):
                    return f"{text[:40]!r} may hide a command"
        elif node.type in _OF_WORDS and (torn := _torn(node, source) or _joined(node, source)) is not None:
            return f"{torn[:40]!r} cannot be read for certain"
        elif (gap := _gap(node, source)) is not None:
            return f"{gap[:40]!r} cannot be read for certain"
    return None


def _is_quoted_expansion(quote: Node) -> bool:
    """`"${x:-'…'}"`: there the shell takes a single quote for a letter, and ends the expansion elsewhere."""
    is_expanded = False
    parent = quote.parent
    while parent is not None and parent.type not in ("command_substitution", "process_substitution"):
        is_expanded |= parent.type == "expansion"
        if is_expanded and parent.type in ("string", "heredoc_body", "arithmetic_expansion"):
            return True
        parent = parent.parent
    return False


def _torn(node: Node, source: bytes) -> str | None:
    """Words with nothing between them: the grammar tears some apart that are one to the shell, like `';'\\;`."""
    for first, second in pairwise(node.children):
        if first.end_byte == second.start_byte and second.type in _WORDS and first.is_named:
            return source[first.start_byte : second.end_byte].decode()
    return None


def _joined(node: Node, source: bytes) -> str | None:
    """A newline between the words of one command, which ends it: the grammar reads over some, as in `echo ==`."""
    if node.type in ("for_statement", "array", "heredoc_redirect"):
        return None  # theirs may stand on several lines
    for first, second in pairwise(node.children):
        if b"\n" in source[first.end_byte : second.start_byte].replace(b"\\\n", b""):
            return source[first.start_byte : second.end_byte].decode()
    return None


def _gap(node: Node, source: bytes) -> str | None:
    """Text between the children that belongs to nobody, and is more than blanks."""
    is_text = node.type in ("string", "heredoc_body")  # the grammar leaves words of these to nobody
    start = node.start_byte
    for end, following in [*((child.start_byte, child.end_byte) for child in node.children), (node.end_byte, 0)]:
        between = source[start:end].decode("utf-8", "replace").replace("\\\n", " ").strip()
        if between and (not is_text or _HIDDEN.search(between)):
            return between
        start = following
    return None


def _is_literal_heredoc(node: Node, source: bytes) -> bool:
    """The body of `<<'END'`: nothing in it is expanded."""
    if node.type not in ("heredoc_body", "heredoc_content"):
        return False
    redirect = node.parent
    while redirect is not None and redirect.type != "heredoc_redirect":
        redirect = redirect.parent
    start = next((child for child in redirect.children if child.type == "heredoc_start"), None) if redirect else None
    return start is not None and source[start.start_byte : start.start_byte + 1] in (b"'", b'"')


def _is_plain_heredoc(node: Node, source: bytes) -> bool:
    """Whether the grammar ended the document where the shell does: at the first line that is its delimiter."""
    kinds = {child.type: child for child in node.children}
    start, end = kinds.get("heredoc_start"), kinds.get("heredoc_end")
    if start is None or end is None:
        return False
    delimiter = _DELIMITER.fullmatch(source[start.start_byte : start.end_byte].decode())
    if delimiter is None:
        return False
    line_end = source.find(b"\n", start.end_byte)
    offset = line_end + 1
    while offset < len(source):
        line = source[offset:].partition(b"\n")[0]
        bare = line.lstrip(b"\t") if "<<-" in kinds else line
        if bare == delimiter[2].encode():
            return end.start_byte == offset + len(line) - len(bare) and end.end_byte == offset + len(line)
        offset += len(line) + 1
    return False
