"""The skills and sub-agents of the workspace, and their files that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widgets.option_list import Option

from kedge.protocol.skills import SkillList
from kedge.tui.dialogs.dialog import Item, Palette

_FROM = {"user": "yours", "workspace": "this repository", "plugin": "plugin"}


class SkillsDialog(Palette):
    """Its result is the name of a skill that the user can run."""

    FOOTER = "Type to filter · Enter use the skill · Esc close"

    def __init__(self, listed: SkillList) -> None:
        self._can_run = {skill.name for skill in listed.skills if skill.user_invocable}
        items = list(_list_items(listed))
        super().__init__(items or [("", "No skills or sub-agents here: see docs/skills.md", "")], "Skills")

    def find_options(self, typed: str) -> tuple[list[Option], int]:
        options, highlighted = super().find_options(typed)
        for option in options:
            option.disabled = option.id not in self._can_run
        return options, highlighted


def _list_items(listed: SkillList) -> Iterable[Item]:
    for skill in listed.skills:
        by = "" if skill.user_invocable else ", for the model only"
        by = by if skill.model_invocable else ", only when you run it"
        yield skill.name, skill.description, f"{_FROM[skill.source]}{by}"
    for agent in listed.agents:
        does = "may write" if agent.may_write else "only reads; see agent.writers" if agent.wants_to_write else "reads"
        yield f"sub-agent {agent.name}", agent.description, f"{_FROM[agent.source]}, {does}"
    notes = [f"{each.path} is not used: {each.by} has the same name" for each in listed.shadowed]
    notes += [f"{'' if each.is_used else 'Not used: '}{each.problem}: {each.path}" for each in listed.problems]
    notes += [f"not trusted (see kedge config trust): {path}" for path in listed.untrusted]
    yield from ((f"note {number}", note, "") for number, note in enumerate(notes, 1))
