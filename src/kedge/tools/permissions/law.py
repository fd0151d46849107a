"""The rules, the mode and the grants that hold for one call, and what they say of a path, an address or a tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kedge.config.schema import Mode
from kedge.tools.permissions import suggestions
from kedge.tools.permissions.decisions import Allow, Refuse
from kedge.tools.permissions.ground import Ground, is_secret
from kedge.tools.permissions.rules import Rule
from kedge.tools.port import WantKind

PLANNING = "this run only plans (mode plan), so nothing may be changed or run that is not known to be read-only"


class Trouble(msgspec.Struct, frozen=True):
    """Why a person is asked, and the rule that would have let it through. None: there is none that should."""

    note: str
    rule: str | None = None
    is_read: bool = False  # it only reads, somewhere else


Found = Allow | Refuse | list[Trouble]


class Law(msgspec.Struct, frozen=True):
    ground: Ground
    tool_name: str
    mode: Mode
    deny: Sequence[Rule]
    allow: Sequence[Rule]
    grants: Sequence[Rule]

    def read(self, path: str) -> Found:
        if (rule := self._denying("read", path)) is not None:
            return refused(rule, f"to read {path}")
        if (rule := self._path_rule(self.allow, "read", path)) is not None:
            return Allow(why=f"the rule {rule.text}", by="rule")
        if (rule := self._path_rule(self.grants, "read", path)) is not None:
            return Allow(why=f"allowed for this session: {rule.text}", by="grant")
        if self.ground.is_free_to_read(path):
            return Allow(why="it is in the workspace")
        kind = "a file that may hold secrets" if is_secret(path) else "outside the workspace"
        return [Trouble(f"reads {path}, {kind}", suggestions.rule_for_read(path, self.ground), is_read=True)]

    def write(self, path: str) -> Found:
        if (rule := self._denying("write", path)) is not None:
            return refused(rule, f"to change {path}")
        if self.mode == "plan":
            return Refuse(why=f"{PLANNING}; describe the change in your plan instead.")
        if (rule := self._path_rule(self.allow, "write", path)) is not None:
            return Allow(why=f"the rule {rule.text}", by="rule")
        if (rule := self._path_rule(self.grants, "write", path)) is not None and self._covers(rule, path):
            return Allow(why=f"allowed for this session: {rule.text}", by="grant")
        if self.mode == "auto-edit" and self.ground.is_free_to_edit(path):
            return Allow(why="the mode is auto-edit", by="mode")
        where = "which decides what other programs run" if self.ground.is_protected(path) else ""
        if not self.ground.is_free_to_edit(path) and not where:
            where = "outside the workspace"
        note = f"changes {path}" + (f", {where}" if where else "")
        return [Trouble(note, suggestions.rule_for_write(path, self.ground))]

    def fetch(self, url: str) -> Found:
        for rule in self._about(self.deny, "fetch"):
            if rule.matches_url(url):
                return refused(rule, f"to fetch {url}")
        for rule in self._about(self.allow, "fetch"):
            if rule.matches_url(url):
                return Allow(why=f"the rule {rule.text}", by="rule")
        for rule in self._about(self.grants, "fetch"):
            if rule.matches_url(url):
                return Allow(why=f"allowed for this session: {rule.text}", by="grant")
        return [Trouble(f"fetches {url}", suggestions.rule_for_fetch(url))]

    def tool(self) -> Found:
        """A tool whose deeds only it understands: rules know it by its name."""
        if (rule := self.whole_rule(self.deny, "execute")) is not None:
            return refused(rule, f"to use {self.tool_name}")
        if self.mode == "plan":
            return Refuse(why=f"{PLANNING}.")
        if (rule := self.whole_rule(self.allow, "execute")) is not None:
            return Allow(why=f"the rule {rule.text}", by="rule")
        if (rule := self.whole_rule(self.grants, "execute")) is not None:
            return Allow(why=f"allowed for this session: {rule.text}", by="grant")
        return [Trouble(f"uses {self.tool_name}", self.tool_name if self.tool_name.startswith("mcp_") else None)]

    def whole_rule(self, rules: Sequence[Rule], kind: WantKind) -> Rule | None:
        return next((rule for rule in self._about(rules, kind) if rule.is_whole), None)

    @property
    def hides_some(self) -> bool:
        """Whether some files may not be read, wherever they are."""
        return any(rule.path is not None for rule in self._about(self.deny, "read"))

    def _denying(self, kind: WantKind, path: str) -> Rule | None:
        return next((rule for rule in self._about(self.deny, kind) if rule.matches_path(path, is_denial=True)), None)

    def _path_rule(self, rules: Sequence[Rule], kind: WantKind, path: str) -> Rule | None:
        return next((rule for rule in self._about(rules, kind) if rule.matches_path(path)), None)

    def _covers(self, grant: Rule, path: str) -> bool:
        """A grant for the whole workspace was not given with its switches in mind: those are asked one by one."""
        return grant.text != "edit(**)" or self.ground.is_free_to_edit(path)

    def _about(self, rules: Sequence[Rule], kind: WantKind) -> Iterable[Rule]:
        return (rule for rule in rules if rule.is_about(self.tool_name, kind))


def refused(rule: Rule, deed: str) -> Refuse:
    return Refuse(why=f"the rule {rule.text!r} forbids {deed}; do without it, or ask for another way.", rule=rule.text)
