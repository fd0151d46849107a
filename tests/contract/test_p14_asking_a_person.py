"""P14: requests to a person are stored, listed, re-sent, survive a restart, and are answered once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from kedge.engine.turn import TurnContext
from kedge.protocol.errors import Invalid, NotFound
from kedge.protocol.events import Event
from kedge.protocol.messages import ToolCall
from kedge.protocol.requests import (
    Answer,
    AnswerReceipt,
    PermissionAction,
    PermissionRequest,
    QuestionRequest,
    RequestResolution,
)
from kedge.protocol.runs import Permissions
from tests.support.harness import Kedge
from tests.support.reader import Reader


async def test_first_answer_wins_and_a_late_one_learns_who_was_faster(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done; say after", "r")
    request = await kedge.asked()
    first = await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow_session", "tui")
    late = await kedge.engine.answer_permission(kedge.workspace_id, request.id, "deny", "web")
    assert first == AnswerReceipt(resolved=True, by="tui", action="allow_session")
    assert late == AnswerReceipt(resolved=False, by="tui", action="allow_session")
    assert (await kedge.end("r")).text == "after"
    assert [result.content for result in await kedge.results(session_id)] == ["done"]
    still = await kedge.engine.answer_permission(kedge.workspace_id, request.id, "deny", "web")
    assert still == late
    told = [e.payload for e in await kedge.log() if isinstance(e.payload, RequestResolution)]
    assert [(t.id, t.by, t.action, t.run_id, t.session_id) for t in told] == [
        (request.id, "tui", "allow_session", "r", session_id)
    ]


async def test_of_answers_at_once_exactly_one_wins(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), "ask rm done", "r")
    request = await kedge.asked()
    answers = await asyncio.gather(
        *(kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", f"client-{n}") for n in range(20))
    )
    winners = [answer.by for answer in answers if answer.resolved]
    assert len(winners) == 1
    assert {answer.by for answer in answers} == set(winners)
    await kedge.end("r")


async def test_denied_call_is_refused_and_the_run_goes_on(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done; say went on", "r")
    request = await kedge.asked()
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "deny", "tui")
    assert (await kedge.end("r")).text == "went on"
    assert [(r.content, r.is_error) for r in await kedge.results(session_id)] == [("refused", True)]


async def test_unknown_request_is_not_found(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), "ask rm done", "r")
    request = await kedge.asked()
    with pytest.raises(NotFound):
        await kedge.engine.answer_permission(kedge.workspace_id, "nothing", "allow", "tui")
    with pytest.raises(NotFound):  # a permission is no question
        await kedge.engine.answer_question(kedge.workspace_id, request.id, ["yes"], "tui")
    assert await kedge.permissions() == [request]


async def test_question_is_answered_or_cancelled(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "question which one?; question and how?", "r")
    first = await kedge.asked()
    assert isinstance(first, QuestionRequest)
    assert first.questions == [{"question": "which one?"}]
    assert await kedge.store.pending_requests(kedge.workspace_id, "question") == [first]
    receipt = await kedge.engine.answer_question(kedge.workspace_id, first.id, ["this one"], "tui")
    assert receipt == AnswerReceipt(resolved=True, by="tui", action="answer")
    await kedge.seen(lambda event: isinstance(event.payload, QuestionRequest) and event.payload.id != first.id)
    second = (await kedge.store.pending_requests(kedge.workspace_id, "question"))[0]
    await kedge.engine.answer_question(kedge.workspace_id, second.id, None, "tui")
    await kedge.end("r")
    assert [r.content for r in await kedge.results(session_id)] == ["answer: ['this one']", "cancel: None"]


@pytest.mark.parametrize("answers", [[], ["this one", "and that one"]])
async def test_a_question_wants_as_many_answers_as_were_asked_for_and_stays_open(
    kedge: Kedge, answers: list[object]
) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "question which one?", "r")
    request = await kedge.asked()
    with pytest.raises(Invalid, match="send one answer for each") as refused:
        await kedge.engine.answer_question(kedge.workspace_id, request.id, answers, "tui")
    assert refused.value.code == "invalid_answers"
    assert await kedge.store.pending_requests(kedge.workspace_id, "question") == [request]
    await kedge.engine.answer_question(kedge.workspace_id, request.id, ["this one"], "tui")
    await kedge.end("r")
    assert [r.content for r in await kedge.results(session_id)] == ["answer: ['this one']"]


async def test_pending_requests_are_listed_and_leave_the_list_when_answered(kedge: Kedge) -> None:
    sessions = [await kedge.session() for _ in range(3)]
    for number, session_id in enumerate(sessions):
        await kedge.send(session_id, "ask rm done", f"r{number}")
        await kedge.seen(lambda event, run_id=f"r{number}": asks_for(event.payload, run_id))
    pending = await kedge.permissions()
    assert [(request.run_id, request.session_id) for request in pending] == [
        (f"r{number}", session_id) for number, session_id in enumerate(sessions)
    ]
    await kedge.engine.answer_permission(kedge.workspace_id, pending[1].id, "allow", "tui")
    assert [request.run_id for request in await kedge.permissions()] == ["r0", "r2"]


def asks_for(payload: object, run_id: str) -> bool:
    return isinstance(payload, PermissionRequest) and payload.run_id == run_id


async def test_request_is_sent_again_to_whoever_attaches_later(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done", "r")
    request = await kedge.asked()

    async def attach(session_id: str | None) -> list[object]:
        late = Reader()
        stream = kedge.engine.subscribe(kedge.workspace_id, session_id=session_id)
        task = asyncio.create_task(late.follow(stream))
        await late.event(lambda event: event.type == "caught_up")
        task.cancel()
        await asyncio.wait({task})
        return [frame.event.payload for frame in late.frames if frame.event.type == "permission_request"]

    assert await attach(None) == [request]
    assert await attach(session_id) == [request]
    assert await attach(await kedge.session()) == []
    await kedge.restart()
    assert await attach(None) == [request]
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "tui")
    assert await attach(None) == []


async def test_request_carries_what_a_person_must_know(kedge: Kedge) -> None:
    async def asking(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        await message.add(ToolCall("call-7", "bash", "{}", True))
        await message.finish("tool_use")
        answer = await ctx.ask_permission(
            *(message.id, "call-7"),
            tool="bash",
            action="execute",
            description="delete everything",
            params={"command": "rm -rf /"},
            path="/",
        )
        assert answer == Answer(action="allow", by="tui")
        await (await ctx.begin_tool_result(message.id, "call-7", "bash")).finish("done")

    kedge.turns["prompt"] = asking
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    request = await kedge.asked()
    assert request == PermissionRequest(
        id=request.id,
        session_id=session_id,
        run_id="r",
        tool_call_id="call-7",
        tool="bash",
        action="execute",
        description="delete everything",
        params={"command": "rm -rf /"},
        path="/",
    )
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "tui")
    assert (await kedge.end("r")).error is None


async def test_answer_after_a_restart_reaches_the_resumed_run(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "question which one?; say thanks", "r")
    request = await kedge.asked()
    await kedge.restart()
    await kedge.engine.answer_question(kedge.workspace_id, request.id, ["this one"], "web")
    assert (await kedge.end("r")).text == "thanks"
    assert [r.content for r in await kedge.results(session_id)] == ["answer: ['this one']"]


async def test_a_call_whose_reasons_differ_after_a_restart_goes_on_waiting_under_the_same_request(
    kedge: Kedge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's PATH may be a reason to ask, and the next server does not have it."""
    ask, asked = TurnContext.ask_permission, list[str]()

    async def ask_with_reasons(self: TurnContext, *args: Any, params: dict[str, Any], **options: Any) -> Answer:
        asked.append(f"reason {len(asked)}")
        return await ask(
            self, *args, params={**params, "label": asked[-1], "notes": asked[-1:], "rules": []}, **options
        )

    monkeypatch.setattr(TurnContext, "ask_permission", ask_with_reasons)
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done; say after", "r")
    request = await kedge.asked()
    await kedge.restart()
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "web")
    assert (await kedge.end("r")).text == "after"
    assert [result.content for result in await kedge.results(session_id)] == ["done"]
    assert asked == ["reason 0", "reason 1"]


