"""The schema as a tree: find a key, list all keys, and validate values with messages for people."""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast, get_args

import msgspec
from msgspec import inspect

from kedge.config.keys import Key, format_key, quote
from kedge.config.rules import BadRule, read_rule
from kedge.config.schema import Config, SandboxMode, WireName
from kedge.protocol.runs import EFFORTS, MODES

Kind = Literal["text", "whole", "number", "switch", "choice", "texts", "tables", "anything"]
Untrusted = Literal["no", "yes", "stricter"]
# msgspec does not keep the order of the literals.
_CHOICES: tuple[tuple[str, ...], ...] = (MODES, EFFORTS, get_args(WireName), get_args(SandboxMode))
_MAX_RULE_SHOWN = 100


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A key that takes a value."""

    kind: Kind
    description: str = ""
    default: Any = None
    untrusted: Untrusted = "no"
    choices: tuple[str, ...] = ()
    has_rules: bool = False  # each element is a permission rule
    is_regex: bool = False
    each: Table | None = None  # of a list of tables
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    @property
    def expected(self) -> str:
        """Describe the valid values."""
        match self.kind:
            case "text":
                return "a string"
            case "switch":
                return "true or false"
            case "texts":
                return "a list of strings"
            case "tables":
                return "a list of tables"
            case "choice":
                return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
            case "anything":
                return "a JSON value"
            case "whole" | "number":
                bounds = [("of at least", self.at_least), ("above", self.above), ("of at most", self.at_most)]
                words = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
                return " ".join(filter(None, ["a whole number" if self.kind == "whole" else "a number", words]))

    def find_problem(self, value: Any) -> str | None:
        if self._is_valid(value):
            if self.is_regex:
                return _find_bad_regex(value)
            return _find_bad_rule(value) if self.has_rules else None
        near = difflib.get_close_matches(value, self.choices, 1) if isinstance(value, str) else []
        hint = f'; did you mean "{near[0]}"?' if near else ""
        return f"expected {self.expected}, not {describe_value(value)}{hint}"

    def _is_valid(self, value: Any) -> bool:
        match self.kind:
            case "text":
                return isinstance(value, str)
            case "switch":
                return isinstance(value, bool)
            case "texts":
                return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))
            case "tables":
                return isinstance(value, list) and all(isinstance(each, dict) for each in cast("list[Any]", value))
            case "choice":
                return value in self.choices
            case "anything":
                return _is_json(value)
            case "whole":
                return isinstance(value, int) and not isinstance(value, bool) and self._is_in_range(value)
            case "number":
                return isinstance(value, int | float) and not isinstance(value, bool) and self._is_in_range(value)

    def _is_in_range(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )


class Table(msgspec.Struct, frozen=True):
    """A table with fixed keys."""

    fields: dict[str, Node]
    description: str = ""
    required: tuple[str, ...] = ()


class OpenTable(msgspec.Struct, frozen=True):
    """A table whose key names the user chooses."""

    each: Node
    description: str = ""


Node = Leaf | Table | OpenTable


@functools.cache
def schema_tree() -> Table:
    node = _build(inspect.type_info(Config), "", None, "no")
    assert isinstance(node, Table)
    return node


def iter_leaves(node: Node | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Yield every key in the order of the schema; `*` stands for a name that the user chooses."""
    match node or schema_tree():
        case Leaf() as leaf:
            yield path, leaf
        case Table(fields=fields):
            for name, each in fields.items():
                yield from iter_leaves(each, (*path, name))
        case OpenTable(each=each):
            yield from iter_leaves(each, (*path, "*"))


def find_node(path: Sequence[str | int]) -> Node | None:
    """Return the node at a key, or None. Below a key of kind "anything", that key itself is returned."""
    node: Node | None = schema_tree()
    for name in path:
        if isinstance(node, Leaf) and node.each is not None and isinstance(name, int):
            node = node.each
            continue
        match node:
            case Table(fields=fields):
                node = fields.get(str(name))
            case OpenTable(each=each):
                node = each
            case Leaf(kind="anything"):
                return node
            case _:
                return None
    return node


