"""Decisions, and the policy (rules, grants, mode) that makes them for a path, a URL or a tool.

Also the rules that "allow for this session" remembers: as narrow as the request, never one that runs anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from kedge.protocol.bounds import MAX_RULE_CHARS
from kedge.protocol.requests import PermissionRequest
from kedge.protocol.runs import Mode
from kedge.tools.permissions.paths import Roots, is_secret
from kedge.tools.permissions.rules import (
    PYTHON_NAMES,
    Rule,
    find_module,
    host_of,
    quote_path,
    quote_path_from_home,
    quote_word,
)
from kedge.tools.permissions.shell import Command, names
from kedge.tools.port import AccessKind, RunAs

MAX_LABEL_CHARS = 200

PLANNING = "this run only plans (mode plan), so nothing may be changed or run that is not known to be read-only"

# Any words may follow these: they build, check or test this project.
_PREFIXES = frozenset(
    tuple(words.split())
    for line in (
        "npm test, npm run *, pnpm test, pnpm run *, yarn test, yarn run *, bun test, bun run *",
        "cargo build, cargo test, cargo check, cargo clippy, cargo fmt, cargo doc",
        "go build, go test, go vet, go fmt, dotnet build, dotnet test, mvn test, gradle test",
        "pytest, python -m pytest, python -m unittest, uv run pytest, poetry run pytest",
        "ruff check, ruff format, mypy, pyright, black, isort, tsc, eslint, prettier, jest, vitest",
        "npx tsc, npx eslint, npx prettier, npx jest, npx vitest, rspec, phpunit, ctest, swift test",
        "git add, git commit",
    )
    for words in line.split(", ")
)
# They run code from their arguments or input: each call can do something else.
_INTERPRETERS = names(
    "python python2 python3 pypy pypy3 node nodejs deno bun perl ruby php lua awk gawk mawk nawk sed tclsh expect R"
    " Rscript julia ghci scala groovy osascript pwsh powershell sqlite3 psql mysql gdb ed ex vi vim emacs m4 sh bash"
    " dash ash ksh mksh zsh fish csh tcsh rbash busybox"
)
# Python modules that run code from their arguments or input.
_CODE_MODULES = names("code asyncio pdb bdb timeit cProfile profile trace runpy idlelib IPython bpython ptpython")
_NEVER = names(
    "sudo doas su eval source . exec env xargs find parallel ssh watch trap script chroot flock nsenter unshare"
    " strace systemd-run at crontab alias enable hash bind shopt docker podman kubectl rm dd mkfs shutdown reboot kill"
    " killall pkill chmod curl wget nc scp rsync timeout nice nohup setsid command builtin tee"
)


class Allow(msgspec.Struct, frozen=True, kw_only=True):
    why: str
    by: Literal["yolo", "rule", "grant", "mode", "sandbox", "default"] = "default"  # default: needs no approval
    run_as: RunAs = "approved"
    readable: tuple[str, ...] = ()  # paths outside the workspace that a sandboxed command may read


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The user decides. `rules` are what "allow for this session" remembers; without any it allows this call only."""

    label: str  # all notes in one short line
    notes: tuple[str, ...] = ()  # for the user: one for each thing that needs approval
    rules: tuple[str, ...] = ()
    always_rules: tuple[str, ...] = ()  # what "always allow" writes into the user's configuration, for all workspaces
    may_be_denied: bool = False  # a deny rule may match
    readable: tuple[str, ...] = ()  # in mode plan: paths that the sandboxed command may read once it is allowed
    parts: tuple[str, ...] = ()  # for the model: each part of a command line that needs approval, and why
    others: str = ""  # for the model: a sentence about the parts of the line that need none

    @classmethod
    def of(cls, notes: Iterable[str], needed: Sequence[Reason] = (), *, may_be_denied: bool = False) -> Ask:
        """`needed`: the reasons whose rules would let the same call run. If one has no rule, nothing is remembered."""
        unique = tuple(dict.fromkeys(notes))
        rules = [reason.rule for reason in needed if reason.rule is not None]
        always = [reason.always_rule or rule for reason, rule in zip(needed, rules, strict=False)]
        if len(rules) < len(needed):
            rules = []
        if not rules or max(map(len, always)) > MAX_RULE_CHARS or any(map(_depends_on_directory, always)):
            always = []
        label = "; ".join(unique)
        label = label if len(label) <= MAX_LABEL_CHARS else label[: MAX_LABEL_CHARS - 1] + "…"
        return cls(
            label=label,
            notes=unique,
            rules=tuple(dict.fromkeys(rules)),
            always_rules=tuple(dict.fromkeys(always)),
            may_be_denied=may_be_denied,
        )

    def params(self, shown: dict[str, Any]) -> dict[str, Any]:
        """The parameters of the permission request: those of the tool, and the rules that `read_rules` reads later."""
        rules = {"rules": list(self.rules), "always_rules": list(self.always_rules)}
        return {**shown, "label": self.label, "notes": list(self.notes), **rules}