async def test_late_answer_to_a_cancelled_run_learns_that_the_server_resolved_it(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done", "r")
    request = await kedge.asked()
    await kedge.cancel(session_id)
    await kedge.end("r")
    late = await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "tui")
    assert late == AnswerReceipt(resolved=False, by="server", action="cancel")


@pytest.mark.parametrize(("permissions", "content"), [("deny", "refused"), ("allow", "done")])
async def test_run_that_asks_nobody_is_answered_at_once(kedge: Kedge, permissions: Permissions, content: str) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done; say after", "r", permissions=permissions)
    assert (await kedge.end("r")).text == "after"
    assert [result.content for result in await kedge.results(session_id)] == [content]
    assert await kedge.engine.store.pending_requests(kedge.workspace_id, "permission") == []


async def test_refusal_of_a_run_that_asks_nobody_is_told_and_an_allowance_is_not(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done", "refused", permissions="deny")
    await kedge.send(session_id, "ask rm done", "allowed", permissions="allow")
    await kedge.ends("refused", "allowed")
    told = [event.payload for event in await kedge.log() if event.type.startswith("permission_")]
    request, resolution = told
    assert isinstance(request, PermissionRequest)
    assert isinstance(resolution, RequestResolution)
    assert (request.run_id, resolution.id, resolution.action, resolution.by) == ("refused", request.id, "deny", "run")


async def test_question_is_not_put_when_nobody_is_there(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "question which one?; say after", "r", permissions="deny")
    assert (await kedge.end("r")).text == "after"
    assert "question_request" not in [event.type for event in await kedge.log()]


def _asks_for(path: str, event: Event) -> bool:
    return isinstance(event.payload, PermissionRequest) and event.payload.path == path


async def test_second_thing_that_a_call_asks_for_is_a_request_of_its_own(kedge: Kedge) -> None:
    async def two_things(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        await message.add(ToolCall("c", "write", "{}", True))
        await message.finish("tool_use")
        for path in ("/tmp/a", "/etc/passwd"):
            answer = await ctx.ask_permission(
                message.id, "c", tool="write", action="write", description=path, params={}, path=path
            )
            answers.append(answer.action)

    answers: list[str] = []
    kedge.turns["shell"] = two_things
    await kedge.send(await kedge.session(), "go", "r", kind="shell")
    wanted: dict[str, PermissionAction] = {"/tmp/a": "allow", "/etc/passwd": "deny"}
    for path, action in wanted.items():
        request = (await kedge.seen(partial(_asks_for, path))).payload
        assert isinstance(request, PermissionRequest)
        await kedge.engine.answer_permission(kedge.workspace_id, request.id, action, "me")
    await kedge.end("r")
    assert answers == ["allow", "deny"]


async def test_a_reason_is_kept_with_the_denial_and_told(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "ask rm done; ask mv done; say after", "r")
    request = await kedge.asked()
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "deny", "tui", reason=" use git \n")
    await kedge.seen(lambda event: isinstance(event.payload, PermissionRequest) and event.payload.id != request.id)
    (other,) = await kedge.permissions()
    await kedge.engine.answer_permission(kedge.workspace_id, other.id, "deny", "tui", reason=" ")
    await kedge.end("r")
    told = [event.payload for event in await kedge.log() if isinstance(event.payload, RequestResolution)]
    assert [(each.action, each.by, each.reason) for each in told] == [("deny", "tui", "use git"), ("deny", "tui", None)]


async def test_rules_are_written_before_the_answer_by_the_first_answer_alone(kedge: Kedge) -> None:
    written: list[str] = []

    async def write_rules(request: PermissionRequest) -> None:
        if not written:
            written.append("failed")
            raise Invalid("bad_config", "config.toml: 3: not valid")
        await asyncio.sleep(0)
        written.append(request.id)

    async def allow_always(by: str) -> AnswerReceipt:
        return await kedge.engine.answer_permission(
            kedge.workspace_id, request.id, "allow_always", by, write_rules=write_rules
        )

    await kedge.send(await kedge.session(), "ask rm done; say after", "r")
    request = await kedge.asked()
    with pytest.raises(Invalid):
        await allow_always("tui")
    assert await kedge.permissions() == [request], "it can be answered otherwise"
    receipts = await asyncio.gather(*(allow_always(f"client-{n}") for n in range(5)))
    assert sum(receipt.resolved for receipt in receipts) == 1
    assert {receipt.action for receipt in receipts} == {"allow_always"}
    assert written == ["failed", request.id]
    assert (await kedge.end("r")).text == "after"
