"""A command line taken apart: every simple command that it may run, wherever it is nested, and every file it opens.

The promise: whatever bash would run is among the pieces, or there is an `Opaque` piece.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from kedge.tools.permissions import expansions, wrappers
from kedge.tools.permissions.ground import Directories, Ground, resolve_all
from kedge.tools.permissions.pieces import Opaque, Piece, Touch
from kedge.tools.permissions.simple import Scene, made
from kedge.tools.permissions.syntax import Tree, Unreadable, parse
from kedge.tools.permissions.variables import Names, is_secret_name, may_be_set, names_of
from kedge.tools.permissions.whereabouts import followed, wanders
from kedge.tools.permissions.words import Values, Word, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_PIECES = 400
MAX_CODE_DEPTH = 4  # sh -c inside sh -c
MAX_LOOP_VALUES = 20
MAX_ROUNDS = 400  # of all loops and shells, which may be nested in each other
_ARRAYS = re.compile(rb"=\(|\]\+?=|\s-\w*a")
_DUPLICATED = re.compile(r"\d+-?|-")


class _Patience(msgspec.Struct):
    """How often something may still be read once more, of all that one command line holds."""

    left: int = MAX_ROUNDS

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


def pieces_of(command: str, ground: Ground, directories: Directories) -> list[Piece]:
    return _pieces_of(command, ground, directories, 0, _Patience())


def _pieces_of(command: str, ground: Ground, directories: Directories, depth: int, patience: _Patience) -> list[Piece]:
    if depth > MAX_CODE_DEPTH or not patience.take():
        return [Opaque(why="shells are nested too deeply", text=command[:200])]
    tree = parse(command)
    if isinstance(tree, Unreadable):
        return [Opaque(why=tree.why, text=command[:200])]
    return _Reader(tree, ground, directories, depth, patience).read()


class _Reader:
    def __init__(self, tree: Tree, ground: Ground, directories: Directories, depth: int, patience: _Patience) -> None:
        self._root, self._source = tree.root, tree.source
        self._ground = ground
        self._depth = depth
        self._patience = patience
        self._pieces: list[Piece] = []
        self._names: Names = names_of(tree.root, tree.source)
        self._values: dict[str, Word] = {}
        self._functions: set[str] = set()
        self._directories = None if wanders(tree.root, self._words) else directories

    def read(self) -> list[Piece]:
        self._walk(self._root)
        if len(self._pieces) > MAX_PIECES:
            return [Opaque(why="it has too many commands", text=self._text(self._root)[:200])]
        return self._pieces

    # the syntax

    def _walk(self, node: Node) -> None:
        if len(self._pieces) > MAX_PIECES:
            return
        match node.type:
            case "command":
                self._command(node, [])
            case "redirected_statement":
                self._redirected(node)
            case "file_redirect":
                self._redirect(node)
            case "variable_assignment":
                self._assignment(node)
            case "declaration_command" | "unset_command":
                self._declaration(node)
            case "for_statement":
                self._for(node)
            case "function_definition":
                self._function(node)
            case "test_command":
                if (why := expansions.trouble_in_test(node, self._source, self._names)) is not None:
                    self._opaque(why, node)
                self._children(node)
            case "simple_expansion" | "expansion":
                self._expansion(node)
            case "arithmetic_expansion" | "c_style_for_statement":
                self._arithmetic(node)
            case "compound_statement" if self._text(node).startswith("(("):
                self._arithmetic(node)
            case "subscript":
                self._arithmetic(node)
            case "ERROR":
                self._opaque("it cannot be read", node)
            case _:
                self._children(node)

    def _children(self, node: Node) -> None:
        for child in node.children:
            self._walk(child)

    def _redirected(self, node: Node) -> None:
        """The grammar puts words that follow a redirection into it: `cat <a b` reads b, too."""
        body = node.child_by_field_name("body")
        late: list[Node] = []
        for redirect in node.children_by_field_name("redirect"):
            for each in (redirect, *redirect.children_by_field_name("redirect")):
                late += each.children_by_field_name("destination")[1:]
            late += redirect.children_by_field_name("argument")
        if late and (body is None or body.type != "command"):
            self._opaque("words follow a redirection", node)
        for redirect in node.children_by_field_name("redirect"):
            self._walk(redirect)
        if body is not None and body.type == "command":
            self._command(body, late)
        elif body is not None:
            self._walk(body)

    def _redirect(self, node: Node) -> None:
        operator = next((child.type for child in node.children if not child.is_named), "")
        destinations = node.children_by_field_name("destination")
        for each in destinations:
            self._walk(each)
        if operator.endswith("-") and not destinations:
            return  # 2>&-
        words = self._words(destinations[0]) if destinations else []
        if len(words) != 1 or words[0].text is None or words[0].is_glob:
            self._opaque("a redirection leads to a file that is not known", node)
            return
        target = words[0].text
        if operator in (">&", "<&") and _DUPLICATED.fullmatch(target):
            return
        if re.match(r"/dev/(?:tcp|udp)/", target):
            self._opaque("a redirection opens a network connection", node)
            return
        paths = resolve_all(self._directories, target, is_glob=False)
        if paths is None:
            self._opaque("a redirection leads to a file that is not known", node)
            return
        if re.match(r"/dev/(?:null|stdout|stderr|tty|fd/\d+)$", target):
            return
        kind = "read" if operator in ("<", "<&") else "write"
        self._pieces.append(Touch(kind=kind, paths=paths, text=self._text(node)))

    def _assignment(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        if name is None or not may_be_set(self._text(name).partition("[")[0]):
            self._opaque("it changes a variable that other programs obey", node)
        self._children(node)

    def _declaration(self, node: Node) -> None:
        """`export`, `declare`, `unset`: their words must be plain names, because an index in one is run."""
        keyword = node.children[0].type
        shown = False
        for child in node.children[1:]:
            text = self._text(child)
            if child.type == "variable_assignment":
                shown = True
                if keyword == "export" and not wrappers.is_harmless_assignment(Word(text)):
                    self._opaque("it changes the environment of what follows", node)
                if self._may_be_compound(child):
                    self._opaque("an array may run what its new value says", node)
            elif child.type == "variable_name" and may_be_set(text) and keyword != "export":
                shown = True
            elif not (child.type == "word" and re.fullmatch(r"-[arg]+", text) and keyword != "unset"):
                self._opaque("it does more than declare a variable", node)
        if not shown:
            self._opaque("it shows variables", node)
        self._children(node)

    def _may_be_compound(self, assignment: Node) -> bool:
        """`declare -a x='($(rm f))'` removes f: of an array, a text that looks like one is expanded once more."""
        value = assignment.child_by_field_name("value")
        if value is None or value.type == "array" or not (self._names.is_wild or _ARRAYS.search(self._source)):
            return False
        text = self._words(value)[0].text
        return text is None or text.startswith("(")

    def _for(self, node: Node) -> None:
        """The body is read once for each value, if they are known: `for f in *.py; do wc -l "$f"; done`."""
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        values = node.children_by_field_name("value")
        for each in values:
            self._walk(each)
        if variable is None or body is None:
            self._opaque("a loop cannot be read", node)
            return
        name = self._text(variable)
        if not may_be_set(name):
            self._opaque("it changes a variable that other programs obey", node)
        words = [word for each in values for word in self._words(each)]
        is_known = all(word.text is not None for word in words) and 0 < len(words) <= MAX_LOOP_VALUES
        if node.children[0].type == "for" and is_known and self._names.is_set_once(name):
            for word in dict.fromkeys(words):
                self._values[name] = word
                if not self._patience.take():
                    self._opaque("its loops are too many", node)
                    break
                self._walk(body)
            del self._values[name]
        else:
            self._walk(body)

    def _function(self, node: Node) -> None:
        for child in node.children:
            if child.type != "word":
                self._walk(child)
        name = node.child_by_field_name("name")
        parent = node.parent
        # Anywhere else it may not come to be defined, and its name means another command.
        if (
            name is not None
            and parent is not None
            and parent.type == "program"
            and re.fullmatch(r"[a-z_]\w*", self._text(name))
        ):
            self._functions.add(self._text(name))

    def _expansion(self, node: Node) -> None:
        text = self._text(node)
        if (why := expansions.trouble_in_expansion(text)) is not None:
            self._opaque(why, node)
        name = re.sub(r"^\$\{?[#!]?|\W.*", "", text, flags=re.DOTALL)
        if is_secret_name(name) and name not in self._names.assigned:
            self._opaque(f"it uses ${name}, which sounds like a secret", node)
        self._children(node)

    def _arithmetic(self, node: Node) -> None:
        if (why := expansions.trouble_in_arithmetic(node, self._source, self._names)) is not None:
            self._opaque(why, node)
        self._children(node)

    # simple commands

    def _command(self, node: Node, late: list[Node]) -> None:
        words: list[Word] = []
        assigned: list[Word] = []
        for child in [*node.children, *late]:
            match child.type:
                case "variable_assignment":
                    value = child.child_by_field_name("value")
                    known = [Word("")] if value is None else self._words(value)
                    text = self._text(child).partition("=")[0] + "=" + (known[0].shown if len(known) == 1 else "…")
                    assigned.append(Word(text))
                    self._children(child)
                case "file_redirect" | "herestring_redirect" | "heredoc_redirect":
                    self._walk(child)
                    if len(child.children_by_field_name("destination")) > 1:
                        self._opaque("words follow a redirection", node)
                case "subshell":
                    self._opaque("a subshell stands where words are expected", node)
                    self._walk(child)
                case _:
                    words += self._words(child)
                    if child not in late:  # those were looked at with their redirection
                        self._walk(child)
        if words:
            self._simple(tuple(words), tuple(assigned))
        elif assigned:
            self._opaque("it cannot be read", node)

    def _simple(self, words: tuple[Word, ...], assigned: tuple[Word, ...]) -> None:
        scene = Scene(self._directories, self._functions, self._nested)
        self._pieces.append(made(words, assigned, scene, is_direct=True))
        self._directories = followed(words, self._directories)

    def _nested(self, code: str, directories: Directories) -> list[Piece]:
        return _pieces_of(code, self._ground, directories, self._depth + 1, self._patience)

    # helpers

    def _words(self, node: Node) -> list[Word]:
        values: Values = self._values
        return words_of(node, self._source, values, self._ground.home)

    def _opaque(self, why: str, node: Node) -> None:
        self._pieces.append(Opaque(why=why, text=self._text(node)[:200]))

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode()
