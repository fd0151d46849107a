"""The promises P9 to P15 over a whole record: what every reader was shown, what crashes and people decided, how servers
left; and the exit codes of `kedge run`."""

from __future__ import annotations

import signal
from array import array
from collections import Counter, defaultdict

from kedge.protocol.events import Event, encode
from kedge.protocol.messages import INTERRUPTED, MessageOf, ToolResult
from kedge.protocol.requests import PermissionRequest
from tests.sim.reader import session_of
from tests.soak.checks import OF_RUNS, Check, Verdict
from tests.soak.facts import Facts
from tests.soak.record import Command, Page, Reading, Reply, Segment, digest_of
from tests.support import invariants
from tests.support.invariants import is_finished

MAX_ATTEMPTS = 3  # P13


def p9_one_story_for_everyone(facts: Facts) -> Verdict:
    record = facts.record
    wrong: list[str] = []
    try:
        invariants.check_seq_is_contiguous(facts.log)
    except AssertionError as error:
        wrong.append(str(error))
    for way, digests in (("by pages", record.paged), ("in the database", record.stored)):
        if digests != record.digests:
            wrong.append(f"the log {way} is another: {_difference(digests, record.digests)}")
    shown, segments = 0, 0
    places = _places_by_session(facts.log)
    for reading in record.readings:
        wrong += _check_reading(facts, reading, places)
        shown += sum(len(segment.seqs) for segment in reading.segments)
        segments += len(reading.segments)
    return Verdict(
        f"{len(facts.log)} events, {shown} shown to {len(record.readings)} readers in {segments} streams", wrong
    )


def _places_by_session(log: list[Event]) -> dict[str, array[int]]:
    found: dict[str, array[int]] = defaultdict(lambda: array("q"))
    for event in log:
        found[session_of(event)].append(event.seq or 0)
    return found


def _check_reading(facts: Facts, reading: Reading, places: dict[str, array[int]]) -> list[str]:
    wrong: list[str] = []
    cursor = 0
    head = len(facts.log)
    for segment in reading.segments:
        if reading.is_faithful and segment.after != cursor:
            wrong.append(f"{reading.name} came back with {segment.after} after {cursor}")
        wrong += [f"{reading.name}: {each}" for each in _check_segment(facts, reading, segment, places)]
        cursor = segment.cursor or 0
    if reading.is_faithful and cursor < head:
        wrong.append(f"{reading.name} stayed to the end and heard only up to {cursor} of {head}")
    return wrong


def _check_segment(facts: Facts, reading: Reading, segment: Segment, places: dict[str, array[int]]) -> list[str]:
    """What it was shown is an unbroken piece of the log (of its session), byte for byte."""
    assert segment.told_after is not None
    cursor = segment.reset[1] if segment.reset else segment.told_after
    mine = None if reading.session_id is None else places.get(reading.session_id, array("q"))

    def between(low: int, high: int) -> list[int]:
        return list(range(low + 1, high + 1)) if mine is None else [seq for seq in mine if low < seq <= high]

    last = segment.seqs[-1] if segment.seqs else cursor
    wanted = between(cursor, last)
    if segment.seqs.tolist() != wanted:
        return [f"after {cursor} it was shown {_around(segment.seqs, array('q', wanted))}"]
    digests, head = facts.record.digests, len(facts.record.digests)
    for seq, digest in zip(segment.seqs, segment.digests, strict=True):
        if seq > head or digests[seq - 1] != digest:
            return [f"event {seq} is not as it is in the log"]
    for count, upto in segment.delivered:
        known = segment.seqs[count - 1] if count else cursor
        if missed := between(known, upto):
            return [f"it was told that all up to {upto} was delivered, without {missed[:5]}"]
    return []


def p10_no_silent_gap(facts: Facts) -> Verdict:
    wrong: list[str] = []
    resets: Counter[str] = Counter()
    for reading in facts.record.readings:
        for segment in reading.segments:
            wanted = ""
            if segment.log_id not in (None, segment.told_log_id) and segment.after is not None:
                wanted = "other_log"
            elif segment.after is not None and segment.after > segment.told_head:
                wanted = "ahead"
            told = segment.reset[0] if segment.reset else ""
            has_more = bool(segment.seqs or segment.delivered)  # it may have left before it was told
            resets[told] += bool(told)
            if told != wanted and (told or has_more):
                wrong.append(f"{reading.name} asked for {segment.after} and was told {told!r} instead of {wanted!r}")
    return Verdict(f"{sum(resets.values())} resets", wrong)


def p11_slow_readers_lose_nothing(facts: Facts) -> Verdict:
    """A reader that stalled, and came back each time, heard all of it."""
    stalled = [reading for reading in facts.record.readings if reading.stalls]
    head = len(facts.log)
    wrong = [
        f"{reading.name} stalled {reading.stalls} times and heard only a part"
        for reading in stalled
        if reading.is_faithful and (not reading.segments or (reading.segments[-1].cursor or 0) < head)
    ]
    return Verdict(f"{sum(reading.stalls for reading in stalled)} stalls of {len(stalled)} readers", wrong)


