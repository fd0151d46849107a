"""What runs are asked to do, and what the model does with it: answers, tools, waits and faults, drawn from a seed.

All of it stands in the prompt: a server that resumes a run asks a model that still knows what to say.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from kedge.protocol.messages import replace_surrogates
from kedge.protocol.runs import Permissions
from tests.e2e.home import asking
from tests.e2e.project import bash, call, edit
from tests.soak.record import Ending
from tests.support.model_plan import Plan

MARKS = "marks/all"  # kept out of git's sight, so that no undo brings it back
LONG_S = 3600  # of a process that lives until somebody ends it
SOMEBODY = "SOMEBODY"  # stands for the number by which such a process is found
EMOJI = "déjà 🦊🧵 naïve ⚓ "


class Deed(NamedTuple):
    """A prompt, and what is known of its run. A `gate` is to be opened, or the run cancelled, as one that `is_long`."""

    kind: str
    prompt: str
    permissions: Permissions = "allow"
    ending: Ending = "completed"
    answer: str | None = None
    mark: str = ""
    process: str = ""
    gate: str = ""
    is_long: bool = False


class Deeds:
    """All prompts of a soak are different: what they leave behind can be told apart."""

    def __init__(self, name: str, mark: str) -> None:
        """`mark` begins the numbers of seconds that long processes sleep for, and is this soak's alone."""
        self._name = name
        self._mark = mark
        self._count = itertools.count(1)

    def draw(self, rng: Random) -> Deed:
        (make,) = rng.choices([make for make, _ in MAKERS], [weight for _, weight in MAKERS])
        return self.make(make, rng)

    def make(self, make: Maker, rng: Random) -> Deed:
        place = next(self._count)
        deed = make(rng, f"{self._name}-{place}")
        process = f"{self._mark}{place:08}"
        return deed._replace(prompt=deed.prompt.replace(SOMEBODY, process), process=process if deed.process else "")

    def shell(self, rng: Random) -> Deed:
        tag = f"{self._name}-{next(self._count)}"
        return Deed("shell", f"echo {tag} >> {MARKS}; seq {rng.randint(1, 300)}", mark=tag)


Maker = Callable[[Random, str], Deed]


def answered(rng: Random, tag: str) -> Deed:
    plan = {"text": f"answer {tag}", "chunks": rng.randint(1, 30), "delay_ms": rng.choice((0, 0, 2))}
    return _telling("answer", tag, plan)


def long_answer(rng: Random, tag: str) -> Deed:
    plan = {"text": f"{EMOJI}{tag} ", "size": rng.randint(5_000, 60_000), "piece": rng.randint(40, 400), "raw": "1"}
    return _telling("long answer", tag, plan)


def in_halves(rng: Random, tag: str) -> Deed:
    return _telling("half characters", tag, {"text": f"{EMOJI * rng.randint(1, 5)}{tag}", "units": "1"})


def slow_answer(rng: Random, tag: str) -> Deed:
    plan = {"text": f"slow {tag}", "chunks": rng.randint(10, 60), "delay_ms": 25, "reasoning": "let me think"}
    return _telling("slow", tag, plan)


def limited(rng: Random, tag: str) -> Deed:
    plan = {"text": f"after a limit {tag}", "status": 429, "retry_after": rng.choice(("0", "1")), "times": 1}
    return _telling("429", tag, plan)


def stumbling(rng: Random, tag: str) -> Deed:
    return _telling("500", tag, {"text": f"after {tag}", "status": rng.choice((500, 503, 529)), "times": 1})


def dropped(rng: Random, tag: str) -> Deed:
    plan = {"text": f"whole {tag}", "chunks": 20, "drop_after": rng.randint(0, 15), "times": 1}
    return _telling("dropped stream", tag, plan)


def garbage(rng: Random, tag: str) -> Deed:
    how = rng.choice(("json", "types", "utf8", "error", "done", "cut", "no_finish", "empty", "comments"))
    return Deed("garbage", _prompt(tag, {"chunks": 3, "malformed": how, "times": 1}), ending="any")


