"""A session's state from events and reads: growing text, calls with results, runs that fail without a message."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec
import pytest

from kedge.client.errors import Dropped
from kedge.protocol.events import AgentEvent, Change, Event, FileChange, Payload
from kedge.protocol.messages import (
    Delta,
    Finish,
    Message,
    Part,
    Reasoning,
    Role,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
)
from kedge.protocol.requests import PermissionRequest, RequestResolution
from kedge.protocol.runs import Run, RunEnd, Usage
from kedge.protocol.sessions import Session
from kedge.tui.state.block_builder import build_blocks
from kedge.tui.state.blocks import (
    Block,
    CallBlock,
    EndBlock,
    NoteBlock,
    PromptBlock,
    ReasoningBlock,
    ShellBlock,
    TextBlock,
)
from kedge.tui.state.workspace import RequestResolved, RunEnded, StateChange, StepEnded, WorkspaceState

SESSION = Session(id="s", title="t", created_at=1, updated_at=1)


class Log:
    """UiDriver events to a book as a server would, each with its seq."""

    def __init__(self) -> None:
        self.happened: list[StateChange] = []
        self.workspace = WorkspaceState(self.happened.append)
        self.seq = 0
        self.tell("session", SESSION)
        self.session = self.workspace.open_session("s")
        self.session.read([], 1)

    def tell(self, type: str, payload: Payload, change: Change = "created", *, is_live: bool = False) -> None:
        self.seq += not is_live
        self.workspace.take(Event(type, None if is_live else self.seq, change, payload))

    def run(self, run_id: str, state: str, prompt: str = "do it", **fields: object) -> None:
        run = Run(
            run_id=run_id,
            session_id="s",
            kind="prompt",
            state=state,  # pyright: ignore[reportArgumentType]
            prompt=prompt,
            on_busy="queue",
            permissions="ask",
            model=None,
            attempt=1,
            cancel_requested=False,
            seq=self.seq,
        )
        self.tell("run", msgspec.structs.replace(run, **fields))

    def message(self, id: str, role: Role, parts: Iterable[Part], *, run_id: str = "r", is_live: bool = False) -> None:
        message = Message(id=id, session_id="s", run_id=run_id, role=role, parts=list(parts), created_at=1.0)
        self.tell("message", message, is_live=is_live)

    def delta(self, id: str, part: int, offset: int, text: str, kind: str = "text", run_id: str = "r") -> None:
        self.tell("message_delta", Delta(id, "s", run_id, part, kind, offset, text), is_live=True)  # pyright: ignore[reportArgumentType]

    def end(self, run_id: str = "r", **fields: object) -> None:
        end = RunEnd(session_id="s", run_id=run_id, message_id=None, text="", usage=Usage())
        self.tell("run_complete", msgspec.structs.replace(end, **fields))

    @property
    def blocks(self) -> list[Block]:
        return build_blocks(self.session)


@pytest.fixture
def log() -> Log:
    return Log()


def texts(blocks: Iterable[Block]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, TextBlock)]


def test_text_grows_with_deltas_and_an_overlap_is_dropped(log: Log) -> None:
    log.run("r", "running")
    log.message("m", "assistant", [])
    log.delta("m", 0, 0, "Hello")
    log.delta("m", 0, 3, "lo wörld")
    assert texts(log.blocks) == ["Hello wörld"]
    with pytest.raises(Dropped):
        log.delta("m", 0, 50, "far")


def test_the_whole_message_completes_the_deltas(log: Log) -> None:
    log.run("r", "running")
    log.message("m", "assistant", [])
    log.delta("m", 0, 0, "Hel")
    log.message("m", "assistant", [Text("Hello"), Finish("end_turn")])
    (words,) = [block for block in log.blocks if isinstance(block, TextBlock)]
    assert (words.text, words.is_open) == ("Hello", False)


@pytest.mark.parametrize("seed", range(20))
def test_repeated_and_split_deltas_give_the_same_text(log: Log, seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("aé你😀 \n") for _ in range(200))
    log.run("r", "running")
    log.message("m", "assistant", [])
    at = 0
    while at < len(text):
        start, stop = rng.randint(0, at), min(len(text), at + rng.randint(1, 20))
        if rng.random() < 0.2:
            log.message("m", "assistant", [Text(text[:at])], is_live=True)  # a snapshot after a reconnect
        log.delta("m", 0, start, text[start:stop])
        at = max(at, stop)
    assert texts(log.blocks) == [text]


def test_a_block_that_did_not_change_is_the_same_block(log: Log) -> None:
    log.run("a", "running", "one")
    log.message("m1", "user", [Text("one")], run_id="a")
    log.message("m2", "assistant", [Text("1"), Finish("end_turn")], run_id="a")
    log.end("a", message_id="m2", text="1")
    log.run("r", "running", "two")
    log.message("m3", "user", [Text("two")])
    before = log.blocks
    log.message("m4", "assistant", [])
    log.delta("m4", 0, 0, "2")
    after = log.blocks
    assert [id(block) for block in after[:3]] == [id(block) for block in before[:3]]
    log.delta("m4", 0, 1, "!")
    assert after[-1].key == log.blocks[-1].key
    assert after[-1].revision != log.blocks[-1].revision


def test_a_call_goes_from_written_to_done(log: Log) -> None:
    def state() -> str:
        (call,) = [block for block in log.blocks if isinstance(block, CallBlock)]
        return call.state

    log.run("r", "running")
    log.message("m", "assistant", [ToolCall("c", "bash", "", finished=False)], is_live=True)
    log.delta("m", 0, 0, '{"command"', "tool_input")
    assert state() == "writing"
    log.message("m", "assistant", [ToolCall("c", "bash", '{"command": "ls"}', finished=True), Finish("tool_use")])
    assert state() == "waiting"
    request = PermissionRequest(
        id="p", session_id="s", run_id="r", tool_call_id="c", tool="bash", action="execute", description="d", params={}
    )
    log.tell("permission_request", request)
    assert state() == "asking"
    assert log.workspace.requests_of("s") == [request]
    resolution = RequestResolution(id="p", session_id="s", run_id="r", tool_call_id="c", action="allow", by="phone")
    log.tell("permission_notification", resolution)
    assert state() == "waiting"
    assert log.happened[-2:] == [request, RequestResolved(request, "phone", "allow")]
    log.message("t", "tool", [ToolResult("c", "bash", "", False)], is_live=True)
    log.delta("t", 0, 0, "printed", "tool_output")
    (call,) = [block for block in log.blocks if isinstance(block, CallBlock)]
    assert (call.state, call.output) == ("running", "printed")
    log.message("t", "tool", [ToolResult("c", "bash", "the result", False), Finish("end_turn")])
    (call,) = [block for block in log.blocks if isinstance(block, CallBlock)]
    assert (call.state, call.output) == ("done", "the result")


@pytest.mark.parametrize(
    ("metadata", "shown"),
    [
        ({"denied": "phone"}, "You denied this command."),
        ({"refused": "rule", "rule": "bash(rm *)"}, "Denied by the rule bash(rm *)."),
        ({"refused": "mode"}, "Not allowed in plan mode."),
        ({"refused": "a reason of tomorrow"}, "for the model"),
        ({"summary": "There is no file x."}, "There is no file x."),
        ({"shown_chars": 3}, "for"),
        ({"summary": "Canceled.", "shown_chars": 3}, "for\nCanceled."),
        ({}, "for the model"),
    ],
)
def test_a_failed_call_shows_a_sentence_for_people(log: Log, metadata: dict[str, str], shown: str) -> None:
    log.run("r", "running")
    log.message("m", "assistant", [ToolCall("c", "bash", '{"command": "ls"}', finished=True), Finish("tool_use")])
    log.message("t", "tool", [ToolResult("c", "bash", "for the model", True, metadata), Finish("end_turn")])
    (call,) = [block for block in log.blocks if isinstance(block, CallBlock)]
    assert (call.state, call.output) == ("failed", shown)


def test_a_run_that_failed_before_its_first_message_shows_its_prompt_and_its_error(log: Log) -> None:
    log.run("r", "queued")
    log.run("r", "failed")
    log.tell("agent_event", AgentEvent(type="error", run_id="r", session_id="s", error="no model"))
    log.end(error="no model")
    assert [type(block) for block in log.blocks] == [PromptBlock, NoteBlock]
    assert [block.text for block in log.blocks if isinstance(block, PromptBlock | NoteBlock)] == ["do it", "no model"]
    assert isinstance(log.happened[-1], RunEnded)


def test_the_queue_is_in_the_order_of_acceptance_and_leaves_with_its_runs(log: Log) -> None:
    log.run("r", "running")
    log.run("b", "queued", "second")
    log.run("a", "queued", "first", seq=1)
    assert [run.prompt for run in log.session.queue] == ["first", "second"]
    assert log.session.is_busy
    for run_id in ("r", "a", "b"):
        log.run(run_id, "cancelled")
        log.end(run_id, cancelled=True)
    assert not log.session.is_busy
    assert not log.workspace.runs


def test_a_prompt_removed_from_the_queue_is_not_shown(log: Log) -> None:
    log.run("r", "queued")
    log.run("r", "cancelled")
    log.end("r", cancelled=True)
    assert log.blocks == []


def test_reasoning_and_an_interrupted_attempt_differ_from_the_answer(log: Log) -> None:
    log.run("r", "running")
    log.message("m1", "assistant", [Text("half"), Finish("interrupted")])
    log.message("m2", "assistant", [Reasoning("hm"), Text("whole"), Finish("end_turn")])
    log.end(message_id="m2", text="whole")
    first, thoughts, second, end = log.blocks
    assert isinstance(first, TextBlock)
    assert first.is_interrupted
    assert isinstance(thoughts, ReasoningBlock)
    assert isinstance(second, TextBlock)
    assert not second.is_interrupted
    assert isinstance(end, EndBlock)


def test_a_sub_agents_blocks_are_below_its_call(log: Log) -> None:
    log.run("r", "running")
    log.message("m", "assistant", [ToolCall("c", "agent", '{"prompt": "look"}', finished=True), Finish("tool_use")])
    log.tell("session", Session(id="child", title="", created_at=1, updated_at=1, parent_session_id="s"))
    log.run("r2", "running", "look", session_id="child", parent_run_id="r", kind="agent")
    message = Message(id="m2", session_id="child", run_id="r2", role="assistant", parts=[Text("seen")], created_at=1.0)
    log.tell("message", message)
    (call,) = [block for block in log.blocks if isinstance(block, CallBlock)]
    assert texts(call.child) == ["seen"]
    before = call.revision
    log.tell("message_delta", Delta("m2", "child", "r2", 0, "text", 4, " more"), is_live=True)
    (call,) = [block for block in log.blocks if isinstance(block, CallBlock)]
    assert texts(call.child) == ["seen more"]
    assert call.revision != before


def test_events_older_than_a_read_are_ignored(log: Log) -> None:
    whole = Message(
        id="m", session_id="s", run_id="r", role="assistant", parts=[Text("read"), Finish("end_turn")], created_at=1.0
    )
    log.session.read([whole], as_of=100)
    log.message("m", "assistant", [])  # an old event: its seq is below
    assert texts(log.blocks) == ["read"]


def test_undone_messages_are_gone_after_the_next_read(log: Log) -> None:
    log.run("r", "completed")
    log.message("m", "assistant", [Text("undone"), Finish("end_turn")])
    log.session.read([], as_of=log.seq)
    assert texts(log.blocks) == []
    log.message("n", "assistant", [Text("new"), Finish("end_turn")])
    log.session.read([], as_of=log.seq - 1)  # read before it was told
    assert texts(log.blocks) == ["new"]


def test_a_deleted_message_is_gone(log: Log) -> None:
    log.run("r", "completed")
    log.message("m", "assistant", [Text("gone"), Finish("end_turn")])
    message = Message(id="m", session_id="s", run_id="r", role="assistant", parts=[], created_at=1.0)
    log.tell("message", message, "deleted")
    assert texts(log.blocks) == []


def test_a_shell_command_shows_its_output_and_then_its_exit_code(log: Log) -> None:
    def shell() -> ShellBlock:
        (block,) = [block for block in log.blocks if isinstance(block, ShellBlock)]
        return block

    log.run("r", "running")
    log.message("m", "user", [ShellCommand("make", "", None)])  # as the log has it: begun, and not whole
    assert (shell().command, shell().output, shell().is_open) == ("make", "", True)
    log.delta("m", 0, 0, "compiling\n", "tool_output")
    assert (shell().output, shell().is_open) == ("compiling\n", True)
    log.message("m", "user", [ShellCommand("make", "compiling", 2)])
    assert (shell().output, shell().exit_code, shell().is_open) == ("compiling", 2, False)
    log.end(message_id="m")
    assert not [block for block in log.blocks if isinstance(block, EndBlock)], "no model was asked: nothing to count"


def notes(blocks: Iterable[Block]) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in blocks if isinstance(block, NoteBlock)]


def test_a_summary_is_told_once_and_a_failed_attempt_is_none(log: Log) -> None:
    log.run("r", "running", "", kind="summarize")
    log.tell("agent_event", AgentEvent(type="summarize", run_id="r", session_id="s", message="Summarizing."))
    assert notes(log.blocks) == [("info", "Summarizing.")]
    summary = Message(id="m", session_id="s", run_id="r", role="assistant", parts=[], created_at=1.0, summary=True)
    log.tell("message", summary)
    ((kind, text),) = notes(log.blocks)
    assert (kind, text[-1]) == ("summary", "…"), "it is not done yet"
    log.tell("message", msgspec.structs.replace(summary, parts=[Finish("interrupted", "too long")]))
    assert notes(log.blocks) == []
    done = msgspec.structs.replace(summary, id="m2", parts=[Text("All."), Finish("end_turn")])
    log.tell("message", done)
    ((kind, text),) = notes(log.blocks)
    assert (kind, text[-1]) == ("summary", "d")


def retry(number: int, error: str = "429 Too Many Requests") -> AgentEvent:
    details = {"attempt": number, "of": 5, "delay_s": 2.0}
    return AgentEvent(type="retry", run_id="r", session_id="s", error=error, details=details)


def test_retries_are_one_line_that_counts_before_the_answer_that_they_preceded(log: Log) -> None:
    log.run("r", "running")
    log.message("u", "user", [Text("do it")])
    log.message("m", "assistant", [])
    log.tell("agent_event", retry(2))
    log.tell("agent_event", retry(3))
    (prompt, note) = log.blocks
    assert isinstance(prompt, PromptBlock)
    assert isinstance(note, NoteBlock)
    assert "2 s" in note.text
    assert "3 of 5" in note.text
    assert "3 of 5" in (log.session.describe_wait() or "")
    pending = note.revision
    log.delta("m", 0, 0, "The answer")
    assert [type(block) for block in log.blocks] == [PromptBlock, NoteBlock, TextBlock]
    note = log.blocks[1]
    assert isinstance(note, NoteBlock)
    assert "2 times" in note.text
    assert note.revision != pending
    assert log.session.describe_wait() is None
    log.message("m", "assistant", [Text("The answer"), Finish("tool_use")])
    log.message("m2", "assistant", [])
    log.tell("agent_event", retry(2))
    log.message("m2", "assistant", [Text("More"), Finish("end_turn")])
    log.end()
    assert [type(block) for block in log.blocks][1:5] == [NoteBlock, TextBlock, NoteBlock, TextBlock]


def test_a_download_is_one_line_with_its_percentage(log: Log) -> None:
    log.run("r", "running")
    log.message("u", "user", [Text("do it")])
    for done in (0, 20, 45):
        details = {"done_bytes": done, "total_bytes": 100}
        event = AgentEvent(type="notice", run_id="r", session_id="s", message="Downloading", details=details)
        log.tell("agent_event", event)
    ((_, text),) = notes(log.blocks)
    assert "45 %" in text
    assert "45 %" in (log.session.describe_wait() or "")
    log.message("m", "assistant", [Text("Hi"), Finish("end_turn")])
    assert notes(log.blocks) == [("info", "Downloading")]


def test_a_rejected_key_is_what_the_session_waits_for_until_it_goes_on(log: Log) -> None:
    log.run("r", "running")
    log.tell("agent_event", AgentEvent(type="re_authenticate", run_id="r", session_id="s", provider_id="harbour"))
    assert log.session.rejected_provider == "harbour"
    assert log.workspace.list_asking() == ["s"]
    assert log.workspace.state_of("s") == "asking"
    log.tell("agent_event", retry(2))
    assert log.session.rejected_provider is None
    assert (log.workspace.list_asking(), log.workspace.state_of("s")) == ([], "running")


def test_a_step_that_used_tokens_is_reported(log: Log) -> None:
    log.run("r", "running")
    log.message("m", "assistant", [Text("Hi"), Finish("tool_use", usage=Usage(10, 2))])
    assert StepEnded("s") in log.happened


def test_a_result_that_was_read_is_done_unless_it_is_only_announced(log: Log) -> None:
    def calls() -> dict[str, str]:
        return {block.key.partition(":")[2]: block.state for block in log.blocks if isinstance(block, CallBlock)}

    log.run("r", "running")
    parts: list[Part] = [ToolCall("a", "bash", "{}", True), ToolCall("b", "bash", "{}", True), Finish("tool_use")]
    log.message("m", "assistant", parts)
    log.message("ta", "tool", [ToolResult("a", "bash", "", False)])
    log.message("ta", "tool", [ToolResult("a", "bash", "said", False)])
    log.message("tb", "tool", [ToolResult("b", "bash", "", False)])
    assert calls() == {"a": "done", "b": "running"}
    stored: list[tuple[str, Role, list[Part]]] = [
        ("m", "assistant", parts),
        ("ta", "tool", [ToolResult("a", "bash", "said", False)]),
        ("tb", "tool", [ToolResult("b", "bash", "", False)]),
    ]
    fresh = WorkspaceState(log.happened.append).open_session("s")
    for session in (log.session, fresh):
        session.read([_message(*each) for each in stored], 99)
    states = {block.key.partition(":")[2]: block.state for block in build_blocks(fresh) if isinstance(block, CallBlock)}
    assert states == {"a": "done", "b": "running"}
    assert calls() == {"a": "done", "b": "running"}


def _message(id: str, role: Role, parts: list[Part]) -> Message:
    return Message(id=id, session_id="s", run_id="r", role=role, parts=parts, created_at=0)


def test_an_event_during_a_read_is_newer_than_the_read_and_older_than_the_next(log: Log) -> None:
    log.workspace.begin_reading()
    renamed = msgspec.structs.replace(SESSION, title="renamed")
    log.tell("session", renamed, "updated")
    log.workspace.read_sessions([SESSION])
    assert log.workspace.sessions["s"].title == "renamed"
    log.workspace.end_reading()
    log.workspace.read_sessions([SESSION])
    assert log.workspace.sessions["s"].title == SESSION.title


def test_changed_files_are_kept_for_open_sessions_only(log: Log) -> None:
    for session_id in ("s", "elsewhere"):
        log.tell("file", FileChange(session_id, "r", "notes.txt", 1, 3, 2))
    assert [*log.session.files] == ["notes.txt"]
    assert "elsewhere" not in log.workspace.open_sessions
