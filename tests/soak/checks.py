"""The promises P1 to P8 over a whole record: what was sent, what was accepted, and how each run ended.

A check says in a line what it saw, so that one that saw nothing is noticed, and names everything that is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kedge.protocol.runs import Run
from tests.soak.facts import Facts
from tests.soak.record import Body, Cancel, Sent
from tests.support import invariants
from tests.support.invariants import Log

# P6 says 5 s from the commit of a cancel to the end; what is more is a machine that does other things, too.
CANCEL_S = 5.0 + 85.0


class Verdict(NamedTuple):
    saw: str
    wrong: list[str]


Check = Callable[[Facts], Verdict]


def p1_accepted_is_durable(facts: Facts) -> Verdict:
    wrong: list[str] = []
    told: Counter[str] = Counter()
    for sent in facts.record.sent:
        run = facts.accepted.get(sent.run_id)
        if sent.asked.status == 202:
            told["receipts"] += 1
            if run is None:
                wrong.append(f"{sent.run_id} was accepted at seq {sent.seq} and is not in the log")
            elif (run.seq, run.run_id, run.session_id) != (sent.seq, sent.told, sent.body.session_id):
                wrong.append(f"{sent.run_id}: the receipt says {sent.seq} {sent.told}, the log {run.seq} {run.run_id}")
        elif sent.asked.status is None:
            told["lost answers"] += 1
        else:
            told["errors"] += 1
            may_be = any(other.asked.status in (202, None) for other in facts.tries[sent.run_id])
            if run is not None and not may_be:
                wrong.append(f"{sent.run_id} was answered {sent.asked.status} {sent.asked.code}, and there is a run")
    asked = [*(sent.asked for sent in facts.record.sent), *(cancel.asked for cancel in facts.record.cancels)]
    failed = Counter(each.status for each in asked) + Counter(status for _, status in facts.record.other.elements())
    wrong += [f"{failed[status]} answers were {status}" for status in failed if status and 503 != status >= 500]
    nobody = [id for id, run in facts.accepted.items() if id not in facts.tries and run.parent_run_id is None]
    wrong += [f"{run_id} is in the log, and nobody sent it" for run_id in nobody]
    return Verdict(f"{len(facts.accepted)} runs; {_counted(told)}", wrong)


def p2_every_run_ends_once(facts: Facts) -> Verdict:
    final = facts.record.final
    wrong = _broken([invariants.check_one_end, invariants.check_states, invariants.check_all_ended], facts.log)
    for run_id, state in facts.states.items():
        if final.runs.get(run_id, state) != state:
            wrong.append(f"{run_id}: the log says {state}, REST {final.runs[run_id]}")
        if (stored := final.stored_runs.get(run_id, (None, 0))[0]) != state:
            wrong.append(f"{run_id}: the log says {state}, the database {stored}")
    wrong += [f"{run_id} is in the database, and not in the log" for run_id in final.stored_runs.keys() - facts.states]
    wrong += [f"session {session_id} is busy, and nothing goes on" for session_id in final.busy]
    return Verdict(f"{len(facts.ends)} ends: {_counted(Counter(facts.states.values()))}", wrong)


def p3_the_same_id_is_the_same_run(facts: Facts) -> Verdict:
    wrong: list[str] = []
    seen: Counter[str] = Counter()
    for run_id, tries in facts.tries.items():
        run = facts.accepted.get(run_id)
        if run is None:
            continue
        wrong += _check_tries(run, [sent for sent in tries if not sent.by_command], seen)
    prompts = Counter(m.run_id for m in facts.messages.values() if m.role == "user")
    wrong += [f"{run_id} wrote its prompt {count} times" for run_id, count in prompts.items() if count > 1]
    wrong += [f"the command of {mark} ran {count} times" for mark, count in facts.record.marks.items() if count > 1]
    seen["marks"] = sum(facts.record.marks.values())
    return Verdict(_counted(seen), wrong)


def _check_tries(run: Run, tries: list[Sent], seen: Counter[str]) -> list[str]:
    wrong: list[str] = []
    answered = min((sent.asked.ended for sent in tries if sent.asked.status == 202), default=None)
    first = [sent for sent in tries if sent.asked.status == 202 and not sent.replayed]
    if len(first) > 1:
        wrong.append(f"{run.run_id} was accepted {len(first)} times")
    for sent in tries:
        is_later = answered is not None and sent.asked.began > answered
        if _is_same(run, sent.body):
            seen["sent again"] += sent.replayed
            if is_later and not (sent.replayed or sent.asked.status in (None, 503)):
                wrong.append(f"{run.run_id} was sent again, and answered {sent.asked.status} {sent.asked.code}")
        elif sent.asked.status == 202:
            wrong.append(f"{run.run_id} was accepted with another body: {sent.body.prompt[:80]!r}")
        elif is_later:
            seen["other bodies"] += 1
            if sent.asked.status not in (None, 503) and sent.asked.code != "run_id_conflict":
                wrong.append(f"{run.run_id} with another body was answered {sent.asked.status} {sent.asked.code}")
    return wrong


def _is_same(run: Run, body: Body) -> bool:
    is_same = (run.session_id, run.kind, run.prompt) == (body.session_id, body.kind, body.prompt)
    return is_same and run.on_busy == body.on_busy


def p4_a_run_outlives_its_client(facts: Facts) -> Verdict:
    """Those whose `kedge run` was killed, or left at the receipt."""
    wrong: list[str] = []
    left = [c for c in facts.record.commands if c.code < 0 or "--detach" in c.args]
    for command in left:
        if command.run_id not in facts.accepted:
            continue
        if (state := facts.states.get(command.run_id)) is None:
            wrong.append(f"{command.run_id} did not end after its client had left")
        elif state == "cancelled" and not _cause(facts, command.run_id):
            wrong.append(f"{command.run_id} was cancelled when its client left")
    vanished = sum(len(reading.segments) for reading in facts.record.readings if not reading.is_faithful)
    return Verdict(f"{len(left)} commands left their run, {vanished} streams were left", wrong)


def p5_one_at_a_time_in_order(facts: Facts) -> Verdict:
    checks = [
        invariants.check_one_turn_at_a_time,
        invariants.check_order_of_turns,
        invariants.check_steered_join_their_turn,
        invariants.check_joined_end_together,
        invariants.check_children_end_first,
    ]
    wrong = _broken(checks, facts.log)
    rejected = [sent for sent in facts.record.sent if sent.body.on_busy == "reject" and sent.asked.status == 409]
    wrong += [
        f"{sent.run_id} was rejected with {sent.asked.code}"
        for sent in rejected
        if sent.asked.code not in ("session_busy", "run_id_conflict")
    ]
    ways = Counter(run.on_busy for run in facts.accepted.values())
    return Verdict(f"{_counted(ways)}; {len(facts.hosts)} joined, {len(rejected)} rejected", wrong)


def p6_cancel_hits_what_was_before_it(facts: Facts) -> Verdict:
    wrong: list[str] = []
    confirmed = 0
    for cancel in facts.record.cancels:
        if cancel.asked.status == 200:
            confirmed += 1
            wrong += _check_cancel(facts, cancel)
    cancelled = [run_id for run_id, state in facts.states.items() if state == "cancelled"]
    wrong += [f"{run_id} is cancelled, and nobody asked for it" for run_id in cancelled if not _cause(facts, run_id)]
    waited = [
        facts.record.ends_seen[run_id] - cancel.asked.ended
        for cancel in facts.record.cancels
        for run_id in cancel.cancelled
        if run_id in facts.record.ends_seen and not _was_down(facts, cancel, facts.record.ends_seen[run_id])
    ]
    slowest = f"the slowest end came {max(waited, default=0.0):.1f} s after its cancel"
    idle = sum(c.scope == "session" and c.asked.status == 200 and not c.cancelled for c in facts.record.cancels)
    wrong += [f"process {number} outlived its cancelled run" for number in facts.record.left_after_cancel]
    return Verdict(f"{confirmed} cancels, {idle} of them idle; {len(cancelled)} cancelled runs; {slowest}", wrong)


def _check_cancel(facts: Facts, cancel: Cancel) -> list[str]:
    """What it named ends cancelled, in time, and is of its session; what it covers does not go on after it."""
    wrong: list[str] = []
    named = list(cancel.cancelled)
    if cancel.scope == "run" and (cancel.is_requested or cancel.state == "cancelled"):
        named.append(cancel.target)
    for run_id in named:
        run, state = facts.accepted.get(run_id), facts.states.get(run_id)
        if state != "cancelled":
            wrong.append(f"{run_id}: the cancel was confirmed, and it ended {state}")
        if cancel.scope != "run" and run is not None and run.session_id != cancel.target:
            wrong.append(f"{run_id} of session {run.session_id} was cancelled with session {cancel.target}")
        seen_at = facts.record.ends_seen.get(run_id)
        if seen_at is not None and seen_at > cancel.asked.ended + CANCEL_S and not _was_down(facts, cancel, seen_at):
            wrong.append(f"{run_id} ended {seen_at - cancel.asked.ended:.0f} s after its cancel")
    if cancel.scope in ("session", "delete"):
        behind = facts.place_after(cancel.asked.ended)
        for run_id, received in facts.receipts.items():
            if received < cancel.asked.began and facts.accepted[run_id].session_id == cancel.target:
                seq = facts.ends.get(run_id, (2**62, None))[0]
                if seq > behind and facts.states.get(run_id) != "cancelled":
                    wrong.append(f"{run_id} went on after session {cancel.target} was cancelled")
    return wrong


def _was_down(facts: Facts, cancel: Cancel, until: float) -> bool:
    return any(cancel.asked.began <= life.ended <= until for life in facts.record.lives)


def _cause(facts: Facts, run_id: str) -> str:
    """Who asked for the end of a cancelled run, directly or by something that covers it."""
    for mate in facts.mates(run_id):
        run = facts.accepted[mate]
        if (parent := facts.parents.get(mate)) is not None:
            return f"its parent {parent}"  # ended by itself, or interrupted by a restart
        began = facts.first_sent.get(mate, 0.0)
        for cancel in facts.record.cancels:
            is_target = cancel.target == (mate if cancel.scope in ("run", "command") else run.session_id)
            if is_target and (cancel.asked.status is None or cancel.asked.ended >= began):
                return cancel.scope
        for other in facts.interrupts.get(run.session_id, ()):
            if other.run_id != run.run_id and (
                other.seq > run.seq or facts.accepted[other.run_id].on_busy != "interrupt"
            ):
                return f"the interrupt {other.run_id}"
    return ""


def p7_the_record_is_whole(facts: Facts) -> Verdict:
    wrong = _broken(
        [
            invariants.check_record_is_whole,
            invariants.check_user_messages,
            invariants.check_ends_tell_the_answer,
            invariants.check_messages_only_grow,
        ],
        facts.log,
    )
    for run_id, state in facts.states.items():
        if state == "cancelled" and facts.errors.get(run_id):
            wrong.append(f"{run_id} is cancelled, and has an error")
    return Verdict(f"{len(facts.messages)} messages", wrong)


def p8_errors_name_their_run(facts: Facts) -> Verdict:
    """And what passes is folded into the one outcome: a fault that was planned for one attempt fails no run."""
    wrong = _broken([invariants.check_errors_name_their_run], facts.log)
    as_planned = 0
    for run_id, (_, end) in facts.ends.items():
        work, state = facts.record.works.get(run_id), facts.states[run_id]
        is_alone = len(facts.mates(run_id)) == 1
        if work is None or work.ending == "any" or state == "cancelled" or end.code == "interrupted" or not is_alone:
            continue
        as_planned += 1
        if state != work.ending:
            wrong.append(f"{run_id} was to be {work.ending}, and is {state}: {end.code} {end.error}")
        elif state == "completed" and work.answer is not None and end.text != work.answer:
            wrong.append(f"{run_id} answered {end.text[-80:]!r} instead of {work.answer[-80:]!r}")
    failed = Counter(end.code for _, end in facts.ends.values() if end.error is not None)
    return Verdict(f"{as_planned} ended as planned; failed: {_counted(failed)}", wrong)


def _broken(checks: Iterable[Callable[[Log], None]], log: Log) -> list[str]:
    found: list[str] = []
    for check in checks:
        try:
            check(log)
        except AssertionError as error:
            found.append(str(error).splitlines()[0])
    return found


def _counted(counts: Counter[str] | Counter[str | None]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"


OF_RUNS: list[Check] = [
    p1_accepted_is_durable,
    p2_every_run_ends_once,
    p3_the_same_id_is_the_same_run,
    p4_a_run_outlives_its_client,
    p5_one_at_a_time_in_order,
    p6_cancel_hits_what_was_before_it,
    p7_the_record_is_whole,
    p8_errors_name_their_run,
]