def refused(rng: Random, tag: str) -> Deed:
    return Deed("400", _prompt(tag, {"status": rng.choice((400, 404, 422))}), ending="failed")


def reading(rng: Random, tag: str) -> Deed:
    calls = [call("view", path="shop/price.py"), call("glob", pattern="**/*.py"), call("ls", path=".")]
    return _calling("view", tag, calls[: rng.randint(1, 3)])


def writing(rng: Random, tag: str) -> Deed:
    text = "".join(f"{tag} line {i}\n" for i in range(rng.randint(1, 40)))
    return _calling("write", tag, [call("write", path=f"notes/{rng.randint(1, 30)}.md", content=text)])


def mending(rng: Random, tag: str) -> Deed:
    """There and back again: another session may have been faster, and the model is told."""
    old, new = rng.sample(('"""What all of it costs."""', '"""What it costs."""'), 2)
    return _calling("edit", tag, [call("view", path="shop/price.py"), edit(old, new), call("grep", pattern="costs")])


def delegating(_: Random, tag: str) -> Deed:
    return _calling("sub-agent", tag, [call("agent", prompt=f"look around for {tag}")])


def marking(rng: Random, tag: str) -> Deed:
    """A command whose effect is counted: it is done once, or it was interrupted and says so."""
    return _calling("bash", tag, [bash(f"echo {tag} >> {MARKS}; seq {rng.randint(1, 500)}")], mark=tag)


def asking_first(rng: Random, tag: str) -> Deed:
    deed = _calling("asks", tag, [bash(f"echo {tag} >> {MARKS}")], mark=tag)
    return deed._replace(permissions="ask" if rng.random() < 0.85 else "deny", ending="any", answer=None)


def questioning(_: Random, tag: str) -> Deed:
    which = call("question", questions=[{"question": "Which price?", "kind": "one", "options": ["net", "gross"]}])
    return _calling("question", tag, [which])._replace(permissions="ask", ending="any", answer=None)


def long_command(rng: Random, tag: str) -> Deed:
    deaf = "trap '' TERM; " if rng.random() < 0.3 else ""
    deed = _calling("long bash", tag, [bash(f"{deaf}echo {tag} >> {MARKS}; sleep {SOMEBODY}")], mark=tag)
    return deed._replace(process=SOMEBODY, is_long=True, ending="any")


def in_background(_: Random, tag: str) -> Deed:
    return _calling("job", tag, [bash(f"timeout 30 sleep {SOMEBODY}", run_in_background=True)])


def gated(rng: Random, tag: str) -> Deed:
    plan = {"text": f"at last {tag}", "chunks": 8, "gate": f"gate-{tag}", "gate_after": rng.choice((-1, 0, 4))}
    return _telling("gate", tag, plan)._replace(gate=f"gate-{tag}")


MAKERS: list[tuple[Maker, int]] = [
    (answered, 20),
    (long_answer, 4),
    (in_halves, 4),
    (slow_answer, 6),
    (limited, 4),
    (stumbling, 3),
    (dropped, 5),
    (garbage, 4),
    (refused, 5),
    (reading, 7),
    (writing, 6),
    (mending, 3),
    (delegating, 3),
    (marking, 8),
    (asking_first, 8),
    (questioning, 3),
    (long_command, 7),
    (in_background, 1),
    (gated, 6),
]
FAULTS = ("429", "500", "dropped stream", "garbage", "400")


def _telling(kind: str, tag: str, plan: Mapping[str, object]) -> Deed:
    return Deed(kind, _prompt(tag, plan), answer=replace_surrogates("".join(Plan().changed(plan).pieces())))


def _calling(kind: str, tag: str, calls: list[dict[str, Any]], mark: str = "") -> Deed:
    plan = {"tool_calls": json.dumps(calls), "text": f"done {tag}"}
    return Deed(kind, _prompt(tag, plan), answer=f"done {tag}", mark=mark)


def _prompt(tag: str, plan: Mapping[str, object]) -> str:
    return f"{tag}: {asking(**plan)}"
