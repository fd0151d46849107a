"""After a death: a new server takes over, everybody answers, everything ends; then the promises are held against it."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from kedge.engine.processes.process_groups import find_families
from kedge.protocol.events import Event
from kedge.protocol.messages import Delta, MessageOf, ToolResult, finish_of, text_of
from kedge.protocol.requests import AnswerReceipt, PermissionRequest, QuestionRequest
from kedge.protocol.runs import Run
from kedge.store.port import ProcessRecord
from kedge.store.sqlite.runs import INTERRUPTED_NOTE
from tests.faults.child import GATES
from tests.faults.processes import Died
from tests.support.harness import Kedge
from tests.support.invariants import check_all_ended, check_log, ends_of, final_messages, state_of
from tests.support.stores import Sqlite


class AtRest(NamedTuple):
    """What the dead left on the disk, read without touching it."""

    runs: dict[str, dict[str, Any]]
    pending: dict[str, str]  # request → the run that asked
    calls_in_flight: dict[str, str]  # tool message → its run
    kept_calls: set[str]  # those of them that go on
    processes: list[ProcessRecord]

    def is_resumed(self, run_id: str) -> bool:
        """Whether a new server goes on with this run, and does not end it."""
        run = self.runs[run_id]
        return run["state"] == "running" and not run["cancel_requested"] and run["parent_run_id"] is None


def at_rest(root: Path) -> AtRest:
    path = root / "data" / "kedge.db"
    if not path.exists():
        return AtRest({}, {}, {}, set(), [])
    mode = "mode=ro" if (root / "data" / "kedge.db-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True)) as db:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone() is None:
            return AtRest({}, {}, {}, set(), [])
        rows = db.execute("SELECT * FROM runs")
        columns = [column[0] for column in rows.description]
        runs = {run["run_id"]: run for run in (dict(zip(columns, row, strict=True)) for row in rows)}
        pending = dict(db.execute("SELECT id, asker_run_id FROM requests WHERE answer IS NULL").fetchall())
        calls = dict(db.execute("SELECT id, run_id FROM messages WHERE role = 'tool' AND reason IS NULL").fetchall())
        stored = "SELECT id FROM messages WHERE role = 'tool' AND reason IS NULL AND call_state IS NOT NULL"
        kept = {message_id for (message_id,) in db.execute(stored)}
        processes = [ProcessRecord(*row) for row in db.execute("SELECT pgid, started FROM processes")]
    return AtRest(runs, pending, calls, kept, processes)


def end_leftovers(root: Path) -> None:
    """A process that its server had started, but not yet on record, when it died: nobody else knows of it."""
    for number in (root / "processes").glob("long.*"):
        pid = int(number.suffix[1:])
        try:
            if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it was ended, as it should be


async def check_aftermath(root: Path, *deaths: Died) -> None:
    """`deaths` are the servers of this store so far, in order: what any of them acknowledged must hold."""
    left = at_rest(root)
    acks = Died(0, [ack for died in deaths for ack in died.acks], "")
    (root / "workspace").mkdir(exist_ok=True)
    async with Kedge(Sqlite(), root) as kedge:
        check_processes_are_gone(left)
        await check_requests_wait(kedge, left)
        for gate in GATES:
            kedge.gates.open(gate)
        await settle(kedge)

        log = await kedge.log()
        check_log(log)
        check_all_ended(log)
        runs = {run.run_id: run for run in await kedge.store.runs(kedge.workspace_id)}
        assert {run_id: state_of(end) for run_id, end in ends_of(log).items()} == {r: runs[r].state for r in runs}
        check_receipts(acks, runs)
        check_ends_stay(acks, log)
        check_cancels(acks, log)
        check_queue_and_modes(acks, log, runs)
        check_attempts(left, runs)
        await check_answers_are_kept(kedge, acks, log)
        check_calls_are_not_repeated(root, left, log)
        check_nothing_is_said_twice(log, runs)
        await check_rewound(kedge, acks)
        await check_sessions(kedge, acks)


async def settle(kedge: Kedge) -> None:
    """Answer every request and stop what hangs, until all runs have ended."""

    async def answer_all() -> None:
        answered: set[str] = set()
        while True:
            event = await kedge.seen(lambda event: _is_request(event) and _request_id(event) not in answered)
            await answer(kedge, event)
            answered.add(_request_id(event))

    async def stop_what_hangs() -> None:
        event = await kedge.seen(_hangs)
        assert isinstance(event.payload, Delta | MessageOf)
        await kedge.cancel_run(event.payload.run_id)

    people = {asyncio.create_task(answer_all()), asyncio.create_task(stop_what_hangs())}
    try:
        while open_runs := [run for run in await kedge.store.runs(kedge.workspace_id) if run.is_open]:
            await kedge.ends(*(run.run_id for run in open_runs))
    finally:
        for person in people:
            person.cancel()
        await asyncio.wait(people)


def _hangs(event: Event) -> bool:
    """A call is at its `hang`: told by a delta, or by the snapshot for one who came later."""
    match event.payload:
        case Delta(text=text):
            return "hang" in text
        case MessageOf(parts=[ToolResult(content=content)]) if event.seq is None:
            return "hang" in content
        case _:
            return False


async def answer(kedge: Kedge, event: Event) -> AnswerReceipt:
    match event.payload:
        case PermissionRequest(id=request_id):
            return await kedge.engine.answer_permission(kedge.workspace_id, request_id, "allow", by="test")
        case QuestionRequest(id=request_id):
            return await kedge.engine.answer_question(kedge.workspace_id, request_id, ["green"], by="test")
        case other:
            raise AssertionError(f"not a request: {other}")


def check_processes_are_gone(left: AtRest) -> None:
    """P13: before anything else, the next server ends the processes on record."""
    living = find_families(left.processes)
    assert not living, f"left behind and still alive: {living}"


async def check_requests_wait(kedge: Kedge, left: AtRest) -> None:
    """P14: a request that a resumed run waits for is pending still, under the same id."""
    pending = {
        request.id
        for kind in ("permission", "question")
        for request in await kedge.store.pending_requests(kedge.workspace_id, kind)
    }
    lost = {r for r, asker in left.pending.items() if left.is_resumed(asker)} - pending
    assert not lost, f"requests that nobody can answer any more: {lost}"


def check_receipts(acks: Died, runs: Mapping[str, Run]) -> None:
    """P1: what was acknowledged is there, in its place."""
    for receipt in acks.of("receipt"):
        assert receipt["run_id"] in runs, f"run {receipt['run_id']} was accepted and is lost"
        assert runs[receipt["run_id"]].seq == receipt["seq"]


def check_ends_stay(acks: Died, log: list[Event]) -> None:
    """P2: an end that somebody saw is the end."""
    ends = ends_of(log)
    for told in acks.of("end"):
        end = ends[told["run_id"]]
        assert (state_of(end), end.text, end.message_id) == (told["state"], told["text"], told["message_id"])


def check_cancels(acks: Died, log: list[Event]) -> None:
    """P6: an acknowledged cancel ends cancelled; P7: one dropped from the queue leaves no message."""
    ends = ends_of(log)
    for cancel in acks.of("cancel"):
        assert {run_id: state_of(ends[run_id]) for run_id in cancel["runs"]} == dict.fromkeys(
            cancel["runs"], "cancelled"
        )
    for drop in acks.of("drop"):
        end = ends[drop["run_id"]]
        assert (state_of(end), end.message_id) == ("cancelled", None)


def check_queue_and_modes(acks: Died, log: list[Event], runs: Mapping[str, Run]) -> None:
    """P5: an acknowledged order of the queue is kept, and so are a promotion and a switch of the mode."""
    started = [event.payload.run_id for event in log if isinstance(event.payload, Run) and event.payload.attempt]
    for moved in acks.of("moved"):
        assert sorted(moved["order"], key=started.index) == moved["order"]
    for promoted in acks.of("promoted"):
        assert runs[promoted["run_id"]].on_busy == "steer"
    for switched in acks.of("switched"):
        assert runs[switched["run_id"]].mode == switched["mode"]


def check_attempts(left: AtRest, runs: Mapping[str, Run]) -> None:
    """P13: resumed under the same id, and counted; an orderly stop does not count."""
    for run_id, row in left.runs.items():
        if left.is_resumed(run_id) and row["merged_into"] is None:
            is_counted = not row["suspended"] and row["wait_reason"] is None  # one that only waited is not
            assert runs[run_id].attempt == row["attempt"] + is_counted, f"attempts of {runs[run_id]}"
        elif row["state"] in ("queued", "running"):
            assert runs[run_id].attempt <= max(1, row["attempt"])
        else:
            assert (runs[run_id].state, runs[run_id].attempt) == (row["state"], row["attempt"])


async def check_answers_are_kept(kedge: Kedge, acks: Died, log: list[Event]) -> None:
    """P14: what was asked is on record, and the first answer wins, also over a crash."""
    late = {_request_id(event): await answer(kedge, event) for event in log if _is_request(event)}
    assert not [receipt for receipt in late.values() if receipt.resolved]
    for told in acks.of("answer"):
        receipt = late[told["id"]]
        assert (receipt.by, receipt.action) == (told["by"], told["action"]), f"the answer to {told['id']} is lost"
    for asked in acks.of("asked"):
        assert asked["id"] in late, f"request {asked['id']} was shown and is lost"


def check_calls_are_not_repeated(root: Path, left: AtRest, log: list[Event]) -> None:
    """P13: the world saw each call once at most, and a call in flight goes on if its state was stored, and says else
    that it was interrupted."""
    effects = {path.name: path.read_text() for path in (root / "effects").glob("*")}
    assert set(effects.values()) <= {"", "x"}, f"calls were repeated: {effects}"
    messages = final_messages(log)
    for message_id, run_id in left.calls_in_flight.items():
        if left.is_resumed(run_id):
            (result,) = messages[message_id].parts
            assert isinstance(result, ToolResult)
            is_interrupted = result.is_error and result.content.endswith(INTERRUPTED_NOTE.text)
            assert is_interrupted == (message_id not in left.kept_calls), f"run {run_id}: {result}"


def check_nothing_is_said_twice(log: list[Event], runs: Mapping[str, Run]) -> None:
    """P13: a resumed turn goes on after its last committed step: all of its script is said, and once."""
    said: dict[str, list[str]] = {run_id: [] for run_id in runs}
    for message in final_messages(log).values():
        finish, text = finish_of(message.parts), text_of(message.parts)
        if message.run_id not in runs:
            continue  # of a fork: its runs are names only
        if message.role == "assistant" and text and finish is not None and finish.reason != "interrupted":
            said[message.run_id].append(text)
    for run in runs.values():
        if run.state == "completed" and run.merged_into is None:
            turn = [run, *(other for other in runs.values() if other.merged_into == run.run_id)]
            script = [line for member in turn for line in member.prompt.splitlines()]
            wanted = [line.removeprefix("say ") for line in script if line.startswith("say ")]
            assert said[run.run_id] == wanted, f"run {run.run_id} said something else"


async def check_rewound(kedge: Kedge, acks: Died) -> None:
    """What was undone or done again is so whole; one that nobody was told of may have been finished."""
    redone = [told["id"] for told in acks.of("redone")]
    for told in acks.of("undone"):
        said = [text_of(m.parts) for m in await kedge.messages(told["id"]) if m.role == "user"]
        assert len(said) == 2 if told["id"] in redone else len(said) in (1, 2), said


async def check_sessions(kedge: Kedge, acks: Died) -> None:
    """P3: sending again finds the same run. And every session can be continued, or is gone for good."""
    for receipt in acks.of("receipt"):
        fields = {"on_busy": receipt["on_busy"]} if "on_busy" in receipt else {}
        again = await kedge.send(receipt["session_id"], receipt["prompt"], receipt["run_id"], **fields)
        assert (again.replayed, again.seq) == (True, receipt["seq"])
    deleted = {gone["id"] for gone in acks.of("deleted")}
    known = {session.id: session for session in await kedge.store.sessions(kedge.workspace_id)}
    assert not deleted & known.keys()
    for told in acks.of("session"):
        assert told["id"] in known or told["title"] == "tidying", f"session {told} is lost"
    for told in acks.of("renamed"):
        assert told["id"] not in known or known[told["id"]].title == told["title"]
    receipts = [await kedge.send(session_id, "say goes on") for session_id in known]
    assert {end.text for end in await kedge.ends(*(receipt.run_id for receipt in receipts))} <= {"goes on"}


def _is_request(event: Event) -> bool:
    return isinstance(event.payload, PermissionRequest | QuestionRequest)


def _request_id(event: Event) -> str:
    assert isinstance(event.payload, PermissionRequest | QuestionRequest)
    return event.payload.id
