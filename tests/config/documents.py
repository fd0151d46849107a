"""Made-up TOML: documents in every style of writing, full of what could be taken for a key, with the line of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hypothesis import strategies as st

from kedge.config.keys import Key, format_key, quote

T = TypeVar("T")

NAMES = ["a", "b", "model", "with space", "dot.ted", "ключ", 'quo"te', "it's", "#hash", "[x]", "1", "-", ""]
# Values as they are written, some over several lines; none of what is in them is a key.
VALUES = [
    "1",
    "-0.5e3",
    "true",
    "2024-01-02T03:04:05Z",
    "0xff",
    '"text"',
    '"# no comment"',
    '"[no.header]"',
    '"quote \\" and \\\\"',
    "'C:\\dir'",
    "'''one'''",
    '"""\n[no]\nno = 1\n# no\n"""',
    '"""ends with quotes"""""',
    '"""\\\n   folded \\""" ]\n"""',
    "'''\na = 1\n'' ]\n'''''",
    "[]",
    "[1, 2, 3]",
    "[\n  1, # ]\n  2,\n]",
    '[["a", "b = 1"], [\n"]"\n]]',
    "[ '''\n]''', \"\"\"\n]\"\"\" ]",
    "{}",
]
NOISE = ["", "# a comment", "# [no.header]", "   # no = 1", "\t", '# """', "# '''"]


class Written:
    """A document that grows, and the line of every key in it."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw
        self._lines: list[str] = []
        self.line_of: dict[Key, int] = {}

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)

    def table(self, path: Key, depth: int) -> None:
        """The entries of a table, then the tables in it, each under its header."""
        names = self._names()
        inner = names[: self._pick(list(range(len(names) + 1)))] if depth else []
        for name in names[len(inner) :]:
            self._noise()
            self._entry(path, name)
        for name in inner:
            self._noise()
            self._headed((*path, name), depth - 1)

    def _headed(self, path: Key, depth: int) -> None:
        if self._pick([True, False, False]):
            for place in range(self._pick([1, 2])):
                self._header((*path, place), "[[", "]]")
                self.table((*path, place), 0)
            return
        self._header(path, "[", "]")
        self.table(path, depth)

    def _header(self, path: Key, opening: str, closing: str) -> None:
        written = self._dotted([name for name in path if isinstance(name, str)])
        if isinstance(path[-1], int):
            self._note(path[:-1])
        self._note(path)
        self._lines.append(f"{self._blank()}{opening}{written}{closing}{self._tail()}")

    def _entry(self, table: Key, name: str) -> None:
        style = self._pick(["plain", "plain", "dotted", "inline"])
        if style == "inline":
            names = self._names()
            self._note((*table, name))
            for inner in names:
                self._note((*table, name, inner))
            fields = ", ".join(f"{self._spelled(inner)} = 1" for inner in names)
            self._lines.append(f"{self._spelled(name)} = {{ {fields} }}{self._tail()}")
            return
        rest = [name, *(self._names()[:2] if style == "dotted" else [])]
        path = table
        for each in rest:
            path = (*path, each)
            self._note(path)
        value = self._pick(VALUES)
        self._lines += f"{self._blank()}{self._dotted(rest)} = {value}{self._tail()}".split("\n")

    def _note(self, path: Key) -> None:
        """A key stands where it is first mentioned; it is noted before its line is written."""
        self.line_of.setdefault(path, len(self._lines) + 1)

    def _names(self) -> list[str]:
        return self._draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))

    def _pick(self, choices: list[T]) -> T:
        return self._draw(st.sampled_from(choices))

    def _noise(self) -> None:
        self._lines += self._draw(st.lists(st.sampled_from(NOISE), max_size=2))

    def _blank(self) -> str:
        return self._pick(["", "", "  ", "\t"])

    def _tail(self) -> str:
        return self._pick(["", "", '  # ] } = """', " #"])

    def _spelled(self, name: str) -> str:
        plain = format_key((name,))
        literal = f"'{name}'"
        return self._pick([plain, quote(name), plain if "'" in name else literal])

    def _dotted(self, names: list[str]) -> str:
        return self._pick([".", " . ", " ."]).join(map(self._spelled, names))


@st.composite
def documents(draw: st.DrawFn) -> Written:
    written = Written(draw)
    written.table((), 2)
    return written


def paths_of(value: Any, path: Key = ()) -> set[Key]:
    """Every key that tomllib found, and every element of an array."""
    inner: list[tuple[str | int, Any]] = []
    match value:
        case dict():
            inner = list(cast("dict[str, Any]", value).items())
        case list():
            inner = list(enumerate(cast("list[Any]", value)))
        case _:
            pass
    return {(*path, name) for name, _ in inner}.union(*(paths_of(each, (*path, name)) for name, each in inner))
