"""The judgement over a soak: every check by its name, with what it saw, and a table of what was done."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tests.soak.budgets import BUDGETS, MIB
from tests.soak.checks import Verdict
from tests.soak.event_checks import CHECKS
from tests.soak.facts import Facts
from tests.soak.plans import FAULTS
from tests.soak.soak import Outcome

SHOWN = 10  # of what is wrong, by each check


class Judgement(NamedTuple):
    text: str
    wrong: list[str]


def judge(outcome: Outcome) -> Judgement:
    lines: list[str] = [""]
    wrong: list[str] = []
    states: Counter[str] = Counter()

    def add(name: str, where: str, verdict: Verdict) -> None:
        title = name.replace("_", " ")
        lines.append(f"{'WRONG' if verdict.wrong else 'ok':5}  {where:3} {title:38} {verdict.saw}")
        lines.extend(f"         {each}" for each in verdict.wrong[:SHOWN])
        if len(verdict.wrong) > SHOWN:
            lines.append(f"         … and {len(verdict.wrong) - SHOWN} more")
        wrong.extend(f"{title} ({where}): {each}" for each in verdict.wrong)

    for record in outcome.records:
        facts = Facts(record)
        states.update(facts.states.values())
        for check in CHECKS:
            add(check.__name__, record.name, check(facts))
    for budget in BUDGETS:
        add(budget.__name__, "", budget(outcome.machine))
    return Judgement("\n".join([*lines, "", *table(outcome, states)]), wrong)


def table(outcome: Outcome, states: Counter[str]) -> list[str]:
    machine, done = outcome.machine, outcome.tally.done
    readings = [reading for record in outcome.records for reading in record.readings]
    streams = sum(len(reading.segments) for reading in readings)
    commands = [command for record in outcome.records for command in record.commands]
    rows = {
        "seed": str(outcome.seed),
        "time": f"{outcome.took_s:.0f} s",
        "runs": ", ".join(f"{count:,} {state}" for state, count in states.most_common()),
        "events": f"{machine.events:,}",
        "servers": f"{done['server: kill']} killed, {done['server: leave']} told to leave",
        "streams": f"{streams:,} of {len(readings):,} readers, {sum(r.stalls for r in readings):,} stalls",
        "faults": ", ".join(f"{done[f'prompt: {kind}']} {kind}" for kind in FAULTS),
        "kedge run": f"{len(commands)} commands",
        "left to nobody": f"{outcome.people_left} requests",
        "peak memory": f"{max((s.rss_bytes for s in machine.samples), default=0) / MIB:.0f} MiB",
        "disk": f"{machine.database_bytes / MIB:.1f} MiB, versions of files {machine.versions_bytes / MIB:.1f} MiB",
    }
    return [f"{name:15}  {value}" for name, value in rows.items()]