def p12_streamed_text_is_exact(facts: Facts) -> Verdict:
    readings = facts.record.readings
    wrong = [each for reading in readings for each in reading.wrong_texts]
    return Verdict(f"{sum(reading.texts for reading in readings)} streamed parts were as in the log", wrong)


def p13_crashes_are_decided(facts: Facts) -> Verdict:
    record = facts.record
    kills = [life.ended for life in record.lives if life.how == "killed"]
    wrong = [f"process {each} outlived its server" for life in record.lives for each in life.survivors]
    resumed = 0
    for run_id, run in facts.newest.items():
        resumed += run.attempt > 1
        since = facts.first_sent.get(run_id, 0.0)
        crashes = sum(at >= since for at in kills)
        has_stopped = any(life.ended >= since for life in record.lives)
        if run.attempt > min(MAX_ATTEMPTS, 1 + crashes):
            wrong.append(f"{run_id} was started {run.attempt} times, with {crashes} crashes")
        _, end = facts.ends.get(run_id, (0, None))
        attempts = max(facts.newest[mate].attempt for mate in facts.mates(run_id))  # one that joined has no own ones
        is_worn_out = has_stopped if run.kind == "shell" else attempts == MAX_ATTEMPTS  # a command is not repeated
        if end is not None and end.code == "interrupted" and not is_worn_out:
            wrong.append(f"{run_id} was given up after {run.attempt} attempts")
    interrupted = 0
    for message in facts.messages.values():
        interrupted += any(
            isinstance(part, ToolResult) and INTERRUPTED in (part.metadata or {}) for part in message.parts
        )
    for run_id, work in record.works.items():
        state = facts.states.get(run_id)
        if work.mark and record.marks[work.mark] and run_id not in facts.accepted:
            wrong.append(f"{run_id} was not accepted, and its command ran ({state})")
    return Verdict(f"{len(kills)} kills, {resumed} runs resumed, {interrupted} calls interrupted", wrong)


def p14_people_are_asked_durably(facts: Facts) -> Verdict:
    wrong: list[str] = []
    replies: dict[str, list[Reply]] = defaultdict(list)
    for reply in facts.record.replies:
        replies[reply.request_id].append(reply)
        known = facts.requests.get(reply.request_id)
        if known is None and reply.asked.status not in (None, 404, 503):
            wrong.append(f"{reply.request_id} was never asked, and answered {reply.asked.status}")
        if known is not None and reply.asked.status not in (None, 200, 503):
            wrong.append(f"an answer to {reply.request_id} got {reply.asked.status} {reply.asked.code}")
    for request_id in facts.requests:
        answers, told = replies[request_id], facts.resolutions.get(request_id)
        if told is None:
            wrong.append(f"{request_id} was never resolved")
            continue
        winners = [reply for reply in answers if reply.resolved]
        if len(winners) > 1:
            wrong.append(f"{request_id} was answered {len(winners)} times: {[reply.by for reply in winners]}")
        wrong += [
            f"{request_id}: {reply.client} heard {reply.told} by {reply.by}, the log has {told.action} by {told.by}"
            for reply in answers
            if reply.asked.status == 200 and (reply.by, reply.told) != (told.by, told.action)
        ]
    wrong += [f"{request_id} is pending, and nobody waits" for request_id in facts.record.final.pending]
    by = Counter(resolution.by for resolution in facts.resolutions.values())
    counts = ", ".join(f"{count} by {name}" for name, count in by.most_common())
    return Verdict(f"{len(facts.requests)} requests, resolved: {counts or 'none'}", wrong)


def p15_the_way_out_is_orderly(facts: Facts) -> Verdict:
    record = facts.record
    left = [life for life in record.lives if life.how == "told to leave"]
    wrong = [f"a server left with {life.exit_code}" for life in left if life.exit_code != 0]
    for asked in record.refused:
        is_leaving = any(life.told_at <= asked.ended and asked.began <= life.ended for life in left)
        if not asked.has_retry_after:
            wrong.append(f"a 503 ({asked.code}) says nothing about when to come back")
        if not is_leaving or asked.code != "shutting_down":
            wrong.append(f"a server that stays answered 503 {asked.code}")
    slowest = max((life.ended - life.told_at for life in left), default=0.0)
    return Verdict(f"{len(left)} servers left, {slowest:.1f} s at most; {len(record.refused)} were refused", wrong)


