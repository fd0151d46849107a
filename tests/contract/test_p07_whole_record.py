"""P7: a cancelled turn leaves a whole record, and the session can be continued."""

from __future__ import annotations

import pytest

from kedge.engine.turn import TurnContext
from kedge.protocol.errors import Conflict, NotFound
from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import File, Finish, Image, Text, ToolCall, finish_of, text_of
from kedge.protocol.requests import RequestResolution
from kedge.protocol.runs import Attachment, Run, RunEnd
from tests.support.harness import Kedge, place_of

PNG = b"\x89PNG\r\n\x1a\n"


async def test_cancelled_turn_keeps_its_prompt_and_what_it_said(kedge: Kedge) -> None:
    async def streaming(ctx: TurnContext) -> None:
        message = await ctx.begin_message(model="m")
        message.open(Text("")).write("this far")
        await kedge.gates.wait("never")

    kedge.turns["prompt"] = streaming
    session_id = await kedge.session()
    await kedge.send(session_id, "the prompt", "r")
    await kedge.reached("never")
    await kedge.cancel(session_id)
    end = await kedge.end("r")
    user, assistant = await kedge.messages(session_id)
    assert (user.role, user.parts) == ("user", [Text("the prompt")])
    assert (assistant.role, assistant.parts) == ("assistant", [Text("this far"), Finish("canceled")])
    assert (end.message_id, end.text) == (assistant.id, "this far")


