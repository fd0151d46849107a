"""Texts and cut points of the demo, chosen by a seed. Each prompt is a script for `engine.scripted`."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

SESSION_TITLES = [("parser", "docs"), ("login", "billing"), ("search", "mailer"), ("cache", "reports")]
LOOKS = [
    "Let me look at how this works today before I touch anything.",
    "I read the code around it first, and then I change one thing.",
    "First I find every place that calls it, so that none is forgotten.",
]
HITS = ["3 matches in 2 files", "7 matches in 4 files", "1 match in 1 file"]
FINDS = ["The bug is an off-by-one at the end of the line.", "Nobody closes the file when reading fails."]
EXTRAS = ["I keep the old name working as well.", "I add a test that fails without the change."]
TOOLS = ["deploy", "publish", "migrate"]
BUILDS = ["compiling 214 files with four workers and all warnings", "linking the release build for three platforms now"]
PLANS = ["The plan has three small steps.", "I split this into two commits."]
SPEECHES = [
    "The change is small but it touches every caller, so I go through them one by one and run the tests after each.",
    "What makes this slow is that the whole file is read again for each line, easy to see once it is measured.",
    "The old format stays readable, the new one is written from now on, and a test opens a file of each kind.",
]
LASTS = ["All of it is green.", "Nothing else uses it.", "The docs say so too."]


class Script(NamedTuple):
    sessions: tuple[str, str]
    look: str
    hits: str
    find: str
    extra: str
    tool: str
    action: Literal["allow", "deny"]
    build: str
    plan: str
    speech: str
    lasts: tuple[str, str]
    steer_after: int  # words of `look` that are written before r2 steers
    cancel_after: int  # words of `build`
    crash_after: int  # words of `speech`


def make_script(seed: int) -> Script:
    rng = random.Random(seed)
    look, build, speech = rng.choice(LOOKS), rng.choice(BUILDS), rng.choice(SPEECHES)
    first, second = rng.sample(LASTS, 2)
    return Script(
        sessions=rng.choice(SESSION_TITLES),
        look=look,
        hits=rng.choice(HITS),
        find=rng.choice(FINDS),
        extra=rng.choice(EXTRAS),
        tool=rng.choice(TOOLS),
        action=rng.choice(("allow", "deny")),
        build=build,
        plan=rng.choice(PLANS),
        speech=speech,
        lasts=(first, second),
        steer_after=rng.randint(2, count_words(look) - 2),
        cancel_after=rng.randint(2, count_words(build) - 2),
        crash_after=rng.randint(5, count_words(speech) - 3),
    )


def count_words(text: str) -> int:
    return len(text.split(" "))


def first_words(text: str, count: int) -> str:
    return " ".join(text.split(" ")[:count])
