"""How long a soak is, and how much is done in it: counted in actions, and bounded by the clock."""

from __future__ import annotations

from typing import NamedTuple

SESSIONS = 50  # that are worked in at the same time


class Form(NamedTuple):
    """`load_s` is how long new work is begun; what was begun then comes to its end, and all of it is checked."""

    load_s: float
    actions: int  # of each session's driver
    workspaces: int
    kills: int  # `kill -9` of the server
    leaves: int  # SIGTERM
    quiet_share: float  # of the time, at its end: the server is left alone, so that its memory can be judged


FORMS = {
    1: Form(load_s=40, actions=12, workspaces=4, kills=3, leaves=1, quiet_share=0.2),
    10: Form(load_s=580, actions=400, workspaces=4, kills=15, leaves=5, quiet_share=0.5),
    60: Form(load_s=3_540, actions=2_500, workspaces=8, kills=60, leaves=20, quiet_share=0.5),
}