def find_problems(value: Any, node: Node | None = None, path: Key = ()) -> Iterator[tuple[Key, str]]:
    """Yield everything in a document that the schema does not allow, with its key."""
    match node or schema_tree():
        case Leaf() as leaf:
            if (problem := leaf.find_problem(value)) is not None:
                yield path, problem
            elif leaf.each is not None:
                for index, inner in enumerate(cast("list[Any]", value)):
                    yield from find_problems(inner, leaf.each, (*path, index))
        case _ if not isinstance(value, dict):
            yield path, f"expected a table, not {describe_value(value)}"
        case OpenTable(each=each):
            for name, inner in cast("dict[str, Any]", value).items():
                yield from find_problems(inner, each, (*path, name))
        case Table(fields=fields, required=required):
            for name in required:
                if name not in value:
                    yield path, f"needs {name}"
            for name, inner in cast("dict[str, Any]", value).items():
                if name in fields:
                    yield from find_problems(inner, fields[name], (*path, name))
                else:
                    yield (*path, name), explain_unknown((*path, name))


def explain_unknown(path: Key) -> str:
    """Return a message that suggests a similar key of the same table, or one with the same name elsewhere."""
    parent, name = find_node(path[:-1]), str(path[-1])
    siblings = list(parent.fields) if isinstance(parent, Table) else []
    if near := difflib.get_close_matches(name, siblings, 1):
        return f"unknown key; did you mean {format_key((*path[:-1], near[0]))}?"
    elsewhere = [known for known, _ in iter_leaves() if "*" not in known]
    if same := next((known for known in elsewhere if known[-1] == name), None):
        return f"unknown key; did you mean {format_key(same)}?"
    if near := difflib.get_close_matches(format_key(path), list(map(format_key, elsewhere)), 1):
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; valid here: {', '.join(siblings)}" if siblings else "unknown key"


def describe_value(value: Any) -> str:
    """Describe an invalid value. A long text is not shown: it may be a secret pasted in the wrong place."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"' if len(value) <= 20 and value.isprintable() else "a string"
        case int() | float():
            return f"{value}" if len(f"{value}") <= 20 else "a large number"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or a time"


def _find_bad_rule(rules: list[str]) -> str | None:
    for rule in rules:
        try:
            read_rule(rule)
        except BadRule as error:
            return f"the rule {quote(rule[:_MAX_RULE_SHOWN])} is invalid: {error.expected.rstrip('.')}"
    return None


def _find_bad_regex(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a regular expression: {error}"
    return None


def _is_json(value: Any) -> bool:
    match value:
        case list():
            return all(map(_is_json, cast("list[Any]", value)))
        case dict():
            return all(map(_is_json, cast("dict[str, Any]", value).values()))
        case float():
            return math.isfinite(value)
        case _:
            return isinstance(value, str | int | bool)


def _build(
    type: inspect.Type,
    description: str,
    default: Any,
    untrusted: Untrusted,
    *,
    has_rules: bool = False,
    is_regex: bool = False,
) -> Node:
    def leaf(kind: Kind, **more: Any) -> Leaf:
        return Leaf(kind=kind, description=description, default=default, untrusted=untrusted, **more)

    match type:
        case inspect.Metadata() as metadata:
            schema: dict[str, Any] = metadata.extra_json_schema or {}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            marks: dict[str, Any] = metadata.extra or {}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            return _build(
                metadata.type,
                schema.get("description", description),
                default,
                marks.get("untrusted", untrusted),
                has_rules=marks.get("rules", has_rules),
                is_regex=marks.get("regex", is_regex),
            )
        case inspect.UnionType(types=[inner, inspect.NoneType()]):
            return _build(inner, description, default, untrusted)
        case inspect.StructType(cls=cls, fields=fields):
            text = description or (cls.__doc__ or "").strip()
            required = tuple(f.encode_name for f in fields if f.required)
            return Table({f.encode_name: _build(f.type, "", f.default, "no") for f in fields}, text, required)
        case inspect.DictType(value_type=each):
            return OpenTable(_build(each, description, None, untrusted), description)
        case inspect.VarTupleType(item_type=inspect.StructType() as struct):
            each = _build(struct, "", None, "no")
            assert isinstance(each, Table)
            return leaf("tables", each=each)
        case inspect.VarTupleType(item_type=inspect.StrType()):
            return leaf("texts", has_rules=has_rules)
        case inspect.LiteralType(values=values):
            choices = set(map(str, values))
            return leaf(
                "choice", choices=next((known for known in _CHOICES if set(known) == choices), tuple(sorted(choices)))
            )
        case inspect.IntType(ge=ge, gt=gt, le=le):
            return leaf("whole", at_least=ge, above=gt, at_most=le)
        case inspect.FloatType(ge=ge, gt=gt, le=le):
            return leaf("number", at_least=ge, above=gt, at_most=le)
        case inspect.BoolType():
            return leaf("switch")
        case inspect.AnyType():
            return leaf("anything")
        case inspect.StrType():
            return leaf("text", is_regex=is_regex)
        case _:
            raise NotImplementedError(f"a configuration cannot contain {type}")