class Deny(msgspec.Struct, frozen=True, kw_only=True):
    """The call gets an error result; the model may go on without it."""

    why: str  # for the model: the reason, and what to do instead
    by: Literal["rule", "mode"] = "mode"
    rule: str | None = None
    others: str = ""  # for the model: a sentence about the parts of a command line that would be allowed


Decision = Allow | Ask | Deny


class Reason(msgspec.Struct, frozen=True):
    """Why the user is asked, and the rule that would have allowed it (None: no rule should)."""

    note: str  # for the user
    rule: str | None = None
    is_read: bool = False  # it only reads, outside the workspace
    always_rule: str | None = None  # the rule for the user's configuration, if `rule` is too wide for it
    needs_plain_line: bool = False  # a rule allows the command, but not in a line like this


Verdict = Allow | Deny | list[Reason]  # about one part of a call


class Policy(msgspec.Struct, frozen=True):
    roots: Roots
    tool_name: str
    mode: Mode
    deny: Sequence[Rule]
    allow: Sequence[Rule]
    grants: Sequence[Rule]

    def check_read(self, path: str) -> Verdict:
        if (rule := self.find_denial("read", path)) is not None:
            return deny_by(rule, f"reading {path}")
        if (allowed := self._find_approval("read", lambda rule: rule.matches_path(path))) is not None:
            return allowed
        if self.roots.is_free_to_read(path):
            return Allow(why="it is in the workspace")
        kind = ", which may contain secrets" if is_secret(path) else ""
        return [Reason(f"reads {path}, outside the workspace{kind}", rule_for_read(path, self.roots), is_read=True)]

    def check_write(self, path: str) -> Verdict:
        if (rule := self.find_denial("write", path)) is not None:
            return deny_by(rule, f"changing {path}")
        if self.mode == "plan":
            return Deny(why=f"{PLANNING}; describe the change in your plan instead.")
        is_free = self.roots.is_free_to_edit(path)
        # A grant for the whole workspace leaves out the files that other programs obey: those are asked one by one.
        grants = [rule for rule in self.grants if is_free or rule.text != "edit(**)"]
        if (allowed := self._find_approval("write", lambda rule: rule.matches_path(path), grants)) is not None:
            return allowed
        if self.mode in ("auto-edit", "auto") and is_free:
            return Allow(why=f"the mode is {self.mode}", by="mode")
        note = f"changes {path}"
        if not self.roots.is_in_workspace(path):
            note += ", outside the workspace"
        if self.roots.is_protected(path):
            note += ", which controls what other programs run"
        always_rule = f"edit({quote_path_from_home(path, self.roots.home)})"
        return [Reason(note, rule_for_write(path, self.roots), always_rule=always_rule)]

    def check_fetch(self, url: str) -> Verdict:
        for rule in self._about(self.deny, "fetch"):
            if rule.matches_url(url):
                return deny_by(rule, f"fetching {url}")
        if (allowed := self._find_approval("fetch", lambda rule: rule.matches_url(url))) is not None:
            return allowed
        return [Reason(f"fetches {url}", rule_for_fetch(url))]

    def check_search(self, query: str) -> Verdict:
        for rule in self._about(self.deny, "search"):
            if rule.matches_query(query):
                return deny_by(rule, f"searching the web for {query}")
        if (allowed := self._find_approval("search", lambda rule: rule.matches_query(query))) is not None:
            return allowed
        return [Reason(f'sends "{query}" to a search service', self.tool_name)]

    def check_tool(self, *, says_read_only: bool = False) -> Verdict:
        """Decide about a tool that rules know only by its name.

        In mode plan it is refused, unless it is said to be read-only: then it is decided as in mode ask.
        """
        if (rule := self.find_whole_rule(self.deny, "execute")) is not None:
            return deny_by(rule, f"using {self.tool_name}")
        if self.mode == "plan" and not says_read_only:
            return Deny(why=f"{PLANNING}.")
        if (allowed := self._find_approval("execute", lambda rule: rule.is_whole)) is not None:
            return allowed
        return [Reason(f"uses {self.tool_name}", self.tool_name if self.tool_name.startswith("mcp_") else None)]

    def find_whole_rule(self, rules: Sequence[Rule], kind: AccessKind) -> Rule | None:
        return next((rule for rule in self._about(rules, kind) if rule.is_whole), None)

    def find_denial(self, kind: AccessKind, path: str) -> Rule | None:
        return next((rule for rule in self._about(self.deny, kind) if rule.matches_path(path, is_denial=True)), None)

    def denies_some(self, kind: AccessKind) -> bool:
        """Whether a deny rule names paths of this kind."""
        return any(rule.path is not None for rule in self._about(self.deny, kind))

    def command_rules(self, rules: Sequence[Rule]) -> list[Rule]:
        """The rules that name commands by their words."""
        return [rule for rule in rules if rule.name == "bash" and rule.words is not None]

    def _find_approval(
        self, kind: AccessKind, matches: Callable[[Rule], bool], grants: Sequence[Rule] | None = None
    ) -> Allow | None:
        for rule in filter(matches, self._about(self.allow, kind)):
            return Allow(why=f"the rule {rule.text}", by="rule")
        for rule in filter(matches, self._about(self.grants if grants is None else grants, kind)):
            return Allow(why=f"allowed for this session: {rule.text}", by="grant")
        return None

    def _about(self, rules: Sequence[Rule], kind: AccessKind) -> Iterable[Rule]:
        return (rule for rule in rules if rule.is_about(self.tool_name, kind))


