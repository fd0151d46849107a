"""Which variables may be set without asking, and which may stand in arithmetic, where the shell runs what they hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tree_sitter import Node

# In front of a command: passed on to it, so only what is known to change no more than how it looks.
_HARMLESS = re.compile(
    r"LC_[A-Z]+|LANG|LANGUAGE|TZ|TERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR(?:_FORCE)?|CI|DEBIAN_FRONTEND"
    r"|PYTHONDONTWRITEBYTECODE|PYTHONUNBUFFERED|PYTHONIOENCODING|RUST_BACKTRACE|RUST_LOG|NODE_ENV|GIT_TERMINAL_PROMPT"
)
# By itself: known to the shell alone, unless it was in the environment before.
_POWERFUL = re.compile(
    r"_|IFS|ENV|DIRSTACK|PIPESTATUS|GROUPS|FUNCNAME|COPROC|HOME|SHELL\w*|CDPATH|GLOBIGNORE|PS\d|POSIXLY_CORRECT|TMPDIR|OPT(?:IND|ARG|ERR)|MAIL\w*|HIST\w*"
    r"|BASH\w*|PROMPT_\w*|LD_\w*|DYLD_\w*|GIT_\w*|SSH_\w*|GPG_\w*|PYTHON\w*|PERL\w*|RUBY\w*|NODE_\w*|JAVA_\w*|GO\w*"
    r"|RUST\w*|CARGO\w*|NPM_\w*|XDG_\w*|LESS\w*|MAN\w*|GREP_\w*|RIPGREP_\w*|DOCKER_\w*|KUBE\w*|AWS_\w*|SUDO_\w*"
    r"|BROWSER|VISUAL|TERMINFO|LOCPATH|NLSPATH|MALLOC_\w*|GCONV_PATH|HOSTALIASES|RES_OPTIONS"
    r"|\w*(?:PATH|PAGER|EDITOR|COMMAND|OPTIONS?|OPTS?|FLAGS?|CONFIG\w*|PROXY|DIR|INIT|RC|LAUNCHER|WRAPPER|HOOKS?)",
    re.IGNORECASE,
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS(?!ED)|CREDENTIAL|AUTH(?!OR)|COOKIE|PRIVATE", re.IGNORECASE)
# The shell puts words of the script into them, as it does into some of the powerful ones.
_TOLD_BY_SHELL = frozenset({"REPLY", "PWD", "OLDPWD", "MAPFILE"})
# They store whatever they like in a variable, or run something in this shell that may.
_STORING = frozenset(
    {"read", "mapfile", "readarray", "getopts", "let", "eval", "source", ".", "wait", "command", "builtin", "time"}
)


class Names(msgspec.Struct, frozen=True):
    """What a script does to variables."""

    assigned: tuple[str, ...]  # as often as it is
    unsafe: frozenset[str]  # may hold more than a number
    is_wild: bool  # it may set any, to anything

    def is_number(self, name: str) -> bool:
        """Whether it may stand in arithmetic: an index in the text that a variable holds, `a[$(…)]`, is run."""
        return not self.is_wild and name not in self.unsafe and may_be_set(name) and name not in _TOLD_BY_SHELL

    def is_set_once(self, name: str) -> bool:
        return not self.is_wild and self.assigned.count(name) == 1


def may_precede(name: str) -> bool:
    return _HARMLESS.fullmatch(name) is not None


def may_be_set(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_]\w*", name) is not None and _POWERFUL.fullmatch(name) is None


def is_secret_name(name: str) -> bool:
    return _SECRET.search(name) is not None


def names_of(root: Node, source: bytes) -> Names:
    def text(node: Node) -> str:
        return source[node.start_byte : node.end_byte].decode()

    assigned: list[str] = []
    unsafe: set[str] = set()
    is_wild = False
    stack = [root]
    while stack:
        node = stack.pop()
        stack += node.children
        field = node.child_by_field_name("name") or node.child_by_field_name("variable")
        name = "" if field is None else text(field).partition("[")[0]
        match node.type:
            case "variable_assignment" | "for_statement":
                assigned.append(name)
                values = node.children_by_field_name("value")
                is_counted = all(_is_number(each, text(each)) for each in values)
                if not is_counted or (node.type == "for_statement" and not values):
                    unsafe.add(name)
            case "expansion" if "=" in text(node):
                name = re.sub(r"\W.*", "", text(node)[2:], flags=re.DOTALL)
                assigned.append(name)
                unsafe.add(name)
            case "arithmetic_expansion" | "c_style_for_statement" | "compound_statement":
                if node.type != "compound_statement" or text(node).startswith("(("):
                    assigned += re.findall(r"[A-Za-z_]\w*", text(node))
            case "declaration_command" | "unset_command":
                assigned += [text(child) for child in node.children if child.type == "variable_name"]
                is_wild |= re.search(r"\s-\w*[ni]", text(node)) is not None
            case "command" if field is not None:
                is_wild |= name in _STORING or not re.fullmatch(r"[\w./+-]+", name)
                is_wild |= name == "printf" and "-v" in text(node)
            case _:
                pass
    return Names(tuple(assigned), frozenset(unsafe), is_wild)


def _is_number(node: Node, text: str) -> bool:
    return node.type == "arithmetic_expansion" or re.fullmatch(r"[-+]?\d+", text) is not None
