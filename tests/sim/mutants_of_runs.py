"""Planted bugs in how runs are accepted, cancelled, ended and resumed: each a plausible mistake, patched in memory."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import msgspec

from kedge.engine.actors import Actors, SessionActor
from kedge.engine.concurrency import TurnSlot
from kedge.engine.turn import TurnContext
from kedge.protocol.requests import Answer, AnswerReceipt, RequestKind
from kedge.protocol.runs import Receipt, Submission
from kedge.store.port import Outcome, Started
from kedge.store.sqlite import messages, queue, requests, rows, run_end, runs
from kedge.store.sqlite.writer import Transaction


@contextmanager
def rewritten(module: ModuleType, name: str, old: str, new: str) -> Generator[None]:
    """A function with a line of its source changed."""
    source = inspect.getsource(getattr(module, name))
    assert source.count(old) == 1, f"{name} has no line {old!r} any more: change the mutant"
    made: dict[str, Any] = {}
    exec(compile(source.replace(old, new), f"<a mutant of {name}>", "exec"), vars(module), made)
    with patch.object(module, name, made[name]):
        yield


def nothing(*_: object) -> None:
    pass


def nobody(*_: object) -> list[sqlite3.Row]:
    return []


def empty(*_: object) -> bytes:
    return b""


# P6: cancel


@contextmanager
def cancel_is_acknowledged_and_not_written() -> Generator[None]:
    with patch.object(runs, "request_cancel", nothing):
        yield


@contextmanager
def cancel_is_written_and_the_turn_not_told() -> Generator[None]:
    with patch.object(Actors, "stop_run", nothing):
        yield


@contextmanager
def cancel_loses_against_the_end() -> Generator[None]:
    with rewritten(runs, "finish", 'if row["cancel_requested"]:', "if False:"):
        yield


@contextmanager
def idle_cancel_poisons_the_next_prompt() -> Generator[None]:
    poisoned: set[str] = set()
    cancel, accept = runs.cancel_session, runs.accept

    def cancel_session(tx: Transaction, workspace_id: str, session_id: str) -> list[str]:
        cancelled = cancel(tx, workspace_id, session_id)
        if not cancelled:
            poisoned.add(session_id)
        return cancelled

    def accept_poisoned(tx: Transaction, workspace_id: str, run_id: str, submission: Submission) -> Receipt:
        receipt = accept(tx, workspace_id, run_id, submission)
        if submission.session_id in poisoned:
            poisoned.discard(submission.session_id)
            runs.cancel_run(tx, workspace_id, run_id)
        return receipt

    with patch.object(runs, "cancel_session", cancel_session), patch.object(runs, "accept", accept_poisoned):
        yield


@contextmanager
def end_of_one_run_stops_the_next() -> Generator[None]:
    def stop_whatever_runs(self: Actors, session_id: str, _: str) -> None:
        if session_id in self._active:
            self._active[session_id][0].stop("cancel")

    with patch.object(Actors, "stop_run", stop_whatever_runs):
        yield


@contextmanager
def cancelled_run_is_resumed_after_a_crash() -> Generator[None]:
    with rewritten(runs, "prepare_next_attempt", 'if row["cancel_requested"]:', "if False:"):
        yield


# P2, P3, P5: ends, names and order


@contextmanager
def run_ends_twice() -> Generator[None]:
    end_once = run_end._end

    def end(tx: Transaction, row: sqlite3.Row, *args: Any) -> None:
        end_once(tx, row, *args)
        told = tx.events[-1]
        again = msgspec.json.encode(told.payload)
        tx.append(
            "run_complete", "created", row["workspace_id"], row["session_id"], again, payload=told.payload, body=again
        )

    with patch.object(run_end, "_end", end):
        yield


@contextmanager
def joined_runs_are_forgotten_at_the_end() -> Generator[None]:
    with patch.object(run_end, "joined_runs", nobody):
        yield


@contextmanager
def queue_is_stranded_after_a_failure() -> Generator[None]:
    failed: set[SessionActor] = set()
    end, turn = SessionActor._end, SessionActor._run_turn

    async def end_and_note(self: SessionActor, started: Started, outcome: Outcome) -> None:
        if outcome.state == "failed":
            failed.add(self)
        await end(self, started, outcome)

    async def turn_unless_failed(self: SessionActor, slot: TurnSlot) -> bool:
        return await turn(self, slot) and self not in failed

    with patch.object(SessionActor, "_end", end_and_note), patch.object(SessionActor, "_run_turn", turn_unless_failed):
        yield


@contextmanager
def slot_is_never_given_back() -> Generator[None]:
    with patch.object(TurnSlot, "release", nothing):
        yield


@contextmanager
def interrupt_waits_in_the_queue() -> Generator[None]:
    def by_acceptance(db: sqlite3.Connection, session_id: str) -> list[sqlite3.Row]:
        return db.execute(
            "SELECT * FROM runs WHERE session_id = ? AND state IN ('queued', 'running') ORDER BY state = 'queued', seq",
            (session_id,),
        ).fetchall()

    with patch.object(runs, "open_runs", by_acceptance):
        yield


@contextmanager
def moved_prompt_is_told_and_stays_where_it_was() -> Generator[None]:
    with rewritten(queue, "_arrange", "*(place, row", '*(row["place"], row'):
        yield


@contextmanager
def promoted_prompt_interrupts_nothing() -> Generator[None]:
    with patch.object(queue, "request_cancel", nothing):
        yield


@contextmanager
def prompt_joins_a_turn_in_another_mode() -> Generator[None]:
    with rewritten(queue, "join", 'row["mode"] != host["mode"]', "False"):
        yield


@contextmanager
def switched_mode_is_not_that_of_joined_runs() -> Generator[None]:
    with rewritten(runs, "_set_mode", "*joined_runs(tx, row)", ""):
        yield


@contextmanager
def sub_agent_starts_in_the_mode_that_was_sent() -> Generator[None]:
    with rewritten(runs, "accept", "if parent is None else", "if True else"):
        yield


@contextmanager
def steer_joins_whatever_runs_also_after_its_cancel() -> Generator[None]:
    accept = runs.accept

    def accept_and_join(tx: Transaction, workspace_id: str, run_id: str, submission: Submission) -> Receipt:
        receipt = accept(tx, workspace_id, run_id, submission)
        if submission.on_busy == "steer" and not receipt.replayed:
            for row in runs.open_runs(tx.db, submission.session_id):
                if row["state"] == "running" and row["merged_into"] is None and row["kind"] == submission.kind:
                    tx.execute(
                        "UPDATE runs SET state = 'running', attempt = 1, merged_into = ? WHERE run_id = ?",
                        *(row["run_id"], run_id),
                    )
                    runs.append_run_event(tx, workspace_id, run_id, "updated")
                    messages.write_user_message(tx, rows.get_run(tx.db, workspace_id, run_id))
        return receipt

    with patch.object(runs, "accept", accept_and_join):
        yield


@contextmanager
def another_prompt_under_the_same_name_is_a_replay() -> Generator[None]:
    with patch.object(runs, "_encode_body", empty):
        yield


# P13, P14: crashes and answers


@contextmanager
def attempt_is_not_counted() -> Generator[None]:
    recover = runs.recover

    def recover_for_free(tx: Transaction) -> None:
        tx.execute("UPDATE runs SET suspended = 1 WHERE state = 'running'")
        recover(tx)

    with patch.object(runs, "recover", recover_for_free):
        yield


@contextmanager
def orderly_stop_counts_as_an_attempt() -> Generator[None]:
    suspend = runs.suspend

    def suspend_and_count(tx: Transaction, workspace_id: str, run_id: str, epoch: int) -> None:
        suspend(tx, workspace_id, run_id, epoch)
        tx.execute("UPDATE runs SET suspended = 0 WHERE run_id = ?", run_id)

    with patch.object(runs, "suspend", suspend_and_count):
        yield


@contextmanager
def crash_while_waiting_counts_as_an_attempt() -> Generator[None]:
    with rewritten(runs, "start", "(suspended OR wait_reason IS NOT NULL)", "suspended"):
        yield


@contextmanager
def wait_is_forgotten_by_the_next_server() -> Generator[None]:
    recover = runs.recover

    def recover_and_forget(tx: Transaction) -> None:
        recover(tx)
        tx.execute("UPDATE runs SET wait_reason = NULL, wait_until = NULL")

    with patch.object(runs, "recover", recover_and_forget):
        yield


@contextmanager
def wait_is_over_with_a_restart() -> Generator[None]:
    async def end_at_once(ctx: TurnContext) -> None:
        if ctx.run.waiting is not None:
            await ctx._wait_until(0)

    with patch.object(TurnContext, "end_stored_wait", end_at_once):
        yield


@contextmanager
def answer_is_accepted_twice() -> Generator[None]:
    answer = requests.give_answer

    def answer_again(
        tx: Transaction, workspace_id: str, kind: RequestKind, request_id: str, given: Answer
    ) -> AnswerReceipt:
        tx.execute("UPDATE requests SET answer = NULL WHERE id = ?", request_id)
        return answer(tx, workspace_id, kind, request_id, given)

    with patch.object(requests, "give_answer", answer_again):
        yield


MUTANTS = (
    cancel_is_acknowledged_and_not_written,
    cancel_is_written_and_the_turn_not_told,
    cancel_loses_against_the_end,
    idle_cancel_poisons_the_next_prompt,
    end_of_one_run_stops_the_next,
    cancelled_run_is_resumed_after_a_crash,
    run_ends_twice,
    joined_runs_are_forgotten_at_the_end,
    queue_is_stranded_after_a_failure,
    slot_is_never_given_back,
    interrupt_waits_in_the_queue,
    moved_prompt_is_told_and_stays_where_it_was,
    promoted_prompt_interrupts_nothing,
    prompt_joins_a_turn_in_another_mode,
    switched_mode_is_not_that_of_joined_runs,
    sub_agent_starts_in_the_mode_that_was_sent,
    steer_joins_whatever_runs_also_after_its_cancel,
    another_prompt_under_the_same_name_is_a_replay,
    attempt_is_not_counted,
    orderly_stop_counts_as_an_attempt,
    crash_while_waiting_counts_as_an_attempt,
    wait_is_forgotten_by_the_next_server,
    wait_is_over_with_a_restart,
    answer_is_accepted_twice,
)
