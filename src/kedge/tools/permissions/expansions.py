"""Where the shell runs what a variable holds: indirect expansion, prompts, indices and arithmetic.

`x='a[$(rm f)]'; echo $((x))` removes f, although no command stands there. What may do so is not let through.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kedge.tools.permissions.variables import Names

if TYPE_CHECKING:
    from tree_sitter import Node

_NAME = r"(?:[A-Za-z_]\w*|\d+|[@*#?$])"
_INDEX = r"(?:\[(?:@|\*|\d+)\])?"
_OPERATION = r"(?::?[-+=?]|##?|%%?|//?[#%]?|\^\^?|,,?)"
_EXPANSION = re.compile(
    rf"\$\{{#?{_NAME}{_INDEX}\}}|\$\{{{_NAME}{_INDEX}(?:{_OPERATION}.*|: ?-?\d+(?::-?\d+)?)\}}", re.DOTALL
)
_COMPARISONS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_NUMERIC_VARIABLES = frozenset("?#$!")


def trouble_in_expansion(text: str) -> str | None:
    if not text.startswith("${") or _EXPANSION.fullmatch(text):
        return None
    return "an expansion may run what a variable holds"


def trouble_in_arithmetic(node: Node, source: bytes, names: Names) -> str | None:
    """Its variables must hold numbers, for all that the script does to them."""
    stack = list(node.children)
    if node.type == "c_style_for_statement":
        body = node.child_by_field_name("body")
        stack = [child for child in stack if child != body]
    if node.type == "subscript":
        stack = list(node.children_by_field_name("index"))
    while stack:
        inner = stack.pop()
        text = source[inner.start_byte : inner.end_byte].decode()
        match inner.type:
            case "variable_name" | "word":
                if not (names.is_number(text) or text.isdecimal() or (node.type == "subscript" and text in "@*")):
                    return f"arithmetic over {text}, whose value is not known to be a number"
            case "simple_expansion":
                if not (names.is_number(text[1:]) or text[1:] in _NUMERIC_VARIABLES):
                    return f"arithmetic over {text}, whose value is not known to be a number"
            case "number":
                if not re.fullmatch(r"[0-9]+#?[0-9a-zA-Z]*|0[xX][0-9a-fA-F]+", text):
                    return f"arithmetic over {text}, which is not known to be a number"
            case "expansion" | "command_substitution" | "subscript" | "string" | "raw_string" | "concatenation":
                return f"arithmetic over {text[:40]}, whose value is not known to be a number"
            case _:
                stack += inner.children
    return None


def trouble_in_test(node: Node, source: bytes, names: Names) -> str | None:
    """`[[ x -eq y ]]` is arithmetic, `-v` looks at an index, and `[ $x ]` splits what it holds into operators."""
    is_old = node.children[0].type == "["
    stack = [(child, False) for child in node.children]
    while stack:
        inner, is_quoted = stack.pop()
        text = source[inner.start_byte : inner.end_byte].decode()
        if inner.type == "test_operator" and text in ("-v", "-R"):
            return f"{text} may run what a variable holds"
        if inner.type == "test_operator" and text in _COMPARISONS and not is_old and inner.parent is not None:
            sides = [side for side in inner.parent.named_children if side.type != "test_operator"]
            if not all(_is_number(side, source, names) for side in sides):
                return "[[ compares what is not known to be a number"
        is_split = not is_quoted or (inner.type != "command_substitution" and "@" in text)
        if is_old and is_split and inner.type in ("simple_expansion", "expansion", "command_substitution"):
            if not _is_number(inner, source, names):
                return "[ splits what a variable holds into words of its own"
            continue
        if inner.type not in ("command_substitution", "process_substitution"):
            stack += [(child, is_quoted or inner.type == "string") for child in inner.children]
    return None


def _is_number(node: Node, source: bytes, names: Names) -> bool:
    text = source[node.start_byte : node.end_byte].decode().strip('"')
    if re.fullmatch(r"-?\d+", text) or re.fullmatch(r"\$\{?#[\w@*]*(?:\[[@*]\])?\}?|\$[?$#!]", text):
        return True
    return node.type in ("simple_expansion", "word", "variable_name", "string") and names.is_number(text.lstrip("$"))
