"""The schema as a tree that can be walked: which keys there are, what each takes, and what is wrong with a value."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast, get_args

import msgspec
from msgspec import inspect

from kedge.config.keys import Key, quoted, spelled
from kedge.config.rules import BadRule, read_rule
from kedge.config.schema import Config, Effort, SandboxMode, WireName
from kedge.protocol.runs import MODES

Kind = Literal["text", "whole", "number", "switch", "choice", "texts", "anything"]
Untrusted = Literal["no", "yes", "stricter"]
# In the order that people expect, which msgspec does not keep.
_CHOICES: tuple[tuple[str, ...], ...] = (MODES, get_args(Effort), get_args(WireName), get_args(SandboxMode))
_MAX_RULE_SHOWN = 100


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A key with a value."""

    kind: Kind
    description: str = ""
    default: Any = None
    untrusted: Untrusted = "no"
    choices: tuple[str, ...] = ()
    has_rules: bool = False  # each text is a permission rule
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    @property
    def expected(self) -> str:
        """What to write, for people."""
        match self.kind:
            case "text":
                return "a text"
            case "switch":
                return "true or false"
            case "texts":
                return "a list of texts"
            case "choice":
                return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
            case "anything":
                return "a value that JSON has"
            case "whole" | "number":
                bounds = [("of at least", self.at_least), ("above", self.above), ("of at most", self.at_most)]
                words = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
                return " ".join(filter(None, ["a whole number" if self.kind == "whole" else "a number", words]))

    def problem(self, value: Any) -> str | None:
        if self._fits(value):
            return _bad_rule(value) if self.has_rules else None
        near = difflib.get_close_matches(value, self.choices, 1) if isinstance(value, str) else []
        hint = f'; did you mean "{near[0]}"?' if near else ""
        return f"expected {self.expected}, not {shown(value)}{hint}"

    def _fits(self, value: Any) -> bool:
        match self.kind:
            case "text":
                return isinstance(value, str)
            case "switch":
                return isinstance(value, bool)
            case "texts":
                return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))
            case "choice":
                return value in self.choices
            case "anything":
                return _is_json(value)
            case "whole":
                return isinstance(value, int) and not isinstance(value, bool) and self._is_within(value)
            case "number":
                return isinstance(value, int | float) and not isinstance(value, bool) and self._is_within(value)

    def _is_within(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )


class Table(msgspec.Struct, frozen=True):
    """Keys with fixed names."""

    fields: dict[str, Node]
    description: str = ""


class Named(msgspec.Struct, frozen=True):
    """Keys whose names the user chooses."""

    each: Node
    description: str = ""


Node = Leaf | Table | Named


@functools.cache
def tree() -> Table:
    node = _node(inspect.type_info(Config), "", None, "no")
    assert isinstance(node, Table)
    return node


def leaves(node: Node | None = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Every key, in the order of the schema; `*` stands for a name that the user chooses."""
    match node or tree():
        case Leaf() as leaf:
            yield path, leaf
        case Table(fields=fields):
            for name, each in fields.items():
                yield from leaves(each, (*path, name))
        case Named(each=each):
            yield from leaves(each, (*path, "*"))


def find(path: Sequence[str | int]) -> Node | None:
    """What the schema has at this key; what lies inside of anything is anything."""
    node: Node | None = tree()
    for name in path:
        match node:
            case Table(fields=fields):
                node = fields.get(str(name))
            case Named(each=each):
                node = each
            case Leaf(kind="anything"):
                return node
            case _:
                return None
    return node


def problems(value: Any, node: Node | None = None, path: Key = ()) -> Iterator[tuple[Key, str]]:
    """Everything in a document that the schema does not have, with its key."""
    match node or tree():
        case Leaf() as leaf:
            if (problem := leaf.problem(value)) is not None:
                yield path, problem
        case _ if not isinstance(value, dict):
            yield path, f"expected a table, not {shown(value)}"
        case Named(each=each):
            for name, inner in cast("dict[str, Any]", value).items():
                yield from problems(inner, each, (*path, name))
        case Table(fields=fields):
            for name, inner in cast("dict[str, Any]", value).items():
                if name in fields:
                    yield from problems(inner, fields[name], (*path, name))
                else:
                    yield (*path, name), unknown((*path, name))


def unknown(path: Key) -> str:
    """That there is no such key, and the nearest that there is: beside it, or with its name elsewhere."""
    around, name = find(path[:-1]), str(path[-1])
    beside = list(around.fields) if isinstance(around, Table) else []
    if near := difflib.get_close_matches(name, beside, 1):
        return f"there is no such key; did you mean {spelled((*path[:-1], near[0]))}?"
    elsewhere = [known for known, _ in leaves() if "*" not in known]
    if same := next((known for known in elsewhere if known[-1] == name), None):
        return f"there is no such key; did you mean {spelled(same)}?"
    if near := difflib.get_close_matches(spelled(path), list(map(spelled, elsewhere)), 1):
        return f"there is no such key; did you mean {near[0]}?"
    return f"there is no such key; here can stand {', '.join(beside)}" if beside else "there is no such key"


def shown(value: Any) -> str:
    """A wrong value in a few words; a text only by its beginning: it may be a key that went astray."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'the text "{value}"' if len(value) <= 20 and value.isprintable() else "a text"
        case int() | float():
            return f"{value}" if len(f"{value}") <= 20 else "a large number"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or a time"


def _bad_rule(rules: list[str]) -> str | None:
    for rule in rules:
        try:
            read_rule(rule)
        except BadRule as error:
            return f"the rule {quoted(rule[:_MAX_RULE_SHOWN])} cannot be used: {error.expected.rstrip('.')}"
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


def _node(type: inspect.Type, description: str, default: Any, untrusted: Untrusted, *, has_rules: bool = False) -> Node:
    def leaf(kind: Kind, **more: Any) -> Leaf:
        return Leaf(kind=kind, description=description, default=default, untrusted=untrusted, **more)

    match type:
        case inspect.Metadata() as said:
            words: dict[str, Any] = said.extra_json_schema or {}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            marks: dict[str, Any] = said.extra or {}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            return _node(
                said.type,
                words.get("description", description),
                default,
                marks.get("untrusted", untrusted),
                has_rules=marks.get("rules", has_rules),
            )
        case inspect.UnionType(types=[inner, inspect.NoneType()]):
            return _node(inner, description, default, untrusted)
        case inspect.StructType(cls=cls, fields=fields):
            said = description or (cls.__doc__ or "").strip()
            return Table({f.name: _node(f.type, "", f.default, "no") for f in fields}, said)
        case inspect.DictType(value_type=each):
            return Named(_node(each, description, None, untrusted), description)
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
            return leaf("text")
        case _:
            raise NotImplementedError(f"a configuration cannot hold {type}")