def snapshot_is_replay(facts: Facts) -> Verdict:
    """REST at any moment tells what the log up to that moment tells."""
    history: dict[str, list[tuple[int, int]]] = defaultdict(list)  # of each message: seq, and what it was
    sessions: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for event in facts.log:
        if isinstance(event.payload, MessageOf):
            if event.payload.id not in history:
                sessions[event.payload.session_id].append((event.seq or 0, event.payload.id))
            what = digest_of(encode(event.payload)) if is_finished(event.payload) else 0
            history[event.payload.id].append((event.seq or 0, what))
    pages = [*facts.record.pages, *facts.record.final.pages]
    wrong: list[str] = []
    for page in pages:
        wrong += _check_page(facts, page, history, sessions[page.session_id])
    known = {e.payload.session_id for e in facts.log if isinstance(e.payload, MessageOf)} - facts.deleted
    children = {run.session_id for run in facts.accepted.values() if run.parent_run_id is not None}
    gone = known - children - set(facts.record.final.sessions)
    wrong += [f"session {session_id} was not deleted, and is not listed" for session_id in gone]
    wrong += [f"session {each} is listed, and was deleted" for each in facts.deleted & set(facts.record.final.sessions)]
    return Verdict(f"{len(pages)} pages of messages", wrong)


def _check_page(
    facts: Facts, page: Page, history: dict[str, list[tuple[int, int]]], said: list[tuple[int, str]]
) -> list[str]:
    order = [message_id for seq, message_id in said if seq <= page.as_of_seq]
    if page.session_id in facts.rewritten:  # some are hidden; those that are not keep their order
        order = [message_id for message_id in order if message_id in set(page.order)]
    if list(page.order) != order:
        return [f"session {page.session_id} at {page.as_of_seq}: {len(page.order)} messages, the log has {len(order)}"]
    for message_id, digest in page.finished:
        then = [what for seq, what in history[message_id] if seq <= page.as_of_seq]
        if then[-1] != digest:
            return [f"message {message_id} at {page.as_of_seq} is not as it is in the log"]
    return []


def exit_codes_are_true(facts: Facts) -> Verdict:
    wrong: list[str] = []
    for command in facts.record.commands:
        if command.code >= 0:
            wrong += _check_command(facts, command)
    codes = Counter(str(command.code) for command in facts.record.commands)
    return Verdict(", ".join(f"{count} with {code}" for code, count in codes.most_common()) or "none", wrong)


def _check_command(facts: Facts, command: Command) -> list[str]:
    what = f"kedge run {command.run_id} left with {command.code}"
    state = facts.states.get(command.run_id)
    if state is None:
        # No run: rejected because the session was busy, or its session was deleted before, or it was ended before.
        allowed = {4} if command.is_rejecting else set[int]()
        allowed |= {2} if command.session_id in facts.deleted else set()
        allowed |= {4} if "files are being restored" in command.err else set()  # an undo is at work there
        allowed |= {128 + command.signum} if command.signum is not None else set()
        allowed |= {124} if command.timeout_s is not None else set()
        return [] if command.code in allowed else [f"{what} without a run: {command.err[-200:]!r}"]
    if "--detach" in command.args:
        is_true = command.code == 0 and command.out.strip() == command.run_id
        return [] if is_true else [f"{what}, said {command.out[-80:]!r}"]
    _, end = facts.ends[command.run_id]
    match state:
        case "completed":
            allowed = {4} if _was_refused(facts, {command.run_id}) else {0}
            allowed |= {4} if _was_refused(facts, facts.mates(command.run_id)) else set()
        case "failed":
            allowed = {1}
        case _:
            allowed = {130}
            allowed |= {143} if command.signum == signal.SIGTERM else set()
            allowed |= {124} if command.timeout_s is not None else set()
    if command.code not in allowed:
        return [f"{what}, and its run is {state} ({end.code}): {command.err[-200:]!r}"]
    text = end.text if not end.text or end.text.endswith("\n") else f"{end.text}\n"
    if command.code == 0 and command.is_plain and command.out != text:
        return [f"{what} and printed {command.out[-80:]!r} instead of {text[-80:]!r}"]
    return []


def _was_refused(facts: Facts, runs: set[str]) -> bool:
    asked = [request for request in facts.requests.values() if isinstance(request, PermissionRequest)]
    return any(
        request.run_id in runs and (told := facts.resolutions.get(request.id)) is not None and told.action == "deny"
        for request in asked
    )


def _difference(found: array[int], wanted: array[int]) -> str:
    for place, (one, other) in enumerate(zip(found, wanted, strict=False), 1):
        if one != other:
            return f"event {place} differs"
    return f"{len(found)} events instead of {len(wanted)}"


def _around(found: array[int], wanted: array[int]) -> str:
    for place, (one, other) in enumerate(zip(found, wanted, strict=False)):
        if one != other:
            return f"{one} where {other} comes, after {found[max(0, place - 3) : place].tolist()}"
    return f"{len(found)} events instead of {len(wanted)}"


CHECKS: list[Check] = [
    *OF_RUNS,
    p9_one_story_for_everyone,
    p10_no_silent_gap,
    p11_slow_readers_lose_nothing,
    p12_streamed_text_is_exact,
    p13_crashes_are_decided,
    p14_people_are_asked_durably,
    p15_the_way_out_is_orderly,
    snapshot_is_replay,
    exit_codes_are_true,
]
