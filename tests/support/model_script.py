"""Which plan a call of the scripted model server gets. By the conversation where a test wants that: then a run that was
killed and resumed goes on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.model_plan import Plan, directive
from tests.support.model_wire import Json, Wire

_TITLE = re.compile(r"\btitles?\b", re.I)


@dataclasses.dataclass(frozen=True)
class Rule:
    """Plans for the calls whose system prompt and last prompt hold these words (none: any), and whose body holds
    `body` somewhere, for clients that say more than the prompt in the user's name. The first plan is for the step that
    has no answer since the last prompt, the next for the one that has one, and so on."""

    plans: tuple[Plan, ...]
    system: str = ""
    prompt: str = ""
    body: str = ""

    def plan(self, system: str, prompt: str, steps: int, body: Json) -> Plan | None:
        is_meant = self.system.lower() in system.lower() and self.prompt.lower() in prompt.lower()
        if not is_meant or steps >= len(self.plans) or (self.body and self.body not in json.dumps(body)):
            return None
        return self.plans[steps]


class Script:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan  # the usual one
        self.next_plans: list[Plan] = []  # for the next calls
        self.rules: list[Rule] = []  # first of all; a later one goes before an earlier one
        self.titles = Plan(text="A scripted title")
        self.failures: Counter[str] = Counter()

    def on(self, plans: Sequence[Mapping[str, Any] | Plan], system: str = "", prompt: str = "", body: str = "") -> None:
        made = [each if isinstance(each, Plan) else Plan().changed(each) for each in plans]
        self.rules.insert(0, Rule(tuple(made), system, prompt, body))

    def plan_of(self, wire: Wire, body: Json) -> Plan:
        if is_title(wire, body):
            return self.titles
        prompt = wire.last_prompt(body)
        steps = wire.steps(body)
        told = (rule.plan(wire.system(body), prompt, steps, body) for rule in self.rules)
        if (plan := next((plan for plan in told if plan is not None), None)) is None:
            plan = self._usual(prompt, steps)
        if plan.echo:
            plan = dataclasses.replace(plan, text=prompt)
        self.failures[prompt] += 1
        return plan.without_faults() if plan.times and self.failures[prompt] > plan.times else plan

    def _usual(self, prompt: str, steps: int) -> Plan:
        if self.next_plans:
            return self.next_plans.pop(0).changed(directive(prompt))
        plan = self.plan.changed(directive(prompt))
        is_over = plan.rounds and steps >= plan.rounds
        return dataclasses.replace(plan, tool_calls=()) if is_over else plan


def is_title(wire: Wire, body: Json) -> bool:
    """A call that is to name a session: it comes beside the run, at any time, and so it is counted apart."""
    return not body.get("tools") and _TITLE.search(wire.system(body)) is not None
