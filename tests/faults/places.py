"""Every failpoint that the story passes, and how often at least. A test holds this table against a recorded story."""

from __future__ import annotations

# Each transaction of the store has four places.
OF_EACH = ("begin", "done", "committed", "published")
TRANSACTIONS = {
    "accept": 20,
    "agent_event": 1,
    "answer": 3,
    "ask": 7,
    "begin_delete": 1,
    "begin_redo": 1,
    "begin_undo": 1,
    "cancel": 6,
    "change_session": 1,
    "checkpoint": 30,
    "config_changed": 1,
    "count_usage": 1,
    "create_message": 35,
    "create_session": 11,
    "delete_workspace": 1,
    "draft": 2,
    "drop": 1,
    "end_delete": 1,
    "finish": 14,
    "finish_undo": 2,
    "forget_process": 3,
    "fork": 1,
    "join": 18,
    "keep_call_state": 3,
    "move": 1,
    "open_workspace": 2,
    "promote": 1,
    "record_process": 5,
    "record_workspace_process": 1,
    "recover": 1,
    "remove": 1,
    "retain": 1,
    "retitle": 1,
    "revoke_grant": 1,
    "set_waiting": 2,
    "start": 20,
    "suspend": 3,
    "switch_mode": 1,
}
# The others name themselves.
OTHERS = {
    "acknowledged.answer": 3,
    "acknowledged.asked": 4,
    "acknowledged.cancel": 6,
    "acknowledged.deleted": 1,
    "acknowledged.drop": 1,
    "acknowledged.end": 15,
    "acknowledged.moved": 1,
    "acknowledged.promoted": 1,
    "acknowledged.receipt": 20,
    "acknowledged.redone": 1,
    "acknowledged.renamed": 1,
    "acknowledged.session": 9,
    "acknowledged.stopped": 1,
    "acknowledged.switched": 1,
    "acknowledged.undone": 1,
    "close.moved": 1,
    "close.noted": 1,
    "end.whole": 14,
    "group.commit": 60,
    "open.connected": 1,
    "open.locked": 1,
    "open.migrated": 1,
    "open.migrating": 1,
    "open.noted": 1,
    "processes.told": 2,
    "start.processes_ended": 1,
    "turn.begin": 16,
    "turn.stopped": 16,
    "undo.begun": 2,
    "undo.restored": 2,
}

STORY: dict[str, int] = {
    **{f"{name}.{place}": hits for name, hits in TRANSACTIONS.items() for place in OF_EACH},
    **OTHERS,
}

# What a server passes that takes over from one that was killed in the middle of everything.
RECOVERY: tuple[str, ...] = (
    "acknowledged.asked",
    "acknowledged.answer",
    "acknowledged.end",
    "acknowledged.stopped",
    "open.locked",
    "open.connected",
    "open.migrated",
    "open.noted",
    "processes.told",
    "start.processes_ended",
    *(
        f"{name}.{place}"
        for name in ("recover", "open_workspace", "start", "retain", "answer", "join", "create_message", "ask")
        for place in OF_EACH
    ),
    *(f"{name}.{place}" for name in ("checkpoint", "finish") for place in OF_EACH),
    "end.whole",
    "group.commit",
    "turn.begin",
    "turn.stopped",
    "close.noted",
    "close.moved",
)

# What opening passes when the store has an older schema.
UPGRADE: tuple[str, ...] = (
    "open.locked",
    "open.connected",
    "open.backed_up",
    "open.migrating",
    "open.migrated",
    "open.noted",
)