def deny_by(rule: Rule, doing: str) -> Deny:
    return Deny(
        why=f"the rule {rule.text!r} forbids {doing}; do without it, or ask the user.", by="rule", rule=rule.text
    )


def read_grants(requests: Iterable[PermissionRequest]) -> tuple[str, ...]:
    """The rules of requests that were answered with `allow_session`, each once, oldest first."""
    rules: dict[str, None] = {}
    for request in requests:
        rules |= dict.fromkeys(read_rules(request, "rules"))
    return tuple(rules)


def read_rules(request: PermissionRequest, name: Literal["rules", "always_rules"]) -> list[str]:
    found: Any = request.params.get(name)
    return [rule for rule in cast("list[Any]", found) if isinstance(rule, str)] if isinstance(found, list) else []


def rule_for_command(command: Command) -> str | None:
    words = command.words
    name = (words[0].text or "").rpartition("/")[2]
    if name in _NEVER or command.assigned:
        return None
    for length in (3, 2, 1):
        start = tuple(word.text for word in words[:length])
        if None in start or len(start) < length or any(word.is_glob for word in words[:length]):
            continue
        known = ("python", *start[1:]) if start[0] in PYTHON_NAMES else start
        if known in _PREFIXES or (length == 3 and (*known[:2], "*") in _PREFIXES):
            return f"bash({' '.join(quote_word(text or '') for text in start)} *)"
    if any(word.text is None or word.is_glob for word in words):
        return None
    if (name in _INTERPRETERS or name in PYTHON_NAMES) and not _is_script(command) and not _is_module(command):
        return None
    return f"bash({' '.join(quote_word(word.text or '') for word in words)})"


def _depends_on_directory(rule: str) -> bool:
    """Whether the rule is for a program, script or module that is another one in each workspace."""
    if not rule.startswith("bash("):
        return False
    program, _, rest = rule[len("bash(") : -1].partition(" ")
    if "/" in program and not program.startswith("/"):
        return True
    name = program.rpartition("/")[2]
    is_interpreter = name in _INTERPRETERS or name in PYTHON_NAMES
    return is_interpreter and not rest.startswith("/") and not rest.endswith(" *")


def rule_for_read(path: str, roots: Roots) -> str:
    is_directory = os.path.isdir(path)
    is_wide = path == "/" or any(Path(each).is_relative_to(path) for each in (roots.directory, roots.home) if each)
    if is_directory and not is_wide and not is_secret(path):
        return f"view({quote_path(path)}/**)"
    return f"view({quote_path(path)})"


def rule_for_write(path: str, roots: Roots) -> str:
    """A rule for the whole workspace; for a protected file, or one outside, a rule for that file."""
    return "edit(**)" if roots.is_free_to_edit(path) and roots.is_in_workspace(path) else f"edit({quote_path(path)})"


def rule_for_fetch(url: str) -> str | None:
    host = host_of(url)
    if host is None:
        return None
    return f"fetch(domain:[{host}])" if ":" in host else f"fetch(domain:{host})"


def _is_script(command: Command) -> bool:
    """Whether it runs a script file (`python tool.py`), and no code from the command line."""
    first = command.words[1].text if len(command.words) > 1 else None
    return first is not None and not first.startswith("-") and "." in first and not set(first) & set(" ;(){}'\"\n$")


def _is_module(command: Command) -> bool:
    """Whether it runs a Python module (`python -m build`) that gets no code from its arguments or input."""
    module = find_module(command.words)
    return bool(module) and (module[0].text or "").partition(".")[0] not in _CODE_MODULES
