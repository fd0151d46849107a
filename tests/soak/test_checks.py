"""A test of the checker: each check finds what is planted for it in a record that is otherwise whole."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable

import msgspec
import pytest

from kedge.protocol.events import AgentEvent, Event
from kedge.protocol.messages import MessageOf
from kedge.protocol.requests import RequestResolution
from kedge.protocol.runs import Run, RunEnd
from tests.soak.budgets import BUDGETS, JUDGED_AFTER_S, MIB
from tests.soak.event_checks import CHECKS
from tests.soak.facts import Facts
from tests.soak.record import Asked, Body, Cancel, Command, Machine, Record, Sample, Sent
from tests.soak.recorded_events import CUT, machine, record_of, renumbered, told

Planted = Callable[[], Record]


def found(name: str, record: Record) -> list[str]:
    (check,) = [check for check in CHECKS if check.__name__ == name]
    return check(Facts(record)).wrong


# Ways to tell it otherwise.


def place(log: list[Event], kind: type, run_id: str, state: str | None = None) -> int:
    return next(
        i
        for i, event in enumerate(log)
        if isinstance(event.payload, kind)
        and getattr(event.payload, "run_id", "") == run_id
        and (state is None or getattr(event.payload, "state", "") == state)
    )


def with_log(change: Callable[[list[Event]], None], *, is_renumbered: bool = True) -> Planted:
    """Another log, told to everybody the same."""

    def plant() -> Record:
        log = told()
        change(log)
        return record_of(renumbered(log) if is_renumbered else log)

    return plant


def with_record(change: Callable[[Record], None]) -> Planted:
    """The same log; somebody was told otherwise."""

    def plant() -> Record:
        record = record_of(told())
        change(record)
        return record

    return plant


def with_event(log: list[Event], where: int, **fields: object) -> None:
    payload = msgspec.structs.replace(log[where].payload, **fields)
    log[where] = msgspec.structs.replace(log[where], payload=payload)


def lost_event(log: list[Event]) -> None:
    del log[7]


def doubled_end(log: list[Event]) -> None:
    log.append(log[place(log, RunEnd, "r1")])


def no_end(log: list[Event]) -> None:
    del log[place(log, RunEnd, "r4") - 1 : place(log, RunEnd, "r4") + 1]


def second_before_first(log: list[Event]) -> None:
    """r2 starts, and ends, before r1, which was accepted first."""
    first, last = place(log, Run, "r1", "running"), place(log, RunEnd, "r1")
    second = place(log, RunEnd, "r2")
    log[first : second + 1] = log[last + 1 : second + 1] + log[first : last + 1]


def two_at_once(log: list[Event]) -> None:
    start = place(log, Run, "r2", "running")
    log.insert(place(log, Run, "r1", "running") + 1, log.pop(start))


def error_of_another(log: list[Event]) -> None:
    with_event(log, place(log, AgentEvent, "r4"), run_id="r1")


def unfinished_message(log: list[Event]) -> None:
    answers = [i for i, e in enumerate(log) if isinstance(e.payload, MessageOf) and e.payload.id == "r1-answer"]
    del log[answers[-1]]


def call_without_result(log: list[Event]) -> None:
    results = [i for i, e in enumerate(log) if isinstance(e.payload, MessageOf) and e.payload.id == "r2-result"]
    del log[results[0]]


def request_left_open(log: list[Event]) -> None:
    del log[place(log, RequestResolution, "r2")]


def cancelled_by_nobody(log: list[Event]) -> None:
    where = place(log, RunEnd, "k1")
    with_event(log, where, cancelled=True)
    with_event(log, where - 1, state="cancelled")


def cancelled_when_left(log: list[Event]) -> None:
    where = place(log, RunEnd, "k2")
    with_event(log, where, cancelled=True)
    with_event(log, where - 1, state="cancelled")


def cancel_forgotten(log: list[Event]) -> None:
    where = place(log, RunEnd, "r3")
    with_event(log, where, cancelled=False)
    with_event(log, where - 1, state="completed")


def prompt_written_twice(log: list[Event]) -> None:
    (where,) = [i for i, e in enumerate(log) if isinstance(e.payload, MessageOf) and e.payload.id == "r1-user"]
    again = msgspec.structs.replace(log[where].payload, id="again")
    log.insert(where + 1, msgspec.structs.replace(log[where], payload=again))


def too_many_attempts(log: list[Event]) -> None:
    for i, event in enumerate(log):
        if isinstance(event.payload, Run) and event.payload.run_id == "r1" and event.payload.attempt:
            with_event(log, i, attempt=3)


def given_up_early(log: list[Event]) -> None:
    for i, event in enumerate(log):
        if isinstance(event.payload, (RunEnd, AgentEvent)) and event.payload.run_id == "r4":
            with_event(log, i, code="interrupted")


def run_of_nobody(record: Record) -> None:
    record.sent = [sent for sent in record.sent if sent.run_id != "r1"]


def receipt_without_run(record: Record) -> None:
    body = Body("s1", "lost")
    record.sent.append(Sent("lost", body, Asked(1, 2, 202), seq=99, told="lost"))


def error_with_run(record: Record) -> None:
    record.sent = [s if s.run_id != "r4" else dataclasses.replace(s, asked=Asked(1, 2, 409)) for s in record.sent]


def answered_500(record: Record) -> None:
    record.other["undo", 500] += 1


def accepted_twice(record: Record) -> None:
    record.sent = [dataclasses.replace(sent, replayed=False) for sent in record.sent]


def other_body_accepted(record: Record) -> None:
    sent = record.sent[0]
    record.sent.append(dataclasses.replace(sent, replayed=True, body=dataclasses.replace(sent.body, prompt="other")))


def other_body_misunderstood(record: Record) -> None:
    sent = record.sent[0]
    other = dataclasses.replace(sent.body, prompt="other")
    record.sent.append(dataclasses.replace(sent, body=other, asked=Asked(950, 951, 409, "session_busy")))


def sent_again_and_unknown(record: Record) -> None:
    record.sent.append(dataclasses.replace(record.sent[0], replayed=False, asked=Asked(950, 951, 404, "run_not_found")))


def done_twice(record: Record) -> None:
    record.marks["m1"] = 2


def rejected_wrongly(record: Record) -> None:
    record.sent.append(Sent("no", Body("s1", "no", on_busy="reject"), Asked(1, 2, 409, "not_queued")))


def cancelled_too_much(record: Record) -> None:
    record.cancels.append(Cancel("session", "s2", Asked(500, 501, 200), ("r3",)))


def cancel_did_nothing(record: Record) -> None:
    """The session was cancelled while r1 ran; r1 went on past a prompt that was accepted after the cancel."""
    record.cancels.append(Cancel("session", "s1", Asked(3.6, 3.7, 200)))


def cancel_took_minutes(record: Record) -> None:
    record.ends_seen["r3"] += 300


def process_left(record: Record) -> None:
    record.left_after_cancel.append("3600.1")


def answered_otherwise(record: Record) -> None:
    record.works["r2"] = dataclasses.replace(record.works["r2"], answer="something else")


def failed_unplanned(record: Record) -> None:
    record.works["r4"] = dataclasses.replace(record.works["r4"], ending="completed")


def stuck(record: Record) -> None:
    record.final.busy.append("s1")


def stored_otherwise(record: Record) -> None:
    record.final.stored_runs["r1"] = ("failed", 1)


def rest_otherwise(record: Record) -> None:
    record.final.runs["r1"] = "running"


def reader_missed_one(record: Record) -> None:
    segment = record.readings[0].segments[1]
    del segment.seqs[2], segment.digests[2]
    segment.delivered = []


def reader_saw_one_twice(record: Record) -> None:
    segment = record.readings[0].segments[1]
    segment.seqs.insert(0, CUT)
    segment.digests.insert(0, record.digests[CUT - 1])


def reader_saw_them_swapped(record: Record) -> None:
    for numbers in (record.readings[0].segments[0].seqs, record.readings[0].segments[0].digests):
        numbers[3], numbers[4] = numbers[4], numbers[3]


def reader_saw_another(record: Record) -> None:
    record.readings[0].segments[0].digests[3] += 1


def reader_missed_one_of_its_session(record: Record) -> None:
    segment = record.readings[1].segments[0]
    del segment.seqs[2], segment.digests[2]


def told_complete_too_early(record: Record) -> None:
    segment = record.readings[0].segments[0]
    segment.delivered = [(len(segment.seqs) - 2, CUT)]


def reader_heard_a_part(record: Record) -> None:
    record.readings[0].segments.pop()


def paged_otherwise(record: Record) -> None:
    record.paged[3] += 1


def stored_log_is_shorter(record: Record) -> None:
    record.stored.pop()


def silent_gap(record: Record) -> None:
    segment = record.readings[2].segments[0]
    segment.reset, segment.delivered = None, [(0, len(record.log))]


def reset_for_nothing(record: Record) -> None:
    record.readings[0].segments[1].reset = ("retention", CUT)


def text_differs(record: Record) -> None:
    record.readings[0].wrong_texts.append("message m: 'a' became 'b'")


def orphan_of_a_crash(record: Record) -> None:
    record.lives[1] = dataclasses.replace(record.lives[1], survivors=("3600.1",))


def ran_without_acceptance(record: Record) -> None:
    record.works["refused"] = dataclasses.replace(record.works["r1"], run_id="refused")


def answered_twice(record: Record) -> None:
    record.replies[1] = dataclasses.replace(record.replies[1], resolved=True)


def told_another_winner(record: Record) -> None:
    record.replies[1] = dataclasses.replace(record.replies[1], by="a phone", told="deny")


def unknown_request_answered(record: Record) -> None:
    record.replies[2] = dataclasses.replace(record.replies[2], asked=Asked(5, 6, 200))


def pending_at_the_end(record: Record) -> None:
    record.final.pending.append("q1")


def left_with_an_error(record: Record) -> None:
    record.lives[1] = dataclasses.replace(record.lives[1], exit_code=1)


def refused_without_a_time(record: Record) -> None:
    record.refused = [dataclasses.replace(record.refused[0], has_retry_after=False)]


def refused_while_staying(record: Record) -> None:
    record.refused = [dataclasses.replace(record.refused[0], began=10, ended=11)]


def page_lacks_a_message(record: Record) -> None:
    whole = record.final.pages[0]
    record.final.pages[0] = dataclasses.replace(whole, order=whole.order[1:])


def page_tells_another(record: Record) -> None:
    whole = record.pages[0]
    record.pages[0] = dataclasses.replace(whole, finished=((whole.finished[0][0], 1), *whole.finished[1:]))


def session_vanished(record: Record) -> None:
    record.final.sessions.remove("s2")


def command(run_id: str, code: int, out: str = "printed\n") -> Callable[[Record], None]:
    def plant(record: Record) -> None:
        record.commands = [Command(run_id, "s2", ("run",), code, out, "")]

    return plant


def stalled_and_lost(record: Record) -> None:
    reader_heard_a_part(record)


PLANTED: dict[str, list[Planted]] = {
    "p1_accepted_is_durable": [
        *map(with_record, (run_of_nobody, receipt_without_run, error_with_run, answered_500)),
    ],
    "p2_every_run_ends_once": [
        *map(with_log, (doubled_end, no_end)),
        *map(with_record, (stuck, stored_otherwise, rest_otherwise)),
    ],
    "p3_the_same_id_is_the_same_run": [
        with_log(prompt_written_twice),
        *map(with_record, (accepted_twice, other_body_accepted, other_body_misunderstood)),
        *map(with_record, (sent_again_and_unknown, done_twice)),
    ],
    "p4_a_run_outlives_its_client": [with_log(cancelled_when_left)],
    "p5_one_at_a_time_in_order": [*map(with_log, (second_before_first, two_at_once)), with_record(rejected_wrongly)],
    "p6_cancel_hits_what_was_before_it": [
        *map(with_log, (cancelled_by_nobody, cancel_forgotten)),
        *map(with_record, (cancelled_too_much, cancel_did_nothing, cancel_took_minutes, process_left)),
    ],
    "p7_the_record_is_whole": [*map(with_log, (unfinished_message, call_without_result, request_left_open))],
    "p8_errors_name_their_run": [
        with_log(error_of_another),
        *map(with_record, (answered_otherwise, failed_unplanned)),
    ],
    "p9_one_story_for_everyone": [
        with_log(lost_event, is_renumbered=False),
        *map(with_record, (reader_missed_one, reader_saw_one_twice, reader_saw_them_swapped, reader_saw_another)),
        *map(with_record, (reader_missed_one_of_its_session, told_complete_too_early, reader_heard_a_part)),
        *map(with_record, (paged_otherwise, stored_log_is_shorter)),
    ],
    "p10_no_silent_gap": [*map(with_record, (silent_gap, reset_for_nothing))],
    "p11_slow_readers_lose_nothing": [with_record(stalled_and_lost)],
    "p12_streamed_text_is_exact": [with_record(text_differs)],
    "p13_crashes_are_decided": [
        *map(with_log, (too_many_attempts, given_up_early)),
        *map(with_record, (orphan_of_a_crash, ran_without_acceptance)),
    ],
    "p14_people_are_asked_durably": [
        with_log(request_left_open),
        *map(with_record, (answered_twice, told_another_winner, unknown_request_answered, pending_at_the_end)),
    ],
    "p15_the_way_out_is_orderly": [
        *map(with_record, (left_with_an_error, refused_without_a_time, refused_while_staying)),
    ],
    "snapshot_is_replay": [*map(with_record, (page_lacks_a_message, page_tells_another, session_vanished))],
    "exit_codes_are_true": [
        with_record(command("k1", 1)),
        with_record(command("k1", 0, "something else\n")),
        with_record(command("k1", 130)),
        with_record(command("r3", 0)),
        with_record(command("r4", 0)),
        with_record(command("never sent", 0)),
    ],
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_record_that_kept_every_promise_is_found_whole(check: Callable[[Facts], object]) -> None:
    assert found(check.__name__, record_of(told())) == []


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, planted in PLANTED.items() for number in range(len(planted))]
)
def test_what_is_planted_is_found(name: str, number: int) -> None:
    assert found(name, PLANTED[name][number]()) != []


def test_every_check_has_something_to_find() -> None:
    assert list(PLANTED) == [check.__name__ for check in CHECKS]
    assert {budget.__name__ for budget in BUDGETS} == OVER.keys()


def grows(costs: Machine) -> None:
    costs.samples = [dataclasses.replace(s, rss_bytes=s.rss_bytes + int(s.at * MIB / 5)) for s in costs.samples]


def costs_memory(costs: Machine) -> None:
    costs.samples[300] = dataclasses.replace(costs.samples[300], rss_bytes=1000 * MIB)


def keeps_descriptors(costs: Machine) -> None:
    costs.samples[-1] = dataclasses.replace(costs.samples[-1], descriptors=500)


def keeps_threads(costs: Machine) -> None:
    costs.samples[5] = dataclasses.replace(costs.samples[5], threads=500)


def fills_the_disk(costs: Machine) -> None:
    costs.database_bytes = 10 * MIB


def keeps_its_journal(costs: Machine) -> None:
    costs.samples[5] = dataclasses.replace(costs.samples[5], wal_bytes=500 * MIB)


def talks_too_much(costs: Machine) -> None:
    costs.server_log_bytes = 100 * MIB


def is_damaged(costs: Machine) -> None:
    costs.is_database_sound = False


def leaves_a_process(costs: Machine) -> None:
    costs.orphans = ["3600.1"]


def crashed(costs: Machine) -> None:
    costs.crashes = ["Fatal Python error: Segmentation fault"]


OVER: dict[str, list[Callable[[Machine], None]]] = {
    "memory_is_bounded": [grows, costs_memory],
    "handles_are_bounded": [keeps_descriptors, keeps_threads],
    "disk_is_bounded": [fills_the_disk, keeps_its_journal, talks_too_much, is_damaged],
    "nothing_is_left": [leaves_a_process, crashed],
}


@pytest.mark.parametrize(("name", "over"), [(name, over) for name, all_over in OVER.items() for over in all_over])
def test_what_costs_too_much_is_found(name: str, over: Callable[[Machine], None]) -> None:
    (budget,) = [budget for budget in BUDGETS if budget.__name__ == name]
    assert budget(machine()).wrong == []
    costs = machine()
    over(costs)
    assert budget(costs).wrong != []


def test_a_server_that_lived_for_a_moment_is_not_judged_by_its_growth() -> None:
    short = Machine([Sample(at, 0, int(at * MIB), 10, 10, 0) for at in range(1, int(JUDGED_AFTER_S))])
    assert BUDGETS[0](short).wrong == []


def test_digests_tell_events_apart() -> None:
    record = record_of(told())
    assert len(set(record.digests)) == len(record.log)
    assert record.digests == array("q", record.paged)
