"""What must be true of every log, whatever happened: plain functions over decoded events, from seq 1 on.

`check_log` is all of them; `check_all_ended` is for a log after which nothing is open any more. Each raises an
`AssertionError` that names the run and the seq.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from kedge.protocol.events import AgentEvent, Event, FileChange
from kedge.protocol.messages import (
    Finish,
    Message,
    MessageOf,
    ShellCommand,
    ToolCall,
    ToolResult,
    answer_of,
    finish_of,
    text_of,
)
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.protocol.runs import Run, RunEnd
from kedge.protocol.sessions import Session

Log = Sequence[Event]

OF_A_RUN = (Run, MessageOf, RunEnd, AgentEvent, PermissionRequest, QuestionRequest, RequestResolution, FileChange)


def check_log(log: Log) -> None:
    """Everything that holds at any moment, also in the middle of a run or after a crash."""
    for check in CHECKS:
        check(log)


def check_all_ended(log: Log) -> None:
    """P2: every run that was accepted has its end."""
    missing = runs_of(log) - ends_of(log).keys()
    assert not missing, f"accepted and never ended: {sorted(missing)}"


# What a log is made of.


def run_events(log: Log) -> list[tuple[int, Run]]:
    return [(_seq(event), event.payload) for event in log if isinstance(event.payload, Run)]


def message_events(log: Log) -> list[tuple[int, Message]]:
    return [(_seq(event), event.payload) for event in log if isinstance(event.payload, MessageOf)]


def runs_of(log: Log) -> set[str]:
    return {run.run_id for _, run in run_events(log)}


def ends_of(log: Log) -> dict[str, RunEnd]:
    return {event.payload.run_id: event.payload for event in log if isinstance(event.payload, RunEnd)}


def final_messages(log: Log) -> dict[str, Message]:
    """Every message as its newest event shows it, in the order of creation."""
    return {message.id: message for _, message in message_events(log)}


def state_of(end: RunEnd) -> str:
    if end.cancelled:
        return "cancelled"
    return "completed" if end.error is None else "failed"


# The checks.


def check_seq_is_contiguous(log: Log) -> None:
    """seq counts 1, 2, 3, … without gaps (P9)."""
    for place, event in enumerate(log, 1):
        assert event.seq == place, f"event {place} of the log has seq {event.seq}"


def check_one_end(log: Log) -> None:
    """P2: at most one `run_complete` a run; nothing of the run comes after it, and its `run` event right before it."""
    ended: set[str] = set()
    for place, event in enumerate(log):
        run_id = _run_id(event)
        assert run_id is None or run_id not in ended, f"seq {event.seq}: {event.type} of run {run_id} after its end"
        if not isinstance(event.payload, RunEnd):
            continue
        ended.add(event.payload.run_id)
        told = log[place - 1].payload if place else None
        assert isinstance(told, Run), f"seq {event.seq}: no run event right before run_complete"
        assert told.run_id == event.payload.run_id, f"seq {event.seq}: another run's event before this run_complete"
        assert told.state == state_of(event.payload), f"seq {event.seq}: {told.state}, but {event.payload}"


def check_states(log: Log) -> None:
    """queued → running → one end; attempts and cancels only grow; a cancelled run ends cancelled (P6)."""
    known: dict[str, Run] = {}
    for seq, run in run_events(log):
        before = known.get(run.run_id)
        known[run.run_id] = run
        where = f"seq {seq}: run {run.run_id}"
        assert run.waiting is None or run.state == "running", f"{where} is {run.state} and waits"
        if before is None:
            assert run.state == "queued", f"{where} begins as {run.state}"
            assert run.seq == seq, f"{where} says it was accepted at {run.seq}"
            continue
        assert before.state in ("queued", "running"), f"{where} goes on after {before.state}"
        assert run.state != "queued" or before.state == "queued", f"{where} is queued again"
        assert (before.state, run.state) not in (("queued", "completed"), ("queued", "failed")), f"{where} never ran"
        assert run.attempt >= before.attempt, f"{where} counts attempts backwards"
        assert run.seq == before.seq, f"{where} changed its place"
        assert run.cancel_requested or not before.cancel_requested, f"{where} forgot its cancel"
        if run.cancel_requested:
            assert run.state in ("running", "cancelled"), f"{where} was cancelled and is {run.state}"


def check_one_turn_at_a_time(log: Log) -> None:
    """P5: no two turns of a session run at once (joined runs are part of their host's turn)."""
    active: dict[str, str] = {}
    for seq, run in run_events(log):
        if run.merged_into is not None:
            if run.state == "running":
                host = active.get(run.session_id)
                assert host == run.merged_into, f"seq {seq}: {run.run_id} joined {run.merged_into}, but {host} runs"
            continue
        if run.state == "running":
            other = active.setdefault(run.session_id, run.run_id)
            assert other == run.run_id, f"seq {seq}: run {run.run_id} starts while {other} runs"
        elif active.get(run.session_id) == run.run_id:
            del active[run.session_id]


def check_order_of_turns(log: Log) -> None:
    """P5: of the runs that wait, the first in the queue starts first."""
    queued: dict[str, Run] = {}
    for seq, run in run_events(log):
        if run.state == "queued":
            queued[run.run_id] = run
            continue
        started = queued.pop(run.run_id, None)
        if started is None or run.state != "running" or run.merged_into is not None:
            continue
        ahead = [
            other.run_id
            for other in queued.values()
            if other.session_id == run.session_id and other.queue_place < started.queue_place
        ]
        assert not ahead, f"seq {seq}: run {run.run_id} starts before {ahead}"


def check_steered_join_their_turn(log: Log) -> None:
    """P5: a run joins the turn that it found, or the first one after it; once a turn has ended, it is queued."""
    accepted: dict[str, int] = {}
    last_end: dict[str, int] = {}
    for seq, run in run_events(log):
        if run.state == "queued":
            accepted[run.run_id] = seq  # or promoted
            continue
        if run.merged_into is None:
            if run.state in ("completed", "failed", "cancelled") and run.attempt > 0:
                last_end[run.session_id] = seq
        elif run.state == "running":
            assert run.on_busy == "steer", f"seq {seq}: run {run.run_id} joined, but asked for {run.on_busy}"
            ended = last_end.get(run.session_id, 0)
            assert ended < accepted[run.run_id], f"seq {seq}: {run.run_id} joined after a turn had ended, at {ended}"


def check_errors_name_their_run(log: Log) -> None:
    """P8: a failed run has exactly one `error` event, with the same text, before its end; no other run has one."""
    errors: dict[str, list[AgentEvent]] = {}
    for event in log:
        match event.payload:
            case AgentEvent(type="error") as told:
                errors.setdefault(told.run_id, []).append(told)
            case RunEnd() as end:
                told = errors.pop(end.run_id, [])
                assert not (end.error is not None and end.cancelled), f"run {end.run_id}: an error and a cancel"
                wanted = [] if end.error is None else [(end.session_id, end.error, end.code)]
                found = [(error.session_id, error.error, error.code) for error in told]
                assert found == wanted, f"run {end.run_id} ended with {wanted}, but its errors were {found}"
            case _:
                pass
    assert not errors, f"errors of runs that did not end: {errors}"


def check_messages_only_grow(log: Log) -> None:
    """P12: a finished part never changes, and a finished message not at all."""
    known: dict[str, Message] = {}
    for seq, message in message_events(log):
        before = known.get(message.id)
        known[message.id] = message
        if before is None:
            continue
        where = f"seq {seq}: message {message.id}"
        assert not is_finished(before), f"{where} changes after its finish"
        kept = [part for part in before.parts if not _is_opening(part)]
        assert message.parts[: len(kept)] == kept, f"{where} takes parts back"


def check_record_is_whole(log: Log) -> None:
    """P7: at a run's end its messages are finished, every call has one result, and its requests are resolved."""
    messages: dict[str, Message] = {}
    begun: set[str] = set()  # tool messages without their result
    pending: dict[str, str] = {}
    for event in log:
        match event.payload:
            case MessageOf() as message:
                messages[message.id] = message
                begun.discard(message.id)
                if event.change == "created" and not is_finished(message):
                    begun.add(message.id)
            case PermissionRequest() | QuestionRequest() as request:
                assert request.id not in pending, f"seq {event.seq}: request {request.id} is asked twice"
                pending[request.id] = request.run_id
            case RequestResolution() as resolution:
                asked_by = pending.pop(resolution.id, None)
                assert asked_by == resolution.run_id, f"seq {event.seq}: {resolution.id} is resolved, but not pending"
            case RunEnd() as end:
                ours = [message for message in messages.values() if message.run_id == end.run_id]
                _check_whole(end, ours)
                unfinished = [message.id for message in ours if message.role == "tool" and message.id in begun]
                assert not unfinished, f"run {end.run_id} ended with unfinished calls {unfinished}"
                left = [request_id for request_id, run_id in pending.items() if run_id == end.run_id]
                assert not left, f"run {end.run_id} ended with pending requests {left}"
            case _:
                pass


def check_ends_tell_the_answer(log: Log) -> None:
    """`run_complete` carries the text of the message that it names, the run's (or its host's) last word."""
    messages: dict[str, Message] = {}
    hosts: dict[str, str] = {}
    for event in log:
        match event.payload:
            case MessageOf() as message:
                messages[message.id] = message
            case Run(merged_into=str() as host) as run:
                hosts[run.run_id] = host
            case RunEnd() as end:
                _check_answer(end, messages, hosts.get(end.run_id, end.run_id))
            case _:
                pass


def check_user_messages(log: Log) -> None:
    """P7: a run's prompt becomes a message once, when it starts or joins; one dropped from the queue leaves none."""
    prompts = {run.run_id: run.prompt for _, run in run_events(log)}
    has_started = {run.run_id for _, run in run_events(log) if run.state == "running"}
    written = Counter(m.run_id for m in final_messages(log).values() if m.role == "user")
    anything = Counter(m.run_id for m in final_messages(log).values())
    # What a fork begins with was said elsewhere, in runs of another session.
    forks = {e.payload.id for e in log if isinstance(e.payload, Session) and e.payload.title.endswith(" (fork)")}
    for message in final_messages(log).values():
        if message.session_id in forks and message.run_id not in prompts:
            continue
        if message.role == "user":
            assert _prompt_of(message) == prompts[message.run_id], f"run {message.run_id}: another prompt"
    ends = ends_of(log)
    for run_id, prompt in prompts.items():
        assert written[run_id] <= 1, f"run {run_id} has {written[run_id]} user messages"
        is_dropped = run_id in ends and ends[run_id].message_id is None and run_id not in has_started
        if is_dropped:
            assert anything[run_id] == 0, f"run {run_id} was dropped and left messages"
        elif prompt and run_id in ends:
            assert written[run_id] == 1, f"run {run_id} has no user message"


def check_joined_end_together(log: Log) -> None:
    """P5: joined runs and their host end in one piece: host first, then by acceptance, with the same end."""
    accepted = {run.run_id: run.seq for _, run in run_events(log)}
    hosts = {run.run_id: run.merged_into for _, run in run_events(log) if run.merged_into is not None}
    ends = [event.payload for event in log if isinstance(event.payload, RunEnd)]
    places = {end.run_id: place for place, end in enumerate(ends)}
    for host in sorted(set(hosts.values()) & places.keys()):
        members = [run_id for run_id, other in hosts.items() if other == host]
        wanted = [host, *sorted(members, key=lambda run_id: accepted[run_id])]
        turn = ends[places[host] : places[host] + len(wanted)]
        assert [end.run_id for end in turn] == wanted, f"turn of {host} ended as {turn}, not as {wanted}"
        kinds = {(end.message_id, end.text, end.error, end.code, end.cancelled) for end in turn}
        assert len(kinds) == 1, f"runs of one turn ended differently: {turn}"
    early = [run_id for run_id, host in hosts.items() if run_id in places and host not in places]
    assert not early, f"joined runs ended without their host: {early}"


def check_children_end_first(log: Log) -> None:
    """P5: a sub-agent's run begins while its parent runs, and ends before it."""
    states: dict[str, str] = {}
    children: dict[str, set[str]] = {}
    for seq, run in run_events(log):
        if run.parent_run_id is not None and run.run_id not in states:
            assert states.get(run.parent_run_id) == "running", f"seq {seq}: the parent of {run.run_id} does not run"
            children.setdefault(run.parent_run_id, set()).add(run.run_id)
        states[run.run_id] = run.state
        if run.state in ("queued", "running"):
            continue
        left = [child for child in children.get(run.run_id, ()) if states[child] in ("queued", "running")]
        assert not left, f"seq {seq}: run {run.run_id} ended before its sub-agents {left}"


CHECKS: list[Callable[[Log], None]] = [
    check_seq_is_contiguous,
    check_one_end,
    check_states,
    check_one_turn_at_a_time,
    check_order_of_turns,
    check_steered_join_their_turn,
    check_errors_name_their_run,
    check_messages_only_grow,
    check_record_is_whole,
    check_ends_tell_the_answer,
    check_user_messages,
    check_joined_end_together,
    check_children_end_first,
]


def check_same_story(shown: Iterable[bytes], logged: Sequence[bytes]) -> None:
    """P9: frames of log events as a client got them are, byte for byte, an unbroken piece of the log."""
    frames = list(shown)
    if not frames:
        return
    first = logged.index(frames[0])
    for place, frame in enumerate(frames, first):
        assert place < len(logged), f"shown, but not in the log: {frame!r}"
        assert frame == logged[place], f"shown as {frame!r}, logged as {logged[place]!r}"


def is_finished(message: Message) -> bool:
    """A user message comes whole, or ends with what a command said; a tool message ends with its result; an assistant
    message with its finish.
    """
    match message.role:
        case "user":
            return not any(_is_opening(part) for part in message.parts)
        case "tool":
            return any(isinstance(part, ToolResult) and not _is_opening(part) for part in message.parts)
        case "assistant":
            return finish_of(message.parts) is not None


def _check_whole(end: RunEnd, messages: list[Message]) -> None:
    calls: Counter[str] = Counter()
    results: Counter[str] = Counter()
    for message in messages:
        if message.role == "user":
            assert is_finished(message), f"run {end.run_id} ended with an unfinished command {message.id}"
        if message.role == "assistant":
            finish = finish_of(message.parts)
            assert finish is not None, f"run {end.run_id} ended with unfinished message {message.id}"
            if finish.reason != "interrupted":
                calls.update(part.id for part in message.parts if isinstance(part, ToolCall))
        finishes = [part for part in message.parts if isinstance(part, Finish)]
        assert len(finishes) <= 1, f"message {message.id} is finished twice"
        results.update(part.tool_call_id for part in message.parts if isinstance(part, ToolResult))
    assert results == calls, f"run {end.run_id} called {dict(calls)} and has results for {dict(results)}"


def _check_answer(end: RunEnd, messages: dict[str, Message], host: str) -> None:
    if end.message_id is None:
        assert end.text == "", f"run {end.run_id} has a text, and no message"
        return
    named = messages[end.message_id]
    if any(isinstance(part, ShellCommand) for part in named.parts):
        assert named.run_id == end.run_id, f"run {end.run_id} ends with a command of {named.run_id}"
        assert answer_of(named.parts) == end.text, f"run {end.run_id}: text and command differ"
        return
    assert named.role == "assistant", f"run {end.run_id} ends with a {named.role} message"
    assert named.run_id in (end.run_id, host), f"run {end.run_id} ends with a message of {named.run_id}"
    assert text_of(named.parts) == end.text, f"run {end.run_id}: text and message differ"
    finish = finish_of(named.parts)
    assert finish is not None
    assert finish.reason != "interrupted", f"run {end.run_id}: an interrupted message as the answer"
    if end.cancelled:
        assert finish.reason == "canceled", f"run {end.run_id} is cancelled, its message says {finish.reason}"
    ours = [m for m in messages.values() if m.run_id == host and m.role == "assistant" and not m.summary]
    later = [m for m in ours if (last := finish_of(m.parts)) is None or last.reason != "interrupted"]
    assert later[-1].id == end.message_id, f"run {end.run_id}: {end.message_id} is not its last message"


def _prompt_of(message: Message) -> str:
    commands = [part.command for part in message.parts if isinstance(part, ShellCommand)]
    return commands[0] if commands else text_of(message.parts)


def _is_opening(part: object) -> bool:
    """A tool message shows from the start which call it answers: an empty result that is not the result yet."""
    match part:
        case ToolResult():
            return part.content == "" and not part.is_error
        case ShellCommand():
            return part.output == "" and part.exit_code is None
        case _:
            return False


def _run_id(event: Event) -> str | None:
    return event.payload.run_id if isinstance(event.payload, OF_A_RUN) else None


def _seq(event: Event) -> int:
    assert event.seq is not None, f"a {event.type} that is not in the log"
    return event.seq
