"""The rules, the mode and the session's grants of one call, and what they say of a path, an address or a tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import msgspec

from kedge.protocol.requests import PermissionRequest
from kedge.protocol.runs import Mode
from kedge.tools.permissions import suggestions
from kedge.tools.permissions.paths import Scope, is_secret
from kedge.tools.permissions.rules import Rule
from kedge.tools.port import AccessKind, RunAs

MAX_LABEL_CHARS = 200


class Allow(msgspec.Struct, frozen=True, kw_only=True):
    why: str
    by: Literal["yolo", "rule", "hook", "grant", "mode", "sandbox", "default"] = "default"  # default: needs no approval
    run_as: RunAs = "approved"
    readable: tuple[str, ...] = ()  # paths outside the workspace that a sandboxed command may read


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The user decides. `rules` are what "allow for this session" remembers; without any, it allows this once."""

    label: str  # what is in question, in one line
    notes: tuple[str, ...] = ()  # one for each thing that was not allowed
    rules: tuple[str, ...] = ()
    is_doubtful: bool = False  # a deny rule may forbid it
    readable: tuple[str, ...] = ()  # in mode plan: what the sandboxed command may read once it is allowed

    @classmethod
    def of(cls, notes: Iterable[str], rules: Iterable[str] = (), *, is_doubtful: bool = False) -> Ask:
        each = tuple(dict.fromkeys(notes))
        return cls(
            label=shorten("; ".join(each)), notes=each, rules=tuple(dict.fromkeys(rules)), is_doubtful=is_doubtful
        )

    def params(self, shown: dict[str, Any]) -> dict[str, Any]:
        """The parameters of the request: what the tool shows, and what `read_grants` reads back."""
        return {**shown, "label": self.label, "notes": list(self.notes), "rules": list(self.rules)}


class Deny(msgspec.Struct, frozen=True, kw_only=True):
    """Denied by a rule or by the mode: an error result that the model may work around."""

    why: str  # for the model: what refused, and what it may do instead
    rule: str | None = None


Decision = Allow | Ask | Deny


def shorten(label: str) -> str:
    return label if len(label) <= MAX_LABEL_CHARS else label[: MAX_LABEL_CHARS - 1] + "…"


PLANNING = "this run only plans (mode plan), so nothing may be changed or run that is not known to be read-only"


class Reason(msgspec.Struct, frozen=True):
    """Why the user is asked, and the rule that would have allowed it. None: no rule should."""

    note: str
    rule: str | None = None
    is_read: bool = False  # it only reads, outside the workspace
    needs_plain_line: bool = False  # a rule allows it, but not in this line


Verdict = Allow | Deny | list[Reason]


class Policy(msgspec.Struct, frozen=True):
    scope: Scope
    tool_name: str
    mode: Mode
    deny: Sequence[Rule]
    allow: Sequence[Rule]
    grants: Sequence[Rule]

    def check_read(self, path: str) -> Verdict:
        if (rule := self.find_denial("read", path)) is not None:
            return deny_by(rule, f"to read {path}")
        if (rule := self._find_path_rule(self.allow, "read", path)) is not None:
            return Allow(why=f"the rule {rule.text}", by="rule")
        if (rule := self._find_path_rule(self.grants, "read", path)) is not None:
            return Allow(why=f"allowed for this session: {rule.text}", by="grant")
        if self.scope.is_free_to_read(path):
            return Allow(why="it is in the workspace")
        kind = "a file that may hold secrets" if is_secret(path) else "outside the workspace"
        return [Reason(f"reads {path}, {kind}", suggestions.rule_for_read(path, self.scope), is_read=True)]

    def check_write(self, path: str) -> Verdict:
        if (rule := self.find_denial("write", path)) is not None:
            return deny_by(rule, f"to change {path}")
        if self.mode == "plan":
            return Deny(why=f"{PLANNING}; describe the change in your plan instead.")
        if (rule := self._find_path_rule(self.allow, "write", path)) is not None:
            return Allow(why=f"the rule {rule.text}", by="rule")
        if (rule := self._find_path_rule(self.grants, "write", path)) is not None and self._covers(rule, path):
            return Allow(why=f"allowed for this session: {rule.text}", by="grant")
        if self.mode == "auto-edit" and self.scope.is_free_to_edit(path):
            return Allow(why="the mode is auto-edit", by="mode")
        where = "which decides what other programs run" if self.scope.is_protected(path) else ""
        if not self.scope.is_free_to_edit(path) and not where:
            where = "outside the workspace"
        note = f"changes {path}" + (f", {where}" if where else "")
        return [Reason(note, suggestions.rule_for_write(path, self.scope))]

    def check_fetch(self, url: str) -> Verdict:
        for rule in self._about(self.deny, "fetch"):
            if rule.matches_url(url):
                return deny_by(rule, f"to fetch {url}")
        for rule in self._about(self.allow, "fetch"):
            if rule.matches_url(url):
                return Allow(why=f"the rule {rule.text}", by="rule")
        for rule in self._about(self.grants, "fetch"):
            if rule.matches_url(url):
                return Allow(why=f"allowed for this session: {rule.text}", by="grant")
        return [Reason(f"fetches {url}", suggestions.rule_for_fetch(url))]

    def check_tool(self) -> Verdict:
        """A tool that rules know only by its name."""
        if (rule := self.find_whole_rule(self.deny, "execute")) is not None:
            return deny_by(rule, f"to use {self.tool_name}")
        if self.mode == "plan":
            return Deny(why=f"{PLANNING}.")
        if (rule := self.find_whole_rule(self.allow, "execute")) is not None:
            return Allow(why=f"the rule {rule.text}", by="rule")
        if (rule := self.find_whole_rule(self.grants, "execute")) is not None:
            return Allow(why=f"allowed for this session: {rule.text}", by="grant")
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

    def _find_path_rule(self, rules: Sequence[Rule], kind: AccessKind, path: str) -> Rule | None:
        return next((rule for rule in self._about(rules, kind) if rule.matches_path(path)), None)

    def _covers(self, grant: Rule, path: str) -> bool:
        """A grant for the whole workspace does not cover files that other programs obey: those are asked one by one."""
        return grant.text != "edit(**)" or self.scope.is_free_to_edit(path)

    def _about(self, rules: Sequence[Rule], kind: AccessKind) -> Iterable[Rule]:
        return (rule for rule in rules if rule.is_about(self.tool_name, kind))


def deny_by(rule: Rule, what: str) -> Deny:
    return Deny(why=f"the rule {rule.text!r} forbids {what}; do without it, or ask for another way.", rule=rule.text)


def read_grants(requests: Iterable[PermissionRequest]) -> tuple[str, ...]:
    """The rules of requests whose answer was `allow_session`, each once, oldest first."""
    rules: dict[str, None] = {}
    for request in requests:
        found: Any = request.params.get("rules")
        if isinstance(found, list):
            rules |= dict.fromkeys(rule for rule in cast(list[Any], found) if isinstance(rule, str))
    return tuple(rules)
