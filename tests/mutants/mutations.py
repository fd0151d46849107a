"""The mistakes that can be planted in a module: each replaces one piece of its text by another.

Left out is what no test is meant to notice: annotations, options of classes, log lines, failpoints, assertions, texts,
times (names that end in _S), the length of random ids, and numbers of 100 and more, which are bounds and sizes where
one more or less is not seen.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from typing import NamedTuple, cast

_FLIPPED: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
}
_LARGE = 100
_UNSEEN_FIELDS = ("annotation", "returns", "decorator_list", "type_params", "bases")
_UNSEEN = ("log.", "failpoints.", "logging.", "secrets.")  # calls of these


class Mutation(NamedTuple):
    line: int
    what: str
    source: str  # of the whole module, with the mistake in it


def mutations(source: str) -> list[Mutation]:
    """All that can be planted in a module, in the order of its lines."""
    return sorted(_Finder(source).all(), key=lambda each: (each.line, each.what, each.source))


def diff(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=1)
    return "\n".join(lines)


class _Finder:
    def __init__(self, source: str) -> None:
        self._source = source
        self._lines = source.encode().splitlines(keepends=True)
        self._tree = ast.parse(source)

    def all(self) -> Iterator[Mutation]:
        for node in self._visible(self._tree):
            if isinstance(node, ast.stmt):
                yield from self._of_statement(node)
            elif isinstance(node, ast.expr):
                yield from self._of_expression(node)

    def _visible(self, node: ast.AST) -> Iterator[ast.AST]:
        for name, value in ast.iter_fields(node):
            if name in _UNSEEN_FIELDS or (name == "keywords" and isinstance(node, ast.ClassDef)):
                continue
            for child in cast("list[object]", value) if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_unseen(child):
                    yield child
                    yield from self._visible(child)

    def _of_statement(self, node: ast.stmt) -> Iterator[Mutation]:
        match node:
            case ast.Expr(ast.Call() | ast.Await()):
                yield self._replaced(node, "pass", "dropped call")
            case ast.Assign(targets=[ast.Attribute()]) | ast.AugAssign():
                yield self._replaced(node, "pass", "dropped assignment")
            case ast.Return(ast.Constant(None | False)):
                pass  # nobody can tell them apart
            case ast.Return(value) if value is not None:
                yield self._replaced(node, "return None", "returned nothing")
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                yield self._replaced(node, "pass", "dropped exit")
            case ast.If(test) | ast.While(test) if not isinstance(test, ast.NamedExpr | ast.Compare | ast.UnaryOp):
                yield self._replaced(test, f"not ({ast.unparse(test)})", "negated condition")
            case _:
                pass

    def _of_expression(self, node: ast.expr) -> Iterator[Mutation]:
        match node:
            case ast.Compare(left, [op], [right]):
                flipped = ast.Compare(left, [_FLIPPED[type(op)]], [right])
                yield self._replaced(node, f"({ast.unparse(flipped)})", "flipped comparison")
            case ast.BoolOp(op, values):
                other = ast.Or() if isinstance(op, ast.And) else ast.And()
                yield self._replaced(node, f"({ast.unparse(ast.BoolOp(other, values))})", "and/or")
            case ast.UnaryOp(ast.Not(), operand):
                yield self._replaced(node, f"bool({ast.unparse(operand)})", "dropped not")
            case ast.Constant(bool(value)):
                yield self._replaced(node, str(not value), "flipped constant")
            case ast.Constant(int(number)) if abs(number) < _LARGE:
                yield self._replaced(node, str(number + 1), "off by one")
            case _:
                pass

    def _replaced(self, node: ast.stmt | ast.expr, text: str, what: str) -> Mutation:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = sum(map(len, self._lines[: node.lineno - 1])) + node.col_offset
        end = sum(map(len, self._lines[: node.end_lineno - 1])) + node.end_col_offset
        encoded = self._source.encode()
        return Mutation(node.lineno, what, (encoded[:start] + text.encode() + encoded[end:]).decode())


def _is_unseen(node: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Call(func)) | ast.Call(func):
            return ast.unparse(func).startswith(_UNSEEN)
        case ast.Expr(ast.Constant()) | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.Assign([ast.Name("TYPE_CHECKING")]):
            return True
        case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
            return name.endswith("_S")
        case ast.ClassDef(bases=bases):
            return any(ast.unparse(base).split("[")[0] == "Protocol" for base in bases)
        case _:
            return False