async def test_every_call_of_a_cancelled_turn_has_a_result_and_the_session_goes_on(kedge: Kedge) -> None:
    async def calling(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        for number in range(3):
            await message.add(ToolCall(f"call-{number}", "bash", "{}", True))
        await message.finish("tool_use")
        done = await ctx.begin_tool_result(message.id, "call-0", "bash")
        await done.finish("done")
        running = await ctx.begin_tool_result(message.id, "call-1", "bash")
        running.write("half")
        await kedge.gates.wait("never")

    kedge.turns["shell"] = calling
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r", kind="shell")
    await kedge.reached("never")
    await kedge.cancel(session_id)
    await kedge.end("r")
    results = {result.tool_call_id: result for result in await kedge.results(session_id)}
    assert (results["call-0"].content, results["call-0"].is_error) == ("done", False)
    assert (results["call-1"].content.startswith("half"), results["call-1"].is_error) == (True, True)
    assert ("Not started: the run was canceled" in results["call-2"].content, results["call-2"].is_error) == (
        True,
        True,
    )

    await kedge.send(session_id, "say next", "next")
    assert (await kedge.end("next")).text == "next"
    roles = [message.role for message in await kedge.history(session_id)]
    assert roles == ["user", "assistant", "tool", "tool", "tool", "assistant", "user", "assistant"]


async def test_call_that_was_still_being_written_has_a_result_too(kedge: Kedge) -> None:
    async def writing_a_call(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        message.open(ToolCall("call-0", "bash", "", False)).write('{"command": "rm')
        await kedge.gates.wait("never")

    kedge.turns["prompt"] = writing_a_call
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    await kedge.reached("never")
    await kedge.cancel(session_id)
    await kedge.end("r")
    _, assistant, tool = await kedge.messages(session_id)
    assert assistant.parts == [ToolCall("call-0", "bash", '{"command": "rm', False), Finish("canceled")]
    assert [getattr(part, "tool_call_id", "") for part in tool.parts] == ["call-0"]


@pytest.mark.parametrize("script", ["ask rm done", "question which?"])
async def test_pending_request_is_resolved_before_the_end(kedge: Kedge, script: str) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, script, "r")
    request = await kedge.asked()
    await kedge.cancel(session_id)
    await kedge.end("r")
    log = await kedge.log()
    assert place_of(log, RequestResolution, id=request.id, by="server") < place_of(log, RunEnd, run_id="r")
    for kind in ("permission", "question"):
        assert await kedge.store.pending_requests(kedge.workspace_id, kind) == []


async def test_cancel_is_not_an_error_for_anybody(kedge: Kedge) -> None:
    session_id = await kedge.session()
    for script in ("wait never", "say half; tool bash hang", "ask rm done"):
        receipt = await kedge.send(session_id, script)
        await kedge.seen_run(receipt.run_id, "running")
        await kedge.cancel(session_id)
        end = await kedge.end(receipt.run_id)
        assert (end.cancelled, end.error, end.code) == (True, None, None)
    assert [event for event in await kedge.log() if isinstance(event.payload, AgentEvent)] == []


async def test_user_message_is_written_when_the_run_starts_and_not_before(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go", "a")
    receipt = await kedge.send(session_id, "say hello", "b")
    await kedge.reached("go")
    assert [message.run_id for message in await kedge.messages(session_id)] == ["a"]
    accepted = (await kedge.log())[receipt.seq - 1].payload
    assert isinstance(accepted, Run)
    assert accepted.prompt == "say hello"
    kedge.gates.open("go")
    await kedge.end("b")
    log = await kedge.log()
    started = place_of(log, Run, run_id="b", state="running")
    assert getattr(log[started].payload, "role", "") == "user"


async def test_run_cancelled_before_its_start_writes_both_messages_kept_from_the_model(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go", "active")
    files = (Attachment("a.txt", "text/plain", b"A"), Attachment("b.png", "image/png", PNG))
    await kedge.send(session_id, "say never", "queued", attachments=files)
    await kedge.reached("go")
    await kedge.cancel_run("queued")
    end = await kedge.end("queued")
    assert (end.cancelled, end.text) == (True, "")
    user, assistant = [message for message in await kedge.messages(session_id) if message.run_id == "queued"]
    assert user.parts == [Text("say never"), File("a.txt", "text/plain", b"A"), Image("image/png", PNG, "b.png")]
    assert (assistant.id, assistant.parts) == (end.message_id, [Finish("canceled")])
    assert [message.run_id for message in await kedge.history(session_id)] == ["active"]
    kedge.gates.open("go")
    await kedge.end("active")


async def test_run_dropped_from_the_queue_leaves_no_message(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go; say a", "active")
    await kedge.send(session_id, "say b", "dropped")
    await kedge.send(session_id, "say c", "kept")
    await kedge.reached("go")
    await kedge.engine.store.drop_queued(kedge.workspace_id, session_id, "dropped")
    end = await kedge.end("dropped")
    assert (end.cancelled, end.message_id, end.text) == (True, None, "")
    kedge.gates.open("go")
    active, kept = await kedge.ends("active", "kept")
    assert (active.text, kept.text) == ("a", "c")
    assert {message.run_id for message in await kedge.messages(session_id)} == {"active", "kept"}


async def test_only_what_is_queued_can_be_dropped(kedge: Kedge) -> None:
    session_id, other = await kedge.session(), await kedge.session()
    await kedge.send(session_id, "wait go", "active")
    await kedge.send(session_id, "say b", "queued")
    await kedge.reached("go")
    with pytest.raises(Conflict) as refused:
        await kedge.engine.store.drop_queued(kedge.workspace_id, session_id, "active")
    assert refused.value.code == "not_queued"
    for place, run_id in ((session_id, "nothing"), (other, "queued"), ("nowhere", "queued")):
        with pytest.raises(NotFound):
            await kedge.engine.store.drop_queued(kedge.workspace_id, place, run_id)
    kedge.gates.open("go")
    active, queued = await kedge.ends("active", "queued")
    assert (active.cancelled, queued.text) == (False, "b")


async def test_clearing_the_queue_drops_all_of_it_and_leaves_the_active_run(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "wait go; say a", "active")
    for number in range(3):
        await kedge.send(session_id, "say no", f"q{number}")
    await kedge.reached("go")
    assert await kedge.engine.store.drop_queued(kedge.workspace_id, session_id, None) == ["q0", "q1", "q2"]
    assert await kedge.engine.store.drop_queued(kedge.workspace_id, session_id, None) == []
    for end in await kedge.ends("q0", "q1", "q2"):
        assert (end.cancelled, end.message_id) == (True, None)
    kedge.gates.open("go")
    assert (await kedge.end("active")).text == "a"
    assert {message.run_id for message in await kedge.messages(session_id)} == {"active"}


async def test_turn_cancelled_after_it_said_something_whole_ends_with_a_last_word(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "say one; wait never", "r")
    await kedge.reached("never")
    await kedge.cancel(session_id)
    end = await kedge.end("r")
    said, last = (await kedge.messages(session_id))[1:]
    finish = finish_of(said.parts)
    assert finish is not None
    assert (text_of(said.parts), finish.reason) == ("one", "end_turn")
    assert (last.id, last.parts) == (end.message_id, [Finish("canceled")])
